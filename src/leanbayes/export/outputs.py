"""Outputs of an exported network: the part of its graph behind the samples."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.prediction.predict import Prediction

_HALVINGS = 28
"""How often a bracket of a quantile is halved: more often than single precision can tell."""


@dataclass(frozen=True, eq=False)
class OutputSpec:
    """Outputs that an exported network is to have.

    Args:
        likelihood: what its outputs mean.
        levels: of quantiles.
        shift: targets are ``shift + scale · y`` in the units of their user.
        scale: see there.
    """

    likelihood: Likelihood = field(default_factory=Categorical)
    levels: tuple[float, ...] = (0.05, 0.5, 0.95)
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        for level in self.levels:
            require(0 < level < 1, f"quantile {level} does not lie between 0 and 1")


class OutputGraph(nn.Module):
    """Map of samples ``[…, batch, …]`` to a tuple of outputs, whose names are ``names``.

    Classes get their averaged ``probabilities``, the ``entropy`` and the ``mutual_information``;
    numbers get ``mean`` and ``standard_deviation`` of a new target, ``aleatoric`` and ``epistemic``
    variances and, where noise is normal, ``quantiles [levels, batch, …]``.

    Args:
        spec: the outputs that are wanted.
        samples: the outputs of a few examples, ``[samples, batch, …]``.
        stacked: whether outputs come as ``[samples, members, batch, …]``.
    """

    def __init__(self, spec: OutputSpec, samples: Tensor, *, stacked: bool) -> None:
        super().__init__()
        likelihood = self.likelihood = spec.likelihood
        self.spec, self.stacked = spec, stacked
        self.names: tuple[str, ...]
        if likelihood.has_classes(samples):
            self.names = ("probabilities", "entropy", "mutual_information")
        elif "mean" in likelihood.answers(samples):
            self.names = ("mean", "standard_deviation", "aleatoric", "epistemic")
            if spec.levels and isinstance(likelihood.distribution(samples), Normal):
                self.names += ("quantiles",)
        else:
            raise ValueError(
                f"{type(likelihood).__name__} has neither classes nor a mean, so there is nothing "
                "to export; give its distribution a mean and a variance"
            )

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        samples = outputs.flatten(0, 1) if self.stacked else outputs
        prediction = Prediction(samples, self.likelihood)
        if self.names[0] == "probabilities":
            return prediction.probs, prediction.entropy, prediction.mutual_information
        shift, scale = self.spec.shift, self.spec.scale
        mean, aleatoric, epistemic = prediction.mean, prediction.aleatoric, prediction.epistemic
        variance = aleatoric + epistemic
        values = (
            shift + scale * mean,
            scale * variance.sqrt(),
            scale**2 * aleatoric,
            scale**2 * epistemic,
        )
        if "quantiles" not in self.names:
            return values
        return *values, shift + scale * self._quantiles(samples, mean, variance)

    def _quantiles(self, samples: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Bisection with a fixed number of steps, between bounds that hold for every law.

        A quantile of level ``p`` is at least ``mean − std √((1 − p) / p)`` and at most
        ``mean + std √(p / (1 − p))``: Cantelli's inequality.
        """
        law = self.likelihood.distribution(samples)
        level = samples.new_tensor(self.spec.levels).reshape(-1, *(1,) * mean.ndim)
        std = variance.sqrt()
        low = mean - std * ((1 - level) / level).sqrt()
        high = mean + std * (level / (1 - level)).sqrt()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = law.cdf(middle.unsqueeze(1)).mean(1) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2
