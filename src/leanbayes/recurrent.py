"""Recurrent networks: random maps drawn once a sequence and applied at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from leanbayes.distributions import FixedMap, Map
from leanbayes.layers import RandomMap
from leanbayes.ops import Usage

__all__ = ["Recurrent"]

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


_STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": _lstm_step,
    "GRU": _gru_step,
    "RNN_TANH": _tanh_step,
    "RNN_RELU": _relu_step,
}
_FUSED: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


class Recurrent(nn.Module):
    """A (stacked, bidirectional) LSTM, GRU or RNN with random weight matrices.

    The maps are drawn once and used at all time steps. One weight matrix for the whole batch runs
    in torch's fused kernel; noise per example (``flipout``, rank-one factors) in a loop over time.

    Args:
        template: the torch module it stands for; gives shapes and options.
        maps: a random map for each weight matrix, by torch's name (``weight_ih_l0``, …), and for
            each bias that is random.
    """

    def __init__(self, template: nn.RNNBase, maps: Mapping[str, RandomMap]) -> None:
        super().__init__()
        self.mode = template.mode
        self.input_size = template.input_size
        self.hidden_size = template.hidden_size
        self.proj_size = template.proj_size
        self.num_layers = template.num_layers
        self.has_bias = bool(template.bias)
        self.batch_first = template.batch_first
        self.dropout = float(template.dropout)
        self.bidirectional = template.bidirectional
        self.order = [list(names) for names in template._all_weights]
        self.maps = nn.ModuleDict(maps)
        self.members = max(m.members for m in maps.values())
        for name, tensor in template.named_parameters():
            if name not in maps:
                vector = tensor.detach().clone()
                copies = vector.repeat(self.members, 1) if self.members > 1 else vector
                parameter = nn.Parameter(copies, requires_grad=tensor.requires_grad)
                self.register_parameter(name, parameter)

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
        self._check(x, batch, hx)
        drawn = self._draw(batch)
        state = self._initial(x, batch, hx)
        if all(isinstance(m, FixedMap) for m in drawn.values()):
            y, *final = _FUSED[self.mode](x, *self._fused_arguments(drawn, state), self.batch_first)
        else:
            steps = x.transpose(0, 1) if self.batch_first else x
            y, final = self._unrolled(steps, state, drawn)
            y = y.transpose(0, 1) if self.batch_first else y
        return y, self._as_state(final)

    def _check(self, x: Tensor, batch: int, hx: Tensor | State | None) -> None:
        """The fused kernels read past the end of tensors of a wrong size."""
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"the input has shape {tuple(x.shape)}; its last dimension must be "
                f"{self.input_size}"
            )
        rows = self.num_layers * (2 if self.bidirectional else 1)
        needed = [
            (rows, batch, self.proj_size or self.hidden_size),
            (rows, batch, self.hidden_size),
        ]
        given = () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)
        for state, shape in zip(given, needed, strict=False):
            if tuple(state.shape) != shape:
                raise ValueError(f"a state has shape {tuple(state.shape)}; it must have {shape}")

    def _draw(self, batch: int) -> dict[str, Map]:
        usage = Usage(batch, reused=True)
        return {name: self.map(name).draw(usage) for name in self.maps}

    def _as_state(self, final: list[Tensor]) -> Tensor | State:
        return tuple(final) if self.mode == "LSTM" else final[0]

    def _initial(self, x: Tensor, batch: int, hx: Tensor | State | None) -> State:
        if hx is not None:
            return (hx,) if isinstance(hx, Tensor) else tuple(hx)
        rows = self.num_layers * (2 if self.bidirectional else 1)
        hidden = x.new_zeros(rows, batch, self.proj_size or self.hidden_size)
        if self.mode != "LSTM":
            return (hidden,)
        return hidden, x.new_zeros(rows, batch, self.hidden_size)

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
            self.has_bias,
            self.num_layers,
            self.dropout,
            self.training,
            self.bidirectional,
        )

    def _packed(
        self, x: PackedSequence, hx: Tensor | State | None
    ) -> tuple[PackedSequence, Tensor | State]:
        batch = int(x.batch_sizes[0])
        self._check(x.data, batch, hx)
        drawn = self._draw(batch)
        if not all(isinstance(m, FixedMap) for m in drawn.values()):
            raise ValueError(
                "a packed sequence needs one weight draw for the batch; use estimator=lb.weights, "
                "or pass a padded tensor"
            )
        state = self._initial(x.data, batch, hx)
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
        step, outputs = _STEPS[self.mode], []
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
        name = by_kind[f"bias_{kind}"]
        if name in drawn:
            bias = drawn[name](x.new_ones(x.shape[1], 1))
        else:
            bias = getattr(self, name)
            if bias.ndim == 2:
                bias = bias.repeat_interleave(x.shape[1] // self.members, 0)
        return lambda step: apply(step) + bias

    def extra_repr(self) -> str:
        return (
            f"{self.mode}, {self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"bidirectional={self.bidirectional}"
        )
