"""LayerSpec: what a layer is to be made of. Maker: what makes its parts."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.display import short_repr
from leanbayes.distributions import WeightDistribution
from leanbayes.distributions.kl import check_pair
from leanbayes.errors import require
from leanbayes.estimators import Estimator, auto
from leanbayes.ops import Linear, LinearOp, Lookup
from leanbayes.parameters.learned import Learned
from leanbayes.parameters.scales import Scale
from leanbayes.posteriors import (
    KTied,
    MatrixNormal,
    MeanField,
    Point,
    Posterior,
    Rank1,
    VariationalDropout,
    ZeroMean,
)
from leanbayes.priors import Cauchy, Flat, He, LogUniform, Normal, Prior

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_START, _NORMALIZED_START = 0.1, 0.05
"""First standard deviations, times the root of the fan-in, chosen on validation rows."""
Pair = tuple[Learned[WeightDistribution], Learned[Distribution]]
SharedPriors = dict[Prior, Learned[Distribution]]
"""The priors that all layers of one model share."""


@dataclass(frozen=True)
class LayerSpec:
    """Parts of one Bayesian layer.

    Args:
        posterior: spec of the weights' posterior.
        prior: spec of their prior.
        estimator: rule for sharing noise.
        bias: posterior of the biases; ``None`` keeps them deterministic.
        bias_prior: their prior; ``None`` takes that of the weights.
        batch_dim: dimension of a linear layer's or an embedding's input that counts examples: 1
            for ``[time, batch, …]``.

    Raises:
        ValueError: If a part is not a spec, or parts do not fit.
    """

    posterior: Posterior
    prior: Prior
    estimator: Estimator = auto
    bias: Posterior | None = None
    bias_prior: Prior | None = None
    batch_dim: int = 0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name, kinds, example in (
            ("posterior", Posterior, "lb.KTied(2)"),
            ("prior", Prior, "lb.priors.Normal(1.0)"),
            ("bias", Posterior | None, "lb.MeanField()"),
            ("bias_prior", Prior | None, "lb.priors.Normal(1.0)"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise ValueError(f"{name} is {value!r}; give a spec such as {example}")
        if not callable(self.estimator):
            raise ValueError(
                f"estimator is {self.estimator!r}; give a function such as lb.estimators.auto"
            )
        if self.batch_dim not in (0, 1):
            raise ValueError(
                f"batch_dim is {self.batch_dim!r}; it is 0, or 1 for inputs [time, batch, …]"
            )
        if isinstance(self.posterior, Rank1):
            require(
                not self.prior.weights_only,
                f"{type(self.prior).__name__} is a prior of weights, and a rank-one posterior "
                "compares its factors with the prior; use for example lb.priors.Normal(0.1, "
                "loc=1.0)",
            )
            require(
                self.posterior.perturb == "add"
                or not set(self.posterior.kinds) & {"cauchy", "normal"}
                or not isinstance(self.prior, Cauchy | Normal)
                or self.prior.loc != 0,
                f"the prior of factors must have loc=1.0, since they multiply weights, got "
                f"{self.prior!r}. Leave it out, or use for example lb.priors.Normal(0.1, loc=1.0)",
            )
            require(
                self.bias is None or self.bias_prior is not None,
                "the prior of rank-one factors does not suit biases; give bias_prior as well",
            )


def recommended_posterior(model: nn.Module) -> Posterior:
    """Return the posterior of a conversion that names none: nearly free, and needs no tuning.

    Batch normalization takes the noise of a channel away in training, where its statistics are
    those of the same draw, and not in predictions. So standard deviations start smaller there.
    """
    normalized = any(isinstance(module, _BATCH_NORMS) for module in model.modules())
    start = _NORMALIZED_START if normalized else _START
    return KTied(rank=2, scale=Scale(start, raw_spread=0.1, by_fan_in=True))


def prior_or_default(prior: Prior | None, posterior: Posterior) -> Prior:
    """Return the prior, or the recommended one of a family.

    It is ``He()`` for weights with means, and the published prior of rank-one factors.
    """
    if prior is not None:
        return prior
    if isinstance(posterior, Rank1):
        kinds = set(posterior.kinds) - {"none"}
        if kinds == {"fixed"}:
            return Flat()
        if kinds == {"normal"}:
            return Normal(0.1, loc=1.0 if posterior.perturb == "multiply" else 0.0)
    if isinstance(posterior, KTied | MeanField | MatrixNormal | Point):
        return He()
    if isinstance(posterior, VariationalDropout | ZeroMean):
        return LogUniform()
    raise ValueError(f"{posterior!r} has no separate prior; give one such as lb.priors.Normal(1.0)")


@dataclass(frozen=True)
class Maker:
    """Makes the parts of one layer from its choice; ``from_torch`` of a layer kind takes it."""

    choice: LayerSpec
    shared: SharedPriors
    checks: bool = True

    def placed(self, op: LinearOp) -> LinearOp:
        """Return the op, given which dimension of its input counts examples."""
        dim = self.choice.batch_dim
        if dim == op.batch_dim:
            return op
        if not isinstance(op, Linear | Lookup):
            raise ValueError(f"batch_dim is {dim}; {type(op).__name__} has examples in dimension 0")
        return replace(op, batch_dim=dim)

    def learned(self, weight: Tensor, op: LinearOp) -> Pair:
        """Return the posterior, with means at ``weight``, and the prior; both frozen if it is."""
        return self._pair(weight, op, self.choice.posterior, self.choice.prior)

    def learned_bias(self, column: Tensor) -> Pair:
        """Return the posterior and the prior of biases, as a matrix of one column."""
        prior = self.choice.bias_prior or self.choice.prior
        assert self.choice.bias is not None
        return self._pair(column, Linear(), self.choice.bias, prior)

    def _pair(self, weight: Tensor, op: LinearOp, posterior: Posterior, prior: Prior) -> Pair:
        if self.checks:
            _require_numbers(weight)
        q = posterior(weight, op).requires_grad_(weight.requires_grad)
        p = self.shared.get(prior)
        if p is None:
            p = prior.of(weight.detach(), op).requires_grad_(weight.requires_grad)
        elif weight.requires_grad:
            p.requires_grad_()  # a prior that layers share learns if one of them does
        if prior.shared_by_model:
            self.shared[prior] = p
        if self.checks:
            check_pair(q(), p())
        return q, p


def _require_numbers(weight: Tensor) -> None:
    require(
        not weight.is_meta,
        "its weights are on the meta device and have no numbers; give it memory with "
        "to_empty(device=...) and load its weights first",
    )
    require(
        bool(torch.isfinite(weight).all()),
        "its weights are not finite; look for a NaN or an infinity before converting",
    )
