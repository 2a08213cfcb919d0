"""Sums, products and averages, and functions that move numbers: reshapes, indexing, joins.

Different activations count as independent: a residual sum adds variances, although both branches
come from the same activations. Only an activation that meets itself, as in ``x + x`` or ``x * x``,
is treated exactly.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.prediction.one_pass.gaussian import Uncertain, named, need, register_moments

_MOVES = """
    flatten unflatten reshape view view_as reshape_as transpose permute movedim swapaxes swapdims
    unsqueeze squeeze expand expand_as contiguous narrow select chunk split unbind flip roll
    repeat repeat_interleave index_select t detach clone to float double type_as
    tile __getitem__ broadcast_to gather pixel_shuffle pixel_unshuffle moveaxis
"""


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(x: Uncertain, *args: Any, **kwargs: Any) -> Any:
        need(isinstance(x, Uncertain), f"{function.__name__} has a random index or shape")
        plain = [arg.loc if isinstance(arg, Uncertain) else arg for arg in args]
        return x.each(function, *plain, **kwargs)

    return rule


for _function in named(_MOVES):
    register_moments(_function)(_each(_function))


def as_gaussian(x: Uncertain | Tensor) -> Uncertain:
    """Give numbers without noise a variance of zero."""
    return x if isinstance(x, Uncertain) else Uncertain(x, torch.zeros_like(x))


def _joined(join: Callable[..., Tensor]) -> Callable[..., Uncertain]:
    def rule(tensors: Sequence[Uncertain | Tensor], dim: int = 0) -> Uncertain:
        parts = [as_gaussian(x) for x in tensors]
        locs, variances = [x.loc for x in parts], [x.variance for x in parts]
        return Uncertain(join(locs, dim), join(variances, dim))

    return rule


register_moments(torch.cat, torch.concat, torch.concatenate)(_joined(torch.cat))
register_moments(torch.stack)(_joined(torch.stack))


@register_moments(*named("where"))
def where(condition: Tensor, x: Uncertain | Tensor, y: Uncertain | Tensor) -> Uncertain:
    """Choose by a condition that is not random."""
    need(isinstance(condition, Tensor), "where has a random condition")
    like = x if isinstance(x, Uncertain) else y
    a, b = (
        as_gaussian(torch.as_tensor(z).to(like.dtype) if not isinstance(z, Uncertain) else z)
        for z in (x, y)
    )
    return Uncertain(
        torch.where(condition, a.loc, b.loc), torch.where(condition, a.variance, b.variance)
    )


@register_moments(*named("masked_fill"))
def masked_fill(x: Uncertain, mask: Tensor, value: float | Tensor) -> Uncertain:
    """Replace some numbers by a constant without variance."""
    need(isinstance(x, Uncertain) and isinstance(mask, Tensor), "masked_fill has a random mask")
    return Uncertain(x.loc.masked_fill(mask, value), x.variance.masked_fill(mask, 0.0))


for _maker in (torch.zeros_like, torch.ones_like, torch.full_like):
    register_moments(_maker)(lambda x, *a, _maker=_maker, **k: _maker(x.loc, *a, **k))


@register_moments(F.pad)
def pad(
    x: Uncertain, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Uncertain:
    """Add constants without variance at the borders."""
    return Uncertain(F.pad(x.loc, pad, mode, value), F.pad(x.variance, pad, mode))


Value = Uncertain | Tensor | float


def _broadcast(x: Uncertain, loc: Tensor) -> Uncertain:
    return Uncertain(loc, x.variance.expand_as(loc))


@register_moments(*named("add __add__ __radd__"))
def add(a: Value, b: Value, *, alpha: float = 1) -> Uncertain:
    """Return ``Var(a + αb) = Var a + α² Var b``."""
    if a is b and isinstance(a, Uncertain):
        return Uncertain((1 + alpha) * a.loc, (1 + alpha) ** 2 * a.variance)
    if isinstance(a, Uncertain) and isinstance(b, Uncertain):
        return Uncertain(
            torch.add(a.loc, b.loc, alpha=alpha),
            torch.add(a.variance, b.variance, alpha=alpha**2),
        )
    if isinstance(a, Uncertain):
        return _broadcast(a, a.loc + alpha * b)  # type: ignore[operator]
    assert isinstance(b, Uncertain)
    return _broadcast(Uncertain(b.loc, alpha**2 * b.variance), a + alpha * b.loc)


@register_moments(*named("neg __neg__"))
def neg(x: Uncertain) -> Uncertain:
    """Return the same variance."""
    return Uncertain(-x.loc, x.variance)


@register_moments(*named("sub __sub__"))
def sub(a: Value, b: Value, *, alpha: float = 1) -> Uncertain:
    """Return a sum with the negative."""
    return add(a, b, alpha=-alpha)


@register_moments(*named("rsub __rsub__"))
def rsub(a: Value, b: Value) -> Uncertain:
    """Return ``b − a``."""
    return sub(b, a)


@register_moments(*named("mul multiply __mul__ __rmul__"))
def mul(a: Value, b: Value) -> Uncertain:
    """Return ``Var(ab) = m_a² v_b + v_a m_b² + v_a v_b`` for independent factors."""
    if a is b and isinstance(a, Uncertain):
        return square(a)
    if isinstance(a, Uncertain) and isinstance(b, Uncertain):
        spread = (a.loc.square() + a.variance) * b.variance + a.variance * b.loc.square()
        return Uncertain(a.loc * b.loc, spread)
    x, c = (a, b) if isinstance(a, Uncertain) else (b, a)
    assert isinstance(x, Uncertain)
    return Uncertain(x.loc * c, x.variance * (c * c))  # type: ignore[operator]


@register_moments(*named("square"))
def square(x: Uncertain) -> Uncertain:
    """Return ``E = m² + v`` and ``Var = 2v² + 4m²v``."""
    m2 = x.loc.square()
    return Uncertain(m2 + x.variance, x.variance * (2 * x.variance + 4 * m2))


@register_moments(*named("pow __pow__"))
def power(x: Value, exponent: Value) -> Uncertain:
    """Return squares only."""
    need(isinstance(x, Uncertain) and bool(exponent == 2), "only the square has a rule")
    assert isinstance(x, Uncertain)
    return square(x)


@register_moments(*named("div __truediv__"))
def div(x: Value, c: Value) -> Uncertain:
    """Return division by a constant."""
    need(isinstance(x, Uncertain) and not isinstance(c, Uncertain), "a random divisor has no rule")
    assert isinstance(x, Uncertain)
    return Uncertain(x.loc / c, x.variance / (c * c))  # type: ignore[operator]


def _in_place(rule: Callable[..., Uncertain]) -> Callable[..., Uncertain]:
    def assigned(x: Value, *args: Any, **kwargs: Any) -> Uncertain:
        need(isinstance(x, Uncertain), "noise is written into a tensor without it")
        assert isinstance(x, Uncertain)
        return x.assign(rule(x, *args, **kwargs))

    return assigned


for _names, _rule in (
    ("add_ __iadd__", add),
    ("sub_ __isub__", sub),
    ("mul_ __imul__", mul),
    ("div_ __itruediv__", div),
):
    register_moments(*named(_names))(_in_place(_rule))


@register_moments(*named("sum"))
def total(x: Uncertain, dim: Any = None, keepdim: bool = False) -> Uncertain:
    """Return sums of independent activations."""
    return x.each(torch.sum, dim, keepdim)


@register_moments(*named("mean"))
def average(x: Uncertain, dim: Any = None, keepdim: bool = False) -> Uncertain:
    """Return averages of independent activations."""
    dims: Sequence[int] = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    count = math.prod(x.shape[d] for d in dims)
    return div(total(x, tuple(dims), keepdim), count)


@register_moments(*named("matmul __matmul__ bmm mm"))
def matmul(a: Uncertain | Tensor, b: Uncertain | Tensor) -> Uncertain:
    """Return products of matrices with independent entries."""
    if isinstance(a, Uncertain) and isinstance(b, Uncertain):
        x, y = a, b
        spread = (x.loc.square() + x.variance) @ y.variance + x.variance @ y.loc.square()
        return Uncertain(x.loc @ y.loc, spread)
    if isinstance(a, Uncertain):
        assert isinstance(b, Tensor)
        return Uncertain(a.loc @ b, a.variance @ b.square())
    assert isinstance(b, Uncertain)
    return Uncertain(a @ b.loc, a.square() @ b.variance)


@register_moments(*named("__rmatmul__"))
def rmatmul(b: Uncertain, a: Tensor) -> Uncertain:
    """Return ``a @ b``."""
    return matmul(a, as_gaussian(b))
