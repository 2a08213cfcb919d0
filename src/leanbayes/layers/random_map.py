"""RandomMap: a posterior, a prior, an op and an estimator; and the biases that stand beside one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.distributions import Map, WeightDistribution, rounded, with_op
from leanbayes.errors import require
from leanbayes.estimators import Estimator, auto
from leanbayes.kl import divergence
from leanbayes.learned import Learned
from leanbayes.ops import LinearOp, Usage
from leanbayes.precision import full_precision

__all__ = ["RandomMap", "bias_rows", "plain_bias", "point_bias"]


class RandomMap(nn.Module):
    """A random linear map. ``train()`` and ``eval()`` do not switch its noise.

    Args:
        op: how the matrix acts on an input.
        posterior: the learned distribution of the matrix.
        prior: what the posterior is compared with.
        estimator: how far noise is shared.
    """

    def __init__(
        self,
        op: LinearOp,
        posterior: Learned[WeightDistribution],
        prior: Learned[Distribution],
        estimator: Estimator = auto,
    ) -> None:
        super().__init__()
        self.op = op
        self.posterior = posterior
        self.prior = prior
        self.estimator = estimator
        self.held: Map | None = None
        q = posterior()
        self.members = q.members
        self.channels = op.input_channels(q.event_shape[1])

    def __getstate__(self) -> dict[str, Any]:
        """A copy is not held: the draw belongs to a ``with`` block of the original."""
        return {**self.__dict__, "held": None}

    def draw(self, usage: Usage, op: LinearOp | None = None) -> Map:
        """Draw a map, or give the one that is being held; ``op`` stands in for the layer's own."""
        if self.held is None:
            return self.fresh(self.estimator, usage, op)
        if op is None or op is self.op:
            return self.held
        return with_op(self.held, op)

    def fresh(self, estimator: Estimator, usage: Usage, op: LinearOp | None = None) -> Map:
        """A new draw: made in full precision, for inputs of the parameters' dtype."""
        posterior = self.posterior
        stored = posterior.like
        with full_precision(stored.device):
            drawn = estimator(posterior(), op or self.op, usage)
        return rounded(drawn, stored.dtype)

    def kl(self) -> Tensor:
        """KL of the posterior from the prior: a function of the parameters alone."""
        posterior = self.posterior
        with full_precision(posterior.like.device):
            return divergence(posterior(), self.prior())

    @property
    def weight(self) -> Tensor:
        """The posterior mean in torch's own shape (with a first axis of members for a mixture)."""
        posterior = self.posterior
        return self.op.unmatrix(posterior().mean).to(posterior.like.dtype)

    def point(self, member: int | None = None) -> nn.Parameter:
        """The mean weight, of one member if there are several; frozen if the means are."""
        weight = self.weight.detach()
        count = self.members
        if count > 1:
            several = f"a mixture of {count} members has no single mean"
            require(member is not None, f"{several}; pass member=0 … {count - 1}")
            require(member in range(count), f"member {member} does not exist; there are {count}")
            weight = weight[member]
        means = self.posterior.tensors("means").values()
        trained = not means or any(mean.requires_grad for mean in means)
        return nn.Parameter(weight.contiguous(), requires_grad=trained)

    def extra_repr(self) -> str:
        estimator = getattr(self.estimator, "__name__", repr(self.estimator))
        return f"op={self.op}, estimator={estimator}"


def plain_bias(bias: Tensor, members: int) -> nn.Parameter:
    """A bias ``[out]`` that is not random; each member of a mixture gets its own copy."""
    vector = bias.detach().clone()
    copies = vector.repeat(members, 1) if members > 1 else vector
    return nn.Parameter(copies, requires_grad=bias.requires_grad)


def bias_rows(bias: Tensor, batch: int) -> Tensor:
    """A plain bias for each example: ``[1, out]``, or ``[batch, out]`` for a mixture."""
    if bias.ndim == 1:
        return bias.unsqueeze(0)
    return bias.repeat_interleave(batch // bias.shape[0], 0)


def point_bias(bias: RandomMap | nn.Parameter, member: int | None = None) -> nn.Parameter:
    """What :meth:`RandomMap.point` is for a weight, for a bias of any form."""
    if isinstance(bias, RandomMap):
        column = bias.point(member)
        return nn.Parameter(column.detach().squeeze(-1), requires_grad=column.requires_grad)
    vector = bias.detach()[member or 0] if bias.ndim == 2 else bias.detach()
    return nn.Parameter(vector, requires_grad=bias.requires_grad)
