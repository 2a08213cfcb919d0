"""Recurrent cells: one time step, which the caller repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import Tensor, nn

from leanbayes.layers.affine import Affine
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.choice import Maker
from leanbayes.layers.steps import STEPS, State, initial_state
from leanbayes.ops import Linear

__all__ = ["Cell"]


@register_layer(nn.LSTMCell, nn.GRUCell, nn.RNNCell)
class Cell(Layer):
    """An LSTM, GRU or RNN cell with random weight matrices.

    A cell does not know where a sequence begins, so that every call draws anew; under
    ``lb.held(model)`` all steps of a sequence run with one draw, as those of ``nn.LSTM`` do.

    Args:
        mode: which step, by torch's name of the mode (``"LSTM"``, ``"GRU"``, ``"RNN_TANH"``, …).
        ih: acts on the input.
        hh: acts on the hidden state.
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
        ih = Affine.of(module.weight_ih, module.bias_ih, Linear(), make)
        return cls(mode, ih, Affine.of(module.weight_hh, module.bias_hh, Linear(), make))

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        parts = {"ih": self.ih, "hh": self.hh}
        return {
            f"{tensor}_{part}": value
            for part, affine in parts.items()
            for tensor, value in affine.torch_tensors(member).items()
        }

    def forward(self, x: Tensor, hx: Tensor | State | None = None) -> Tensor | State:
        shapes = [(*x.shape[:-1], self.hidden_size)] * (2 if self.mode == "LSTM" else 1)
        state = initial_state(x, hx, *shapes)
        state = STEPS[self.mode](self.ih(x), self.hh(state[0]), state)
        return state if self.mode == "LSTM" else state[0]
