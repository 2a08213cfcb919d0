"""Recurrent networks: random maps drawn once a sequence and applied at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from leanbayes.distributions import FixedMap, Map
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.cells import STEPS, State, initial_state
from leanbayes.layers.choice import Maker
from leanbayes.layers.random_map import RandomMap, bias_rows, plain_bias, point_bias
from leanbayes.ops import Linear, Usage

__all__ = ["Recurrent"]

_FUSED: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


@register_layer(nn.LSTM, nn.GRU, nn.RNN)
class Recurrent(Layer):
    """A (stacked, bidirectional) LSTM, GRU or RNN with random weight matrices.

    The maps are drawn once and used at all time steps. One weight matrix for the whole batch runs
    in torch's fused kernel; noise per example (``flipout``, rank-one factors) in a loop over time.

    Args:
        order: the names of each layer's and direction's weights and biases, as torch orders them.
        maps: a random map for each weight matrix, by torch's name (``weight_ih_l0``, …), and for
            each bias that is random.
        biases: the other biases, by torch's name.
    """

    mode: str
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool

    def __init__(
        self,
        order: Sequence[Sequence[str]],
        maps: Mapping[str, RandomMap],
        biases: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.order = [list(names) for names in order]
        self.maps = nn.ModuleDict(maps)
        self.members = max(m.members for m in maps.values())
        for name, bias in biases.items():
            self.register_parameter(name, plain_bias(bias, self.members))

    @classmethod
    def from_torch(cls, module: nn.RNNBase, make: Maker) -> Self:
        maps: dict[str, RandomMap] = {}
        biases: dict[str, Tensor] = {}
        for name, tensor in module.named_parameters():
            is_weight = name.startswith("weight")
            part = make.map(tensor, Linear()) if is_weight else make.bias(tensor)
            if isinstance(part, RandomMap):
                maps[name] = part
            else:
                biases[name] = part
        return cls(module._all_weights, maps, biases)

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        tensors: dict[str, Tensor | None] = {}
        for name in (name for names in self.order for name in names):
            if name.startswith("weight"):
                tensors[name] = self.map(name).point(member)
            else:
                bias = self.map(name) if name in self.maps else self.get_parameter(name)
                tensors[name] = point_bias(bias, member)
        return tensors

    def map(self, name: str) -> RandomMap:
        """The random map of a weight or bias, by torch's name."""
        module = self.maps[name]
        assert isinstance(module, RandomMap)
        return module

    def flatten_parameters(self) -> None:
        """Do nothing: weights are drawn anew for every sequence."""

    def forward(
        self, x: Tensor | PackedSequence, hx: Tensor | State | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor | State]:
        if isinstance(x, PackedSequence):
            return self._packed(x, hx)
        if x.ndim == 2:
            return self._unbatched(x, hx)
        batch = x.shape[0] if self.batch_first else x.shape[1]
        state = self._initial(x, batch, hx)
        drawn = self._draw(batch)
        if all(isinstance(m, FixedMap) for m in drawn.values()):
            y, *final = _FUSED[self.mode](x, *self._fused_arguments(drawn, state), self.batch_first)
        else:
            steps = x.transpose(0, 1) if self.batch_first else x
            y, final = self._unrolled(steps, state, drawn)
            y = y.transpose(0, 1) if self.batch_first else y
        return y, self._as_state(final)

    def _draw(self, batch: int) -> dict[str, Map]:
        usage = Usage(batch, reused=True)
        return {name: self.map(name).draw(usage) for name in self.maps}

    def _as_state(self, final: list[Tensor]) -> Tensor | State:
        return tuple(final) if self.mode == "LSTM" else final[0]

    def _initial(self, x: Tensor, batch: int, hx: Tensor | State | None) -> State:
        """The first state. The fused kernels read past the end of tensors of a wrong size."""
        Linear().check_input(x, self.input_size)
        rows = self.num_layers * (2 if self.bidirectional else 1)
        hidden = (rows, batch, self.proj_size or self.hidden_size)
        cell = [(rows, batch, self.hidden_size)] if self.mode == "LSTM" else []
        return initial_state(x, hx, hidden, *cell)

    def _tensor(self, name: str, drawn: Mapping[str, Map]) -> Tensor:
        """A weight or bias in torch's own shape, from a fixed map or a plain parameter."""
        if name not in drawn:
            parameter: Tensor = getattr(self, name)
            return parameter
        fixed = drawn[name]
        assert isinstance(fixed, FixedMap)
        return fixed.weight.squeeze(-1) if name.startswith("bias") else fixed.weight

    def _fused_arguments(self, drawn: Mapping[str, Map], state: State) -> tuple[object, ...]:
        flat = [self._tensor(name, drawn) for names in self.order for name in names]
        hx = state if self.mode == "LSTM" else state[0]
        return (
            hx,
            flat,
            self.bias,
            self.num_layers,
            float(self.dropout),
            self.training,
            self.bidirectional,
        )

    def _packed(
        self, x: PackedSequence, hx: Tensor | State | None
    ) -> tuple[PackedSequence, Tensor | State]:
        batch = int(x.batch_sizes[0])
        state = self._initial(x.data, batch, hx)
        drawn = self._draw(batch)
        if not all(isinstance(m, FixedMap) for m in drawn.values()):
            raise ValueError(
                "a packed sequence needs one weight draw for the batch; use estimator=lb.weights, "
                "or pass a padded tensor"
            )
        if hx is not None and x.sorted_indices is not None:
            state = tuple(s.index_select(1, x.sorted_indices) for s in state)
        data, *final = _FUSED[self.mode](
            x.data, x.batch_sizes, *self._fused_arguments(drawn, state)
        )
        if x.unsorted_indices is not None:
            final = [s.index_select(1, x.unsorted_indices) for s in final]
        packed = PackedSequence(data, x.batch_sizes, x.sorted_indices, x.unsorted_indices)
        return packed, self._as_state(final)

    def _unbatched(self, x: Tensor, hx: Tensor | State | None) -> tuple[Tensor, Tensor | State]:
        axis = 0 if self.batch_first else 1
        if hx is not None:
            hx = hx.unsqueeze(1) if isinstance(hx, Tensor) else tuple(s.unsqueeze(1) for s in hx)
        y, final = self(x.unsqueeze(axis), hx)
        if isinstance(final, Tensor):
            return y.squeeze(axis), final.squeeze(1)
        return y.squeeze(axis), tuple(s.squeeze(1) for s in final)

    def _unrolled(
        self, x: Tensor, state: State, drawn: Mapping[str, Map]
    ) -> tuple[Tensor, list[Tensor]]:
        """Loop over time; ``x`` is ``[time, batch, in]``."""
        directions = 2 if self.bidirectional else 1
        finals: list[State] = []
        for layer in range(self.num_layers):
            outputs: list[Tensor] = []
            for direction in range(directions):
                row = layer * directions + direction
                one = tuple(s[row] for s in state)
                y, last = self._direction(x, one, self.order[row], drawn, direction == 1)
                outputs.append(y)
                finals.append(last)
            x = torch.cat(outputs, -1)
            if layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, [torch.stack(parts) for parts in zip(*finals, strict=True)]

    def _direction(
        self, x: Tensor, state: State, names: list[str], drawn: Mapping[str, Map], backward: bool
    ) -> tuple[Tensor, State]:
        by_kind = {name.rsplit("_l", 1)[0]: name for name in names}
        apply_x = self._affine(by_kind, "ih", drawn, x)
        apply_h = self._affine(by_kind, "hh", drawn, x)
        step, outputs = STEPS[self.mode], []
        for t in reversed(range(len(x))) if backward else range(len(x)):
            state = step(apply_x(x[t]), apply_h(state[0]), state)
            if "weight_hr" in by_kind:
                state = (drawn[by_kind["weight_hr"]](state[0]), *state[1:])
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if backward else outputs), state

    def _affine(
        self, by_kind: Mapping[str, str], kind: str, drawn: Mapping[str, Map], x: Tensor
    ) -> Callable[[Tensor], Tensor]:
        apply = drawn[by_kind[f"weight_{kind}"]]
        if f"bias_{kind}" not in by_kind:
            return apply
        name, batch = by_kind[f"bias_{kind}"], x.shape[1]
        random = name in drawn
        bias = (
            drawn[name](x.new_ones(batch, 1)) if random else bias_rows(getattr(self, name), batch)
        )
        return lambda step: apply(step) + bias
