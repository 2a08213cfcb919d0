"""RandomMap: a posterior, a prior, an op and an estimator; Affine: a layer of it and a bias."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.distributions import Delta, FixedMap, LocalMap, Map, WeightDistribution
from leanbayes.distributions.base import in_blocks
from leanbayes.distributions.kl import total_divergence
from leanbayes.errors import require
from leanbayes.estimators import Estimator, auto, mean, weights
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.forward_pass import (
    Held,
    RoundedMap,
    check_usage,
    current_pass,
    estimator_for,
    expand_to_batch,
    warn_untiled,
)
from leanbayes.layers.layer_spec import Maker
from leanbayes.ops import Linear, LinearOp, Usage
from leanbayes.parameters.learned import Learned
from leanbayes.precision import HALVES, full_precision, is_rounded

B = TypeVar("B", bound=Tensor | None)

_HARMLESS = "device dtype is_cuda is_leaf is_meta is_sparse layout ndim requires_grad shape dim "
_HARMLESS += "element_size is_contiguous is_floating_point numel size stride __len__"
"""Attributes and methods that do not depend on the numbers of a tensor."""


class MeanWeight(Tensor):
    """A posterior mean that warns when code computes with it; results are ordinary tensors."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        attribute = getattr(func, "__self__", func)
        if getattr(attribute, "__name__", "") not in _HARMLESS.split():
            warnings.warn(
                "weight is the posterior mean here: code that computes with it has no noise. Call "
                "the layer, or read weight within lb.held(model); mean_weight is the mean",
                stacklevel=2,
            )
        with torch.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class RandomMap(nn.Module):
    """A random linear map. ``train()`` and ``eval()`` do not switch its noise.

    Args:
        op: action of the matrix on an input.
        posterior: the learned distribution of the matrix.
        prior: distribution that the posterior is compared with.
        estimator: rule for sharing noise.
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
        q = posterior()
        self.members = q.members
        self.channels = op.input_channels(q.event_shape[1])

    @property
    def splits_batch(self) -> bool:
        """Whether members of a mixture are to learn from parts of a batch."""
        return getattr(self.posterior.spec, "batch", None) == "split"

    @property
    def held(self) -> Map | None:
        """The draw that a block around this code holds."""
        estimator = estimator_for(self)
        return estimator.map if isinstance(estimator, Held) else None

    def usage(self, x: Tensor, op: LinearOp) -> Usage:
        """Return how an input uses each weight, compared with the rows of the batch."""
        usage = check_usage(op.usage(x), op, x, self.members)
        if self.training and self.members > 1:
            warn_untiled(x, op.batch_dim, 1 if self.splits_batch else self.members)
        return usage

    def draw(self, usage: Usage, op: LinearOp | None = None) -> Map:
        """Draw a map, or return the held one; ``op`` replaces the layer's own."""
        estimator, op = estimator_for(self) or self.estimator, op or self.op
        if isinstance(estimator, Held):
            return estimator(None, op, usage)
        current = current_pass()
        if current.draws is None:
            return self._drawn(self.posterior, estimator, usage, op)
        usage = usage._replace(noise=current.noise)
        return current.draws.draw(self, self.fresh, estimator, usage, op)

    def fresh(self, estimator: Estimator, usage: Usage, op: LinearOp) -> Map:
        """Return a new draw, of the law that all samples of a prediction share."""
        return self._drawn(self._law, estimator, usage, op)

    def _drawn(
        self,
        law: Callable[[], WeightDistribution],
        estimator: Estimator,
        usage: Usage,
        op: LinearOp,
    ) -> Map:
        """Return a draw: made in full precision, for inputs of the parameters' dtype."""
        stored = self.posterior.like
        if _is_single(stored):
            return _rounded(estimator(law(), op, usage), stored.dtype)
        with full_precision(stored.device):
            drawn = estimator(law(), op, usage)
        return _rounded(drawn, stored.dtype)

    def draws_for_all(self, estimator: Estimator, usage: Usage, op: LinearOp) -> bool:
        """Return whether an estimator of this package draws one noise for all examples."""
        if estimator is weights:
            return not isinstance(self._law(), Delta)
        apart = usage.batch is not None and self._law().local_is_exact(op, reused=usage.reused)
        return estimator is auto and not apart

    def _law(self) -> WeightDistribution:
        """Return the posterior; samples of one prediction share it."""
        draws = current_pass().draws
        if draws is None or draws.laws is None:
            return self.posterior()
        if self not in draws.laws:
            draws.laws[self] = self.posterior()
        return draws.laws[self]

    def kl(self) -> Tensor:
        """Return the KL of the posterior from the prior: a function of the parameters alone."""
        posterior = self.posterior
        with full_precision(posterior.like.device):
            return total_divergence([(posterior(), self.prior())])

    @property
    def weight(self) -> Tensor:
        """The held draw in torch's own shape, or the posterior mean, with a warning.

        The warning comes when code computes with the mean: to look at its dtype, device or shape
        is not a mistake. A mixture's has a first axis of members. :attr:`mean_weight` is the mean
        without a word.
        """
        held = self.held
        if isinstance(held, FixedMap):
            return self.op.unmatrix(held.weight)
        mean_weight = self.mean_weight
        quiet = isinstance(self.posterior(), Delta) or estimator_for(self) is mean
        if quiet or torch.compiler.is_compiling():
            return mean_weight
        return mean_weight.as_subclass(MeanWeight)

    @property
    def mean_weight(self) -> Tensor:
        """The posterior mean in torch's own shape (with a first axis of members for a mixture)."""
        posterior = self.posterior
        return self.op.unmatrix(posterior().mean).to(posterior.like.dtype)

    def point(self, member: int | None = None) -> nn.Parameter:
        """Return the mean weight, of one member if there are several; frozen like the posterior."""
        weight = self.mean_weight.detach()
        count = self.members
        if count > 1:
            several = f"a mixture of {count} members has no single mean"
            require(member is not None, f"{several}; pass member=0 … {count - 1}")
            require(member in range(count), f"member {member} does not exist; there are {count}")
            weight = weight[member]
        means = self.posterior.tensors("means").values() or self.posterior.parameters()
        trained = any(mean.requires_grad for mean in means)
        return nn.Parameter(weight.contiguous(), requires_grad=trained)

    def extra_repr(self) -> str:
        estimator = getattr(self.estimator, "__name__", repr(self.estimator))
        return f"op={self.op}, estimator={estimator}"


def _is_single(x: Tensor) -> bool:
    """Whether a tensor is float32 on a CPU without autocast: the usual case, checked first."""
    return x.is_cpu and x.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")


class AppliedMap(LocalMap):
    """A map with separate noise for every output, for inputs of any precision."""

    def __call__(self, x: Tensor, bias: Tensor | None = None, /) -> Tensor:
        if _is_single(x) or not is_rounded(x):
            return self.q.local(x, self.op, bias, self.noise)
        y = RoundedMap(super().__call__)(x)
        return y if bias is None else self.op.add_bias(y, bias)


def _rounded(drawn: Map, dtype: torch.dtype) -> Map:
    """Return a drawn map for a layer whose parameters have this dtype.

    One matrix for the whole batch is rounded and runs in torch's kernels for halves; noise is
    applied in full precision, where its digits and its range are, and the output is rounded.
    """
    if type(drawn) is LocalMap:
        drawn = AppliedMap(drawn.op, drawn.q, drawn.noise)
    if dtype not in HALVES:
        return drawn
    if isinstance(drawn, FixedMap):
        return FixedMap(drawn.op, drawn.weight.to(dtype))
    return RoundedMap(drawn, dtype)


def random_map(weight: Tensor, op: LinearOp, make: Maker) -> RandomMap:
    """Return a random map of a weight in torch's own shape."""
    return RandomMap(op, *make.learned(weight, op), make.choice.estimator)


def random_bias(bias: B, make: Maker) -> B | RandomMap:
    """Return a random map of one column for random biases; otherwise the bias itself."""
    if bias is None or make.choice.bias is None:
        return bias
    column = nn.Parameter(bias.detach().unsqueeze(-1), requires_grad=bias.requires_grad)
    return RandomMap(Linear(), *make.learned_bias(column), make.choice.estimator)


def plain_bias(bias: Tensor, members: int) -> nn.Parameter:
    """Return a bias ``[out]`` that is not random; each member of a mixture gets its own copy."""
    vector = bias.detach().clone()
    copies = vector.repeat(members, 1) if members > 1 else vector
    return nn.Parameter(copies, requires_grad=bias.requires_grad)


def refitted_bias(bias: nn.Parameter, members: int, name: str) -> nn.Parameter:
    """Resize a plain bias to another number of members; raise if they differ."""
    rows = bias.detach().reshape(-1, bias.shape[-1])
    if len(rows) == members:
        return bias
    require(
        bool((rows == rows[0]).all()),
        f"layer {name!r} has a bias for each of {len(rows)} members, which do not fit {members}; "
        "take one member with lb.deterministic(model, member=...) and convert that",
    )
    return plain_bias(nn.Parameter(rows[0], requires_grad=bias.requires_grad), members)


def bias_rows(bias: Tensor, batch: int) -> Tensor:
    """Return a plain bias for each example: ``[1, out]``, or ``[batch, out]`` for a mixture."""
    return bias.unsqueeze(0) if bias.ndim == 1 else in_blocks(bias, batch)


def point_bias(bias: RandomMap | nn.Parameter, member: int | None = None) -> nn.Parameter:
    """Return what :meth:`RandomMap.point` is for a weight, for a bias of any form."""
    if isinstance(bias, RandomMap):
        column = bias.point(member)
        return nn.Parameter(column.detach().squeeze(-1), requires_grad=column.requires_grad)
    vector = bias.detach()[member or 0] if bias.ndim == 2 else bias.detach()
    return nn.Parameter(vector, requires_grad=bias.requires_grad)


@register_layer(nn.Linear)
class Affine(RandomMap, Layer):
    """A random linear map and a bias: what linear, convolutional and embedding layers become.

    Args:
        op: action of the matrix on an input.
        posterior: the learned distribution of the matrix.
        prior: distribution that the posterior is compared with.
        bias: ``None``; a vector ``[out]`` (each member of a mixture gets its own copy); or a
            random map of one column, which is applied to the constant 1.
        estimator: rule for sharing noise.
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
        self.bias = plain_bias(bias, self.members) if isinstance(bias, Tensor) else bias

    @classmethod
    def op_of(cls, module: Any) -> LinearOp:
        """Return the op of a torch layer."""
        return Linear()

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, op: LinearOp, make: Maker) -> Self:
        """Return the layer of a weight in torch's own shape and a bias."""
        return cls(op, *make.learned(weight, op), random_bias(bias, make), make.choice.estimator)

    @classmethod
    def from_torch(cls, module: nn.Module, make: Maker) -> Self:
        tensors = dict(module.named_parameters())
        op = make.placed(cls.op_of(module))
        return cls.of(tensors["weight"], tensors.get("bias"), op, make)

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        weight = {"weight": self.point(member)}
        return weight if self.bias is None else weight | {"bias": point_bias(self.bias, member)}

    def forward(self, x: Tensor) -> Tensor:
        return self.transform(x, self.op)

    def transform(self, x: Tensor, op: LinearOp) -> Tensor:
        """Return the output of an op that may differ from the layer's in the output size."""
        op.check_input(x, self.channels)
        if not op.is_batched(x):
            dim = min(op.batch_dim, x.ndim - 1) if x.ndim else 0
            return self.transform(x.unsqueeze(dim), op).squeeze(dim)
        if self.members > 1:
            x = expand_to_batch(x, op, self.members)
        usage = self.usage(x, op)
        drawn, bias = self.draw(usage, op), self.bias
        if (
            isinstance(drawn, FixedMap | LocalMap)
            and isinstance(bias, nn.Parameter)
            and (bias.ndim, bias.dtype) == (1, x.dtype)  # a vector, which a product can add
        ):
            return drawn(x, bias)
        y = drawn(x)
        if bias is None:
            return y
        if isinstance(bias, RandomMap):
            draw = bias.draw(Usage(usage.batch, reused=False))
            rows = draw(y.new_ones(y.shape[op.batch_dim], 1))
        else:
            rows = bias_rows(bias, y.shape[op.batch_dim])
        return y + op.spread(rows, y.ndim).to(y.dtype)
