"""Recurrent cells: one time step of an LSTM, a GRU or an RNN, which the caller repeats."""

from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.layers.affine import Affine
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.layer_spec import Maker
from leanbayes.ops import Linear

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


STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": _lstm_step,
    "GRU": _gru_step,
    "RNN_TANH": lambda x, h, state: (torch.tanh(x + h),),
    "RNN_RELU": lambda x, h, state: (torch.relu(x + h),),
}
"""``(input part, hidden part, state) -> state`` of each mode."""


def initial_state(x: Tensor, hx: Tensor | State | None, *shapes: tuple[int, ...]) -> State:
    """Return the given state, which must have these shapes, or zeros like ``x``."""
    if hx is None:
        return tuple(x.new_zeros(shape) for shape in shapes)
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    given = len(state)
    require(given == len(shapes), f"a state of {given} tensors is given; {len(shapes)} needed")
    for size, shape in zip((tuple(tensor.shape) for tensor in state), shapes, strict=True):
        require(size == shape, f"a state has shape {size}; it must have {shape}")
    return state


@register_layer(nn.LSTMCell, nn.GRUCell, nn.RNNCell)
class Cell(Layer):
    """An LSTM, GRU or RNN cell with random weight matrices.

    A cell does not know where a sequence begins, so that every call draws again; under
    ``lb.held(model)`` and in ``lb.predict`` all steps of a sequence run with one draw, as those of
    ``nn.LSTM`` do.
    """

    input_size: int
    hidden_size: int

    def __init__(self, mode: str, ih: Affine, hh: Affine) -> None:
        super().__init__()
        self.mode = mode
        self.ih = ih
        self.hh = hh

    @classmethod
    def from_torch(cls, module: nn.RNNCellBase, make: Maker) -> Self:
        modes = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU"}
        rnn = f"RNN_{getattr(module, 'nonlinearity', '').upper()}"
        mode = next((m for kind, m in modes.items() if isinstance(module, kind)), rnn)
        pairs = ((module.weight_ih, module.bias_ih), (module.weight_hh, module.bias_hh))
        return cls(mode, *(Affine.of(*pair, Linear(), make) for pair in pairs))

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        ih, hh = self.ih.torch_tensors(member), self.hh.torch_tensors(member)
        return {f"{n}_ih": t for n, t in ih.items()} | {f"{n}_hh": t for n, t in hh.items()}

    def forward(self, x: Tensor, hx: Tensor | State | None = None) -> Tensor | State:
        shapes = [(*x.shape[:-1], self.hidden_size)] * (2 if self.mode == "LSTM" else 1)
        state = initial_state(x, hx, *shapes)
        state = STEPS[self.mode](self.ih(x), self.hh(state[0]), state)
        return state if self.mode == "LSTM" else state[0]
