"""Rules of the operations that channels are followed through, as a closed table.

A rule says which channels an output has, given those of the input, and what becomes of constants.
What is not in the table is not followed: the tensors that it meets keep all their channels.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from leanbayes.compression.compaction.channels import Channels, ensure, joined
from leanbayes.prediction.vectorized.batch_rules import functions

BATCH_SIZE = object()
"""What stands for the number of examples of a batch."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of an operation, with what is known of its arguments."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    function: Any

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place or name."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)

    @property
    def input(self) -> Channels:
        """The first argument, if nothing else is a tensor."""
        x = self.argument(0, "input")
        ensure(isinstance(x, Channels), "its input is not a tensor with known channels")
        others = [*self.args[1:], *(v for k, v in self.kwargs.items() if k != "input")]
        ensure(not any(isinstance(v, Channels | fx.Node) for v in others), "it has several tensors")
        made: Channels = x
        return made

    def options(self, *names: str) -> dict[str, Any]:
        """Return the options of a function or module by name, in the order of the function."""
        if isinstance(self.function, nn.Module):
            return {name: getattr(self.function, name, None) for name in names}
        return {name: self.argument(i + 1, name) for i, name in enumerate(names)}


Rule = Callable[[Operation], Channels]


def _elementwise(call: Operation) -> Channels:
    """Return a function of single numbers: constants stay constants."""
    x = call.input
    with torch.no_grad():
        if isinstance(call.function, str):
            values = getattr(x.values.clone(), call.function)(*call.args[1:], **call.kwargs)
        elif isinstance(call.function, nn.Module):
            values = call.function(x.values.clone())
        else:
            options = {k: v for k, v in call.kwargs.items() if k != "input"}
            values = call.function(x.values.clone(), *call.args[1:], **options)
    return x.with_values(values)


def _same(call: Operation) -> Channels:
    """Return what does nothing in eval mode."""
    return call.input


def _same_function(call: Operation) -> Channels:
    ensure(call.argument(2, "training", True) is False, "it drops in eval mode too")
    return call.input


def _parametric(call: Operation) -> Channels:
    ensure(call.function.num_parameters == 1, "it has a slope for each channel")
    return call.input.with_values(F.prelu(call.input.values, call.function.weight.double().cpu()))


def _batch_norm(call: Operation) -> Channels:
    """Return ``(x − mean) / √(variance + ε) · weight + bias``, with the running statistics."""
    norm: Any = call.function
    x = call.input.with_features(norm.num_features)
    ensure(norm.running_mean is not None, "it normalizes by each batch")
    ensure(x.rank is not None, "the rank of its input is not known; give compact an example")
    ensure(x.rank == 2 or (x.rank in _RANKS[type(norm)] and not x.last), "it meets no channels")
    numbers = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    mean, variance, weight, bias = (
        None if t is None else t.detach().double().cpu() for t in numbers
    )
    assert mean is not None
    assert variance is not None
    values = (x.values - mean) * (variance + norm.eps).rsqrt()
    values = values if weight is None else values * weight
    return x.with_values(values if bias is None else values + bias)


BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_RANKS: dict[type[nn.Module], tuple[int, ...]] = {
    nn.BatchNorm1d: (3,),
    nn.BatchNorm2d: (4,),
    nn.BatchNorm3d: (5,),
}


def _positions(x: Channels, dims: int) -> Channels:
    ensure(x.rank == dims + 2 and not x.last, "it meets no channels with positions")
    return x


def _max_pool(dims: int) -> Rule:
    return _pool(dims, "kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _adaptive_pool(dims: int) -> Rule:
    return _pool(dims, "output_size")


def _pool(dims: int, *names: str) -> Rule:
    """Return a constant stays one, whatever the options with these names."""

    def rule(call: Operation) -> Channels:
        indices = call.options(*names, "return_indices")["return_indices"]
        ensure(not indices, "it returns indices")
        return _positions(call.input, dims)

    return rule


def _average_pool(dims: int) -> Rule:
    """A constant stays one unless zeros are padded, or the sum is divided by something else."""

    def rule(call: Operation) -> Channels:
        names = ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"]
        options = call.options(*names, "divisor_override")
        x, padding = _positions(call.input, dims), options["padding"]
        widths = padding if isinstance(padding, tuple | list) else (padding or 0,)
        exact = not any(widths) or options["count_include_pad"] is False
        exact = exact and options["divisor_override"] is None
        return x if exact else x.with_values(x.values, x.constant & (x.values == 0))

    return rule


def _mean(call: Operation) -> Channels:
    """Return the mean over all positions."""
    x, dim = call.input, call.argument(1, "dim")
    keepdim = call.argument(2, "keepdim", False)
    ensure(x.rank is not None and x.rank > 2 and not x.last, "it meets no channels with positions")
    rank = x.rank or 0
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    ensure(all(type(d) is int for d in dims), "it is over all dimensions")
    ensure(sorted(d % rank for d in dims) == list(range(2, rank)), "it is not over all positions")
    return x if keepdim else replace(x, rank=2)


def _flatten(call: Operation) -> Channels:
    start, end = call.options("start_dim", "end_dim").values()
    ensure((start or 0, -1 if end is None else end) == (1, -1), "it does not flatten from 1 to -1")
    return _flat(call.input)


def _view(call: Operation) -> Channels:
    """Return ``x.view(x.size(0), -1)``: the size of the batch, and everything else."""
    sizes = call.args[1] if isinstance(call.args[1], tuple | list) else call.args[1:]
    known = len(sizes) == 2 and sizes[0] is BATCH_SIZE and sizes[1] == -1
    ensure(known, "it has fixed sizes; write flatten(1)")
    return _flat(replace(call, args=call.args[:1]).input)


def _flat(x: Channels) -> Channels:
    if x.rank == 2 or x.flattened:
        return x
    return replace(x, rank=2, flattened=True)


def _sum(call: Operation) -> Channels:
    ensure(len(call.args) == 2 and not call.kwargs, "it is not a plain sum of two tensors")
    ensure(all(isinstance(x, Channels) for x in call.args), "a summand has no known channels")
    return joined(call.args)


_ACTIVATIONS = """
    relu relu6 elu selu celu gelu silu mish leaky_relu softplus softsign tanh sigmoid tanhshrink
    logsigmoid hardtanh hardswish hardsigmoid hardshrink softshrink threshold
"""
_ELEMENTWISE_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.LeakyReLU),
    *(nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.Tanhshrink, nn.LogSigmoid, nn.Hardtanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink, nn.Threshold),
)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def _numbered(name: str, rule: Callable[[int], Rule]) -> Iterator[tuple[Any, Rule]]:
    """Classes or functions for one, two and three dimensions."""
    owner: Any = nn if name[0].isupper() else F
    return ((getattr(owner, f"{name}{dims}d"), rule(dims)) for dims in (1, 2, 3))


MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(_ELEMENTWISE_MODULES, _elementwise),
    **dict.fromkeys((nn.Identity, *_DROPOUTS), _same),
    **dict.fromkeys(_RANKS, _batch_norm),
    nn.PReLU: _parametric,
    nn.Flatten: _flatten,
    **dict(_numbered("MaxPool", _max_pool)),
    **dict(_numbered("AvgPool", _average_pool)),
    **dict(_numbered("AdaptiveAvgPool", _adaptive_pool)),
    **dict(_numbered("AdaptiveMaxPool", _adaptive_pool)),
}
"""Modules of exactly these classes; layers with weights have separate rules."""

FUNCTIONS: dict[Callable[..., Any], Rule] = {
    **dict.fromkeys(functions(_ACTIVATIONS), _elementwise),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), _same_function),
    **dict.fromkeys((operator.add, operator.iadd, torch.add), _sum),
    **dict(_numbered("max_pool", _max_pool)),
    **dict(_numbered("avg_pool", _average_pool)),
    **dict(_numbered("adaptive_avg_pool", _adaptive_pool)),
    **dict(_numbered("adaptive_max_pool", _adaptive_pool)),
    torch.flatten: _flatten,
    torch.mean: _mean,
}
"""Functions, as a traced graph has them."""

METHODS: dict[str, Rule] = {
    **{name: _elementwise for name in _ACTIVATIONS.split() if hasattr(Tensor, name)},
    "add": _sum,
    "flatten": _flatten,
    "view": _view,
    "reshape": _view,
    "mean": _mean,
    "contiguous": _same,
}
"""Methods of tensors, by name."""


VIEWS = {
    *(nn.Identity, nn.Flatten, *_DROPOUTS),
    *(torch.flatten, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
    *("flatten", "view", "reshape", "contiguous"),
}
"""What may give back the memory of its input."""


def works_in_place(call: Operation) -> bool:
    """Return whether an operation of the table writes into its input."""
    if call.function is operator.iadd or call.kwargs.get("inplace"):
        return True
    return isinstance(call.function, nn.Module) and bool(getattr(call.function, "inplace", False))
