"""Functions that keep the rows of a batch apart, each with a rule that says how.

A rule says which dimension of the output counts rows, and refuses arguments with which the function
would mix them. The table is closed: what is not in it is taken to mix rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class UnprovenError(Exception):
    """No proof that the examples of a batch do not interact: the reason, without a full stop."""


def require_proof(condition: bool, why: str) -> None:
    """Raise :class:`UnprovenError` unless a condition holds."""
    if not condition:
        raise UnprovenError(why)


class Call(NamedTuple):
    """A call of a function that meets rows.

    Attributes:
        args: its arguments.
        kwargs: its named arguments.
        rows: the tensors that have rows, with the dimension that counts them.
        constants: the other tensors.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    rows: Sequence[tuple[Tensor, int]]
    constants: Sequence[Tensor]

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place or name."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)

    @property
    def only(self) -> tuple[Tensor, int]:
        """The first argument, if it alone has rows."""
        first = self.argument(0, "input")
        require_proof(
            len(self.rows) == 1 and self.rows[0][0] is first, "has examples in another argument"
        )
        return self.rows[0]

    @property
    def from_right(self) -> int:
        """Where rows are, counted from the last dimension; constants must be equal for all."""
        places = {tensor.ndim - dim for tensor, dim in self.rows}
        require_proof(len(places) == 1, "has examples in different dimensions")
        place = places.pop()
        equal = (t.ndim < place or t.shape[-place] == 1 for t in self.constants)
        require_proof(all(equal), "meets a constant that differs between examples")
        return place


Rule = Callable[[Call, Tensor], int]
"""Which dimension of the output counts rows."""


def elementwise(call: Call, y: Tensor) -> int:
    """Return functions of single numbers, with broadcasting."""
    return y.ndim - call.from_right


def _along(place: int, default: int | None = None, name: str = "dim") -> Rule:
    """Return functions along dimensions that do not count rows, which they may remove."""

    def rule(call: Call, y: Tensor) -> int:
        x, dim = call.only
        given = call.argument(place, name, default)
        dims = given if isinstance(given, tuple | list) else (given,)
        require_proof(
            all(type(d) is int for d in dims) and len(dims) > 0, "reduces all dimensions at once"
        )
        others = {d % x.ndim for d in dims}
        require_proof(dim not in others, "acts along the examples")
        return dim if y.ndim == x.ndim else dim - sum(d < dim for d in others)

    return rule


def _leading(call: Call, y: Tensor) -> int:
    """Return reshapes that leave the dimensions up to the rows as they are."""
    x, dim = call.only
    require_proof(x.shape[: dim + 1] == y.shape[: dim + 1], "reshapes the examples")
    return dim


def _windows(dims: int) -> Rule:
    """Return convolutions and pooling over ``dims`` dimensions of ``[rows, channels, …]``."""

    def rule(call: Call, y: Tensor) -> int:
        x, dim = call.only
        require_proof(dim == 0 and x.ndim == dims + 2, "does not have the examples as its batch")
        return 0

    return rule


def _last(count: Callable[[Call], int]) -> Rule:
    """Return functions of the last dimensions."""

    def rule(call: Call, y: Tensor) -> int:
        x, dim = call.only
        require_proof(dim < x.ndim - count(call), "acts along the examples")
        return dim

    return rule


def _dropout(call: Call, y: Tensor) -> int:
    require_proof(call.argument(2, "training", True) is False, "draws noise by dropout")
    return call.only[1]


def _channels(call: Call, y: Tensor) -> int:
    """Return functions of ``[rows, channels, …]`` with a constant for each channel."""
    x, dim = call.only
    require_proof(dim == 0 and x.ndim > 1, "does not have the examples as its batch")
    return 0


def _batch_norm(call: Call, y: Tensor) -> int:
    require_proof(call.argument(5, "training", False) is False, "uses statistics of the batch")
    return _channels(call, y)


def _permuted(function: Callable[..., Tensor]) -> Rule:
    """Reorderings of dimensions, tried on a tensor that is long in the dimension of rows only."""

    def rule(call: Call, y: Tensor) -> int:
        x, dim = call.only
        probe = torch.empty([2 if d == dim else 1 for d in range(x.ndim)], device="meta")
        return function(probe, *call.args[1:], **call.kwargs).shape.index(2)

    return rule


def _indexed(call: Call, y: Tensor) -> int:
    """Return basic indexing of dimensions that do not count rows."""
    x, dim = call.only
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    basic = (item is None or item is ... or type(item) in (int, slice) for item in index)
    require_proof(all(basic), "picks examples by an index")
    axis, place, taken = 0, 0, sum(item is not None and item is not ... for item in index)
    for item in (*index, *(() if ... in index else (...,))):
        if item is ...:
            free = x.ndim - taken
            if axis <= dim < axis + free:
                return place + dim - axis
            axis, place = axis + free, place + free
        elif axis == dim and item is not None:
            require_proof(item == slice(None), "picks some of the examples")
            return place
        else:
            axis, place = axis + (item is not None), place + (type(item) is not int)
    raise UnprovenError("loses the examples")


def _joined(call: Call, y: Tensor) -> int:
    """Return concatenation and stacks: all parts have rows, in the same place."""
    places = {dim for _, dim in call.rows}
    require_proof(len(places) == 1 and not call.constants, "joins a part without examples")
    dim = places.pop()
    along = call.argument(1, "dim", 0) % y.ndim
    if y.ndim == call.rows[0][0].ndim:
        require_proof(along != dim, "acts along the examples")
        return dim
    return dim + (along <= dim)


def _product(call: Call, y: Tensor) -> int:
    """Matrix products: rows are not a dimension that is added up."""
    a, b = call.args
    require_proof(isinstance(b, Tensor) and min(a.ndim, b.ndim) > 1, "multiplies by a vector")
    place = call.from_right if len(call.rows) == 2 else call.rows[0][0].ndim - call.rows[0][1]
    if place > 2:
        return elementwise(call, y)
    require_proof(len(call.rows) == 1, "multiplies examples by examples")
    require_proof(place == (2 if call.rows[0][0] is a else 1), "sums over examples")
    return y.ndim - place


def _attention(call: Call, y: Tensor) -> int:
    """Scaled dot products of ``[…, steps, features]``: rows are before both, and nothing drops."""
    require_proof(call.argument(4, "dropout_p", 0.0) == 0.0, "draws noise by dropout")
    heads = 1 if call.argument(7, "enable_gqa", False) else 0
    require_proof(call.from_right > 2 + heads, "attends over examples")
    return elementwise(call, y)


def functions(names: str) -> Iterator[Callable[..., Any]]:
    """Torch's functions and methods of these names."""
    for name in names.split():
        for owner in (torch, Tensor, F):
            function = getattr(owner, name, None)
            if function is not None:
                yield function


def getters(names: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions that read these attributes of a tensor."""
    for name in names.split():
        yield getattr(Tensor, name).__get__


_ELEMENTWISE = """
    relu relu6 elu selu celu gelu silu mish leaky_relu softplus softsign tanh sigmoid tanhshrink
    logsigmoid hardtanh hardswish hardsigmoid hardshrink softshrink threshold
    add sub subtract mul multiply div divide true_divide pow square sqrt rsqrt exp expm1 log log1p
    abs neg negative sign sin cos erf reciprocal clamp clip clamp_min clamp_max maximum minimum
    where masked_fill lerp addcmul addcdiv nan_to_num logit atan remainder floor ceil round trunc
    eq ne lt le gt ge logical_and logical_or logical_not isnan isfinite isinf
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__ __rdiv__
    __pow__ __rpow__ __neg__ __abs__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __and__ __or__ __xor__ __invert__
    float double half bfloat16 bool int long to clone detach contiguous
    expand broadcast_to expand_as zeros_like ones_like full_like empty_like
"""
_IN_PLACE = " ".join(f"{name}_" for name in _ELEMENTWISE.split() if not name.startswith("_"))

ROW_WISE: dict[Callable[..., Any], Rule] = {
    **dict.fromkeys(functions(_ELEMENTWISE + _IN_PLACE), elementwise),
    **dict.fromkeys(functions("softmax log_softmax softmin sum mean amax amin prod"), _along(1)),
    **dict.fromkeys(functions("logsumexp cumsum cumprod var std argmax argmin any all"), _along(1)),
    **dict.fromkeys(functions("max min flip"), _along(1)),
    **dict.fromkeys(functions("select narrow squeeze"), _along(1)),
    **dict.fromkeys(functions("glu sort argsort"), _along(1, -1)),
    **dict.fromkeys(functions("chunk split tensor_split"), _along(2, 0)),
    **dict.fromkeys(functions("topk"), _along(2, -1)),
    **dict.fromkeys(functions("normalize"), _along(2, 1)),
    **dict.fromkeys(functions("unbind"), _along(1, 0)),
    **dict.fromkeys(functions("flatten unflatten view reshape unsqueeze embedding"), _leading),
    **{f: _permuted(f) for f in functions("transpose permute movedim moveaxis swapaxes t")},
    **{f: _permuted(f) for f in getters("mT T")},
    **dict.fromkeys(functions("conv1d conv_transpose1d max_pool1d avg_pool1d"), _windows(1)),
    **dict.fromkeys(functions("conv2d conv_transpose2d max_pool2d avg_pool2d"), _windows(2)),
    **dict.fromkeys(functions("conv3d conv_transpose3d max_pool3d avg_pool3d"), _windows(3)),
    **dict.fromkeys(functions("adaptive_avg_pool1d adaptive_max_pool1d"), _windows(1)),
    **dict.fromkeys(
        functions("adaptive_avg_pool2d adaptive_max_pool2d pixel_shuffle"), _windows(2)
    ),
    **dict.fromkeys(functions("adaptive_avg_pool3d adaptive_max_pool3d"), _windows(3)),
    **dict.fromkeys(functions("interpolate group_norm prelu"), _channels),
    **dict.fromkeys(functions("linear"), _last(lambda call: 1)),
    **dict.fromkeys(
        functions("layer_norm rms_norm"),
        _last(lambda call: len(call.argument(1, "normalized_shape"))),
    ),
    **dict.fromkeys(functions("pad"), _last(lambda call: len(call.argument(1, "pad")) // 2)),
    **dict.fromkeys(functions("dropout dropout1d dropout2d dropout3d alpha_dropout"), _dropout),
    **dict.fromkeys(functions("batch_norm"), _batch_norm),
    **dict.fromkeys(functions("matmul bmm mm __matmul__"), _product),
    **dict.fromkeys(functions("scaled_dot_product_attention"), _attention),
    **dict.fromkeys(functions("cat concat concatenate stack"), _joined),
    Tensor.__getitem__: _indexed,
}
"""Every function that may meet rows. ``ROW_WISE[function] = elementwise`` adds one."""

BEFORE_NOISE: frozenset[Callable[..., Any]] = frozenset(functions("scaled_dot_product_attention"))
"""What torch cannot run for several samples at once: only what has no noise yet may meet it."""
