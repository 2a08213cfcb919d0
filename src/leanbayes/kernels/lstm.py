"""An LSTM whose matrices meet rank-one factors: products of torch, one kernel for each step."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from leanbayes.distributions import FixedMap, Map
from leanbayes.distributions.base import rows_for
from leanbayes.distributions.factored import PerturbedMap
from leanbayes.kernels.dispatch import (
    EAGER,
    Computation,
    Saved,
    Tensors,
    Value,
    library,
    loaded,
    mode_of,
    pointer,
    product,
    products,
    run,
    threads,
)
from leanbayes.kernels.rank1 import ScaledMap
from leanbayes.precision import is_rounded

_BYTES = 4
_GATES = 4
_ROWS = 512
"""Rows of the input's product that are computed at once where no gradient needs all of them."""


class _Factored(NamedTuple):
    """A matrix ``r ∘ W ∘ s`` with factors for every example; either may be missing."""

    weight: Tensor
    r: Tensor | None
    s: Tensor | None


def _factored(drawn: Map, batch: int) -> _Factored | None:
    if isinstance(drawn, FixedMap):
        return _Factored(drawn.weight, None, None)
    if isinstance(drawn, ScaledMap):
        drawn = drawn.perturbed()
    if not isinstance(drawn, PerturbedMap) or drawn.add or batch % drawn.members:
        return None
    factors = (None if f is None else rows_for(f, batch) for f in (drawn.r, drawn.s))
    found = _Factored(drawn.weight, *factors)
    return found if all(f is None or len(f) == batch for f in found[1:]) else None


def factored_lstm(
    x: Tensor, maps: tuple[Map, Map], bias: Tensor | None, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, Tensor]] | None:
    """Run one direction of an LSTM; ``None`` if there is no kernel for these maps and tensors.

    Args:
        x: inputs ``[time, batch, in]``.
        maps: drawn maps of the input and of the hidden state.
        bias: ``[1 or batch, 4 hidden]``, the sum of both.
        state: first hidden state and cell.

    Returns:
        Outputs ``[time, batch, hidden]``, and the last hidden state and cell.
    """
    if mode_of(x, bias, *state) != EAGER or is_rounded(x) or x.numel() == 0:
        return None
    found = [_factored(drawn, x.shape[1]) for drawn in maps]
    if any(each is None for each in found):
        return None
    tensors = [x, *(t for each in found if each for t in each), bias, *state]
    dense = [None if t is None else t.contiguous() for t in tensors]
    # the kernel multiplies both products by factors or neither
    if library(*dense) is None or (dense[2] is None) != (dense[5] is None):
        return None
    y = run(_Lstm(keep=torch.is_grad_enabled()), *dense)
    return y[:-1], (y[-2], y[-1])


class _Lstm(Computation):
    """Hidden states of all steps and, in the last place, the last cell."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        r: Tensor | None,
        s: Tensor | None,
        state_weight: Tensor,
        state_r: Tensor | None,
        state_s: Tensor | None,
        bias: Tensor | None,
        h: Tensor,
        cell: Tensor,
    ) -> Value:
        (time, batch, _), n = x.shape, h.shape[1]
        steps = time if self.keep else min(time, -(-_ROWS // batch))
        y, gates = x.new_empty(time + 1, batch, n), x.new_empty(steps, batch, _GATES * n)
        cells = x.new_empty(steps + 1, batch, n)
        states = None if state_s is None else x.new_empty(steps + 1, batch, n)
        scaled = h if state_s is None else h * state_s
        met, first = list[Tensor](), scaled
        fixed = tuple(map(pointer, (r, state_r, bias, state_s)))
        sizes = (0 if bias is None else len(bias)), batch, n, threads(gates[0].numel())
        before, wide, narrow = cell.data_ptr(), _BYTES * gates[0].numel(), _BYTES * h.numel()
        multiply, outputs = products(batch, state_weight), y.unbind(0)
        later = outputs if states is None else states.unbind(0)
        for t in range(time):
            place, room = t % steps, t % (steps + 1)
            if place == 0:
                part = x[t : t + steps]
                inputs = product((part if s is None else part * s).flatten(0, 1), weight)
            p = multiply(scaled)
            scaled = later[t if states is None else room]
            to = (
                gates.data_ptr() + place * wide,
                cells.data_ptr() + room * narrow,
                y.data_ptr() + t * narrow,
                pointer(None if states is None else scaled),
            )
            own = inputs.data_ptr() + place * wide, p.data_ptr()
            loaded().lstm_forward(*own, *fixed, before, *to, *sizes)
            before = to[1]
            if self.keep and state_r is not None:
                met.append(p)
        y[-1] = cells[(time - 1) % (steps + 1)]
        return Value(y, None, (inputs, gates, cells, first, states, y, *met))

    def backward(self, g: Tensor, call: Saved) -> Tensors:
        x, weight, r, s, state_weight, state_r, state_s, bias, h, cell = call.tensors
        inputs, gates, cells, first, states, y, *met = call.kept
        (time, batch, _), n = x.shape, h.shape[1]
        g, gcell = g.contiguous(), g[-1].clone()
        ginputs = torch.empty_like(inputs).view(time, batch, -1)
        gproducts = ginputs if state_r is None else torch.empty_like(ginputs)
        sums = [
            None if factor is None else x.new_zeros(batch, factor.shape[1])
            for factor in (r, state_r, bias, state_s)
        ]
        fixed, totals = tuple(map(pointer, (r, state_r, state_s))), tuple(map(pointer, sums))
        sizes = batch, n, threads(gates[0].numel())
        wide, narrow = _BYTES * gates[0].numel(), _BYTES * h.numel()
        later: Tensor | None = None
        multiply, each = products(batch, state_weight.t()), gproducts.unbind(0)
        for t in reversed(range(time)):
            before = cells.data_ptr() + (t - 1) * narrow if t else cell.data_ptr()
            loaded().lstm_backward(
                inputs.data_ptr() + t * wide,
                met[t].data_ptr() if met else None,
                *fixed,
                g.data_ptr() + t * narrow,
                pointer(later),
                before,
                gates.data_ptr() + t * wide,
                cells.data_ptr() + t * narrow,
                y.data_ptr() + t * narrow,
                gcell.data_ptr(),
                ginputs.data_ptr() + t * wide,
                gproducts.data_ptr() + t * wide,
                *totals,
                *sizes,
            )
            later = multiply(each[t])
        assert later is not None
        gr, gstate_r, gbias, gstate_s = sums
        gh = later if state_s is None else later * state_s
        if gstate_s is not None:
            gstate_s.addcmul_(later, h)
        hidden = torch.cat((first[None], (y if states is None else states)[: time - 1]))
        gweight = ginputs.flatten(0, 1).t() @ (x if s is None else x * s).flatten(0, 1)
        gstate_weight = gproducts.flatten(0, 1).t() @ hidden.flatten(0, 1)
        gx = gs = None
        if call.needed[0] or s is not None:
            gx = product(ginputs.flatten(0, 1), weight.t()).view_as(x)
            gs = None if s is None else (gx * x).sum(0)
            gx = gx if s is None else gx.mul_(s)
        gbias = None if gbias is None else gbias.sum_to_size(bias.shape)
        return gx, gweight, gr, gs, gstate_weight, gstate_r, gstate_s, gbias, gh, gcell

    def plain(self, e: Any, *tensors: Any) -> Tensor:
        x, weight, r, s, state_weight, state_r, state_s, bias, h, c = tensors
        outputs = []
        for step in x:
            a = (step if s is None else step * s) @ weight.t()
            b = (h if state_s is None else h * state_s) @ state_weight.t()
            a = (a if r is None else a * r) + (b if state_r is None else b * state_r)
            i, f, u, o = (a if bias is None else a + bias).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack([*outputs, c])
