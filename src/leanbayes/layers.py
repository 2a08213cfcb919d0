"""RandomMap: a posterior, a prior, an op and an estimator. Affine: one with a bias."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.distributions import Map, WeightDistribution
from leanbayes.estimators import Estimator, auto
from leanbayes.kl import divergence
from leanbayes.learned import Learned
from leanbayes.ops import LinearOp, Usage

__all__ = ["Affine", "RandomMap"]


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

    def draw(self, usage: Usage) -> Map:
        """Draw a map, or give the one that is being held."""
        if self.held is not None:
            return self.held
        return self.estimator(self.posterior(), self.op, usage)

    def kl(self) -> Tensor:
        """KL of the posterior from the prior: a function of the parameters alone."""
        return divergence(self.posterior(), self.prior())

    @property
    def weight(self) -> Tensor:
        """The posterior mean in torch's own shape (with a first axis of members for a mixture)."""
        return self.op.unmatrix(self.posterior().mean)

    def extra_repr(self) -> str:
        estimator = getattr(self.estimator, "__name__", repr(self.estimator))
        return f"op={self.op}, estimator={estimator}"


class Affine(RandomMap):
    """A random linear map and a bias: what linear, convolutional and embedding layers become.

    Args:
        op: how the matrix acts on an input.
        posterior: the learned distribution of the matrix.
        prior: what the posterior is compared with.
        bias: ``None``; a vector ``[out]`` (each member of a mixture gets its own copy); or a
            random map of one column, which is applied to the constant 1.
        estimator: how far noise is shared.

    Example:
        >>> from leanbayes import KTied, Normal
        >>> from leanbayes.ops import Linear
        >>> w = torch.randn(4, 3)
        >>> layer = Affine(Linear(), KTied(2)(w, Linear()), Normal(1.0)(w))
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([5, 4])
    """

    bias: nn.Parameter | RandomMap | None

    def __init__(
        self,
        op: LinearOp,
        posterior: Learned[WeightDistribution],
        prior: Learned[Distribution],
        bias: Tensor | RandomMap | None = None,
        estimator: Estimator = auto,
    ) -> None:
        super().__init__(op, posterior, prior, estimator)
        if isinstance(bias, Tensor):
            vector = bias.detach().clone()
            copies = vector.repeat(self.members, 1) if self.members > 1 else vector
            bias = nn.Parameter(copies, requires_grad=bias.requires_grad)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        self.op.check_input(x, self.channels)
        if not self.op.is_batched(x):
            y: Tensor = self(x.unsqueeze(0))
            return y.squeeze(0)
        usage = self.op.usage(x)
        y = self.draw(usage)(x)
        bias = self._bias(usage, y)
        return y if bias is None else y + self.op.spread(bias, y.ndim).to(y.dtype)

    def _bias(self, usage: Usage, y: Tensor) -> Tensor | None:
        """The bias of each example, ``[batch, out]`` or ``[1, out]``."""
        if self.bias is None:
            return None
        if isinstance(self.bias, RandomMap):
            ones = y.new_ones(y.shape[0], 1)
            return self.bias.draw(Usage(usage.batch, reused=False))(ones)
        if self.bias.ndim == 1:
            return self.bias.unsqueeze(0)
        return self.bias.repeat_interleave(y.shape[0] // self.members, 0)
