"""Functions that move numbers: reshapes, indexing, joins and splits."""

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
