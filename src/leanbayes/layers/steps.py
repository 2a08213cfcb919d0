"""One time step of an LSTM, a GRU and an RNN, by the name that torch gives the mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leanbayes.errors import require

__all__ = ["STEPS", "State", "initial_state"]

State = tuple[Tensor, ...]


def _lstm_step(x: Tensor, h: Tensor, state: State) -> State:
    i, f, g, o = (x + h).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(x: Tensor, h: Tensor, state: State) -> State:
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = h.chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * state[0],)


def _tanh_step(x: Tensor, h: Tensor, state: State) -> State:
    return (torch.tanh(x + h),)


def _relu_step(x: Tensor, h: Tensor, state: State) -> State:
    return (torch.relu(x + h),)


STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": _lstm_step,
    "GRU": _gru_step,
    "RNN_TANH": _tanh_step,
    "RNN_RELU": _relu_step,
}
"""``(input part, hidden part, state) -> state`` of each mode."""


def initial_state(x: Tensor, hx: Tensor | State | None, *shapes: tuple[int, ...]) -> State:
    """The given state, which must have these shapes; zeros like ``x`` where none is given."""
    if hx is None:
        return tuple(x.new_zeros(shape) for shape in shapes)
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    require(
        len(state) == len(shapes), f"a state of {len(state)} tensors is given; {len(shapes)} needed"
    )
    for tensor, shape in zip(state, shapes, strict=True):
        require(
            tuple(tensor.shape) == shape,
            f"a state has shape {tuple(tensor.shape)}; it must have {shape}",
        )
    return state
