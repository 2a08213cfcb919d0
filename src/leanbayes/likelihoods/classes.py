"""Likelihoods of classes, and of on or off."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from leanbayes.errors import require, require_positive
from leanbayes.likelihoods.base import Likelihood, register_likelihood

_FEW_CLASSES = 15
"""So few do not fill a register of the processor."""


@register_likelihood("categorical")
class Categorical(Likelihood):
    """Classes; outputs are logits over the last dimension, targets class indices.

    Args:
        temperature: Divisor of the logits; above 1 predictions are less confident
            (:func:`leanbayes.calibrate` finds it).

    Raises:
        ValueError: If the temperature is not positive.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        require_positive(temperature=temperature)
        self.temperature = float(temperature)

    def distribution(self, outputs: Tensor) -> Distribution:
        return distributions.Categorical(logits=self._tempered(outputs), validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        super().check(outputs, y)
        classes = outputs.shape[-1]
        outside = y[(y < 0) | (y >= classes) | (y != y.round())]
        if outside.numel():
            raise ValueError(
                f"a label is {outside.flatten()[0]:g}, and the {classes} outputs stand for labels "
                f"0 to {classes - 1}; give the network an output for every class, or correct the "
                "labels"
            )

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        return y  # half precision could not tell 257 classes

    def class_log_probs(self, outputs: Tensor) -> Tensor:
        return _over_classes(F.log_softmax, self._tempered(outputs))

    def probs(self, outputs: Tensor) -> Tensor:
        return _over_classes(F.softmax, self._tempered(outputs)).mean(0)

    def _tempered(self, outputs: Tensor) -> Tensor:
        return outputs if self.temperature == 1 else outputs / self.temperature


def _over_classes(softmax: Callable[[Tensor, int], Tensor], outputs: Tensor) -> Tensor:
    """Return a softmax over the last dimension.

    Over a few classes torch's loop on a CPU takes four times as long as over another dimension.
    """
    if outputs.shape[-1] > _FEW_CLASSES or outputs.device.type != "cpu":
        return softmax(outputs, -1)
    return softmax(outputs.movedim(-1, 0).contiguous(), 0).movedim(0, -1).contiguous()


@register_likelihood("bernoulli")
class Bernoulli(Likelihood):
    """Independent binary targets; outputs are logits of the same shape."""

    def check(self, outputs: Tensor, y: Tensor) -> None:
        super().check(outputs, y)
        _require_shares(y)

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        if y.device.type == "cpu" and not torch.compiler.is_compiling():
            _require_shares(y)
        return super().targets(y, outputs)

    def distribution(self, outputs: Tensor) -> Distribution:
        return distributions.Bernoulli(logits=outputs, validate_args=False)


def _require_shares(y: Tensor) -> None:
    if y.numel():
        low, high = (float(end) for end in y.aminmax())
        require(
            low >= 0 and high <= 1,
            f"targets go from {low:g} to {high:g}, and Bernoulli is for 0, 1 and all between; "
            "take lb.likelihoods.Categorical for more than two classes",
        )
