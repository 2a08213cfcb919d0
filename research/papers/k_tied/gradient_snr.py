"""The signal-to-noise ratio of gradients over the last steps [k-tied, section 4]."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes.errors import require, require_count
from leanbayes.models.random_maps import random_maps

Definition = Literal["gradient", "square"]
Average = Literal["mean", "median", "pooled"]


@dataclass
class _Ring:
    """The last gradients of one parameter, ``[window, …]``, and how many it has had."""

    gradients: Tensor | None = None
    count: int = 0


class GradientSNR:
    """Signal-to-noise ratios of the gradients of scales in the last steps, averaged over layers.

    Of each number it is ``E[g²] / Var[g]`` (ICML version of the paper, footnote 3), or with
    ``definition="square"`` ``E[g²] / Var[g²]`` [k-tied, footnote 2]. The first does not change when
    gradients are multiplied by ``c``, the second changes by ``1 / c²``: compare it only between
    losses of one scale. Pure normal noise gives ``1 + 1 / (n − 3)`` over ``n`` steps, not 0.

    A number whose gradient does not vary has the ratio ∞, and so has its layer's mean; one whose
    gradients are all zero has neither signal nor noise and is left out.

    Args:
        model: a converted model.
        window: how many steps.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.KTied(2), lb.priors.Normal(1.0))
        >>> snr = GradientSNR(model, window=5)
        >>> for _ in range(5):
        ...     model.zero_grad()
        ...     model(torch.randn(8, 3)).square().mean().backward()
        ...     snr.update()
        >>> snr.values()[""] > 1
        True
    """

    def __init__(self, model: nn.Module, window: int = 10) -> None:
        require_count("window", window, 2)
        self.window = window
        self._layers = _with_scales(model)
        self.reset()

    @torch.no_grad()
    def update(self) -> None:
        """Record the gradients that the parameters have now; call it after ``backward()``."""
        for parameter, ring in self._rings.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if ring.gradients is None:
                ring.gradients = gradient.new_empty(self.window, *gradient.shape)
            ring.gradients[ring.count % self.window].copy_(gradient)
            ring.count += 1

    @property
    def steps(self) -> int:
        """How many gradients were recorded, of the parameter that had most."""
        return max(ring.count for ring in self._rings.values())

    def reset(self) -> None:
        """Clear the records and free their memory."""
        self._rings = {p: _Ring() for layer in self._layers.values() for p in layer}

    def state_dict(self) -> dict[str, Any]:
        """Return what was recorded, for a checkpoint."""
        return {
            name: [(self._rings[p].count, self._rings[p].gradients) for p in parameters]
            for name, parameters in self._layers.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the records of another object for the same model and window."""
        for name, parameters in self._layers.items():
            for parameter, (count, gradients) in zip(parameters, state[name], strict=True):
                kept = None if gradients is None else gradients.to(parameter).clone()
                self._rings[parameter] = _Ring(kept, count)

    @torch.no_grad()
    def values(
        self, definition: Definition = "gradient", *, average: Average = "mean"
    ) -> dict[str, float]:
        """Return the ratio of every layer, by name as in ``named_kl``; NaN until a window is full.

        Args:
            definition: the variance of the gradient, or of its square.
            average: over the layer's numbers: the ``"mean"`` of their ratios, as in the papers,
                their ``"median"``, or ``"pooled"``, all signal over all noise. Scales whose unit
                is off get no gradient but that of the KL, which hardly varies: in a mean a few of
                them outweigh all others, when pooled they count for what little they move.
        """
        return {name: self._ratio(p, definition, average) for name, p in self._layers.items()}

    def _ratio(
        self, parameters: list[nn.Parameter], definition: Definition, average: Average
    ) -> float:
        rings = [self._rings[parameter] for parameter in parameters]
        if any(ring.count < self.window for ring in rings):
            return float("nan")
        recorded = [ring.gradients for ring in rings if ring.gradients is not None]
        numbers = torch.cat([gradients.cpu().double().flatten(1) for gradients in recorded], 1)
        signal, noise = _signal_and_noise(numbers, definition)
        if average == "pooled":
            return float(signal.sum() / noise.sum())
        ratios = signal / noise  # 0 / 0 is NaN, and not averaged
        return float(ratios.nanmean() if average == "mean" else ratios.nanmedian())


def _signal_and_noise(gradients: Tensor, definition: Definition) -> tuple[Tensor, Tensor]:
    """Return ``E[g²]`` and the variance over the window, of each number."""
    squares = gradients.square()
    varying = squares if definition == "square" else gradients
    constant = (varying == varying[:1]).all(0)
    return squares.mean(0), varying.var(0, correction=0).masked_fill(constant, 0.0)


def _with_scales(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return what is trained in posteriors and is not a mean, by layer."""
    layers = {}
    for name, layer in random_maps(model):
        if trained := [p for p in layer.posterior.tensors("scales").values() if p.requires_grad]:
            layers[name] = trained
    require(bool(layers), "the model trains no scales; call lb.convert(model, …) first")
    return layers
