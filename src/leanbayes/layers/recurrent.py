"""Recurrent networks and their cells: random maps drawn once a sequence, applied at every step."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from leanbayes.distributions import FixedMap, LocalMap, Map
from leanbayes.errors import require
from leanbayes.kernels import factored_lstm
from leanbayes.layers.base import Layer, register_layer
from leanbayes.layers.forward_pass import batch_rows, check_usage, with_op
from leanbayes.layers.layer_spec import Maker
from leanbayes.layers.random_map import (
    Affine,
    RandomMap,
    bias_rows,
    plain_bias,
    point_bias,
    random_bias,
    random_map,
)
from leanbayes.ops import Linear, Usage

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
        self, order: Sequence[Sequence[str]], parts: Mapping[str, RandomMap | Tensor]
    ) -> None:
        super().__init__()
        self.order = [list(names) for names in order]
        maps = {name: part for name, part in parts.items() if isinstance(part, RandomMap)}
        self.maps = nn.ModuleDict(maps)
        members = max(part.members for part in maps.values())
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_parameter(name, plain_bias(part, members))

    @classmethod
    def from_torch(cls, module: nn.RNNBase, make: Maker) -> Self:
        parts: dict[str, RandomMap | Tensor] = {
            name: random_map(tensor, Linear(), make)
            if name.startswith("weight")
            else random_bias(tensor, make)
            for name, tensor in module.named_parameters()
        }
        names = {id(tensor): name for name, tensor in module.named_parameters()}
        return cls([[names[id(t)] for t in group] for group in module.all_weights], parts)

    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        tensors: dict[str, Tensor | None] = {}
        for name in itertools.chain(*self.order):
            if name.startswith("weight"):
                tensors[name] = self.map(name).point(member)
            else:
                bias = self.map(name) if name in self.maps else self.get_parameter(name)
                tensors[name] = point_bias(bias, member)
        return tensors

    def map(self, name: str) -> RandomMap:
        """Return the random map of a weight or bias, by torch's name."""
        module = self.maps[name]
        assert isinstance(module, RandomMap)
        return module

    def flatten_parameters(self) -> None:
        """Do nothing: weights are drawn for every sequence."""

    def forward(
        self, x: Tensor | PackedSequence, hx: Tensor | State | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor | State]:
        if isinstance(x, PackedSequence):
            return self._packed(x, hx)
        if x.ndim == 2:
            return self._unbatched(x, hx)
        steps = x.transpose(0, 1) if self.batch_first else x
        state = self._initial(x, steps.shape[1], hx)
        drawn = self._draw(self._usage(steps))
        if _is_fixed(drawn):
            y, *final = _FUSED[self.mode](x, *self._fused_arguments(drawn, state), self.batch_first)
        else:
            y, final = self._unrolled(steps, state, drawn)
            y = y.transpose(0, 1) if self.batch_first else y
        return y, self._as_state(final)

    def _usage(self, steps: Tensor) -> Usage:
        """How ``[time, batch, in]`` uses the weights; refuse steps that were taken for examples."""
        time, batch = steps.shape[:2]
        members = max(self.map(name).members for name in self.maps)
        require(
            batch_rows() != time or batch == time or self.batch_first,
            f"this {self.mode} has its {batch} examples in dimension 1 (batch_first=False), and "
            f"the batch has {time}, as many as there are steps; give batch_dim=1 to predict, or "
            "make it batch_first",
        )
        return check_usage(Usage(batch, reused=True), Linear(batch_dim=1), steps, members)

    def _draw(self, usage: Usage) -> dict[str, Map]:
        return {name: self.map(name).draw(usage) for name in self.maps}

    def _as_state(self, tensors: Sequence[Tensor]) -> Tensor | State:
        return tuple(tensors) if self.mode == "LSTM" else tensors[0]

    def _initial(self, x: Tensor, batch: int, hx: Tensor | State | None) -> State:
        """The first state. The fused kernels read past the end of tensors of a wrong size."""
        Linear().check_input(x, self.input_size)
        hidden = (len(self.order), batch, self.proj_size or self.hidden_size)
        cell = [(len(self.order), batch, self.hidden_size)] if self.mode == "LSTM" else []
        return initial_state(x, hx, hidden, *cell)

    def _fused_arguments(self, drawn: Mapping[str, Map], state: State) -> tuple[object, ...]:
        flat = [self._tensor(name, drawn) for name in itertools.chain(*self.order)]
        options = (self.num_layers, float(self.dropout), self.training, self.bidirectional)
        return self._as_state(state), flat, self.bias, *options

    def _tensor(self, name: str, drawn: Mapping[str, Map]) -> Tensor:
        """Return a weight or bias in torch's own shape, from a fixed map or a plain parameter."""
        fixed = drawn.get(name)
        if isinstance(fixed, FixedMap):
            return fixed.weight.squeeze(-1) if name.startswith("bias") else fixed.weight
        parameter: Tensor = getattr(self, name)
        return parameter

    def _packed(
        self, x: PackedSequence, hx: Tensor | State | None
    ) -> tuple[PackedSequence, Tensor | State]:
        data, sizes, order, inverse = x
        batch = int(sizes[0])
        state = self._initial(data, batch, hx)
        drawn = self._draw(Usage(batch, reused=True))
        if not _is_fixed(drawn):
            return self._packed_unrolled(x, hx, drawn)
        if hx is not None and order is not None:
            state = tuple(s.index_select(1, order) for s in state)
        y, *final = _FUSED[self.mode](data, sizes, *self._fused_arguments(drawn, state))
        if inverse is not None:
            final = [s.index_select(1, inverse) for s in final]
        return PackedSequence(y, sizes, order, inverse), self._as_state(final)

    def _packed_unrolled(
        self, x: PackedSequence, hx: Tensor | State | None, drawn: Mapping[str, Map]
    ) -> tuple[PackedSequence, Tensor | State]:
        """Return a loop over padded steps, in which a sequence that has ended keeps its state."""
        steps, lengths = pad_packed_sequence(x)
        state = self._initial(steps, len(lengths), hx)
        running = torch.arange(len(steps))[:, None] < lengths
        y, final = self._unrolled(steps, state, drawn, running.to(steps.device))
        order = x.sorted_indices
        if order is not None:
            y, lengths = y.index_select(1, order), lengths[order.cpu()]
        data = pack_padded_sequence(y, lengths).data
        return PackedSequence(data, *x[1:]), self._as_state(final)

    def _unbatched(self, x: Tensor, hx: Tensor | State | None) -> tuple[Tensor, Tensor | State]:
        axis = 0 if self.batch_first else 1
        if hx is not None:
            hx = hx.unsqueeze(1) if isinstance(hx, Tensor) else tuple(s.unsqueeze(1) for s in hx)
        y, final = self(x.unsqueeze(axis), hx)
        states = (final,) if isinstance(final, Tensor) else final
        return y.squeeze(axis), self._as_state([s.squeeze(1) for s in states])

    def _unrolled(
        self, x: Tensor, state: State, drawn: Mapping[str, Map], running: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Loop over time; ``x`` is ``[time, batch, in]``, ``running`` says where steps count."""
        finals: list[State] = []
        for layer in range(self.num_layers):
            outputs: list[Tensor] = []
            for backward in (False, True) if self.bidirectional else (False,):
                row = len(finals)
                first = tuple(s[row] for s in state)
                y, last = self._direction(x, first, self.order[row], drawn, backward, running)
                outputs.append(y)
                finals.append(last)
            x = torch.cat(outputs, -1)
            if layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, [torch.stack(parts) for parts in zip(*finals, strict=True)]

    def _direction(
        self,
        x: Tensor,
        state: State,
        names: list[str],
        drawn: Mapping[str, Map],
        backward: bool,
        running: Tensor | None,
    ) -> tuple[Tensor, State]:
        by_kind = {name.rsplit("_l", 1)[0]: name for name in names}
        bias = self._bias(by_kind, drawn, x)
        maps = drawn[by_kind["weight_ih"]], drawn[by_kind["weight_hh"]]
        x = x.flip(0) if backward else x
        if self.mode == "LSTM" and running is None and "weight_hr" not in by_kind:
            found = factored_lstm(x, maps, _sum(bias), state)
            if found is not None:
                return found[0].flip(0) if backward else found[0], found[1]
        if running is not None and backward:
            running = running.flip(0)
        y, outputs = _of_all_steps(maps[0], x), list[Tensor]()
        for t, step in enumerate((y if bias[0] is None else y + bias[0].to(y.dtype)).unbind(0)):
            h = maps[1](state[0])
            h = h if bias[1] is None else h + bias[1].to(h.dtype)
            new = STEPS[self.mode](step, h, state)
            if "weight_hr" in by_kind:
                new = (drawn[by_kind["weight_hr"]](new[0]), *new[1:])
            if running is not None:
                pairs = zip(new, state, strict=True)
                new = tuple(torch.where(running[t].unsqueeze(-1), a, b) for a, b in pairs)
            state = new
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if backward else outputs), state

    def _bias(
        self, by_kind: Mapping[str, str], drawn: Mapping[str, Map], x: Tensor
    ) -> list[Tensor | None]:
        """Biases of the input and of the hidden part, ``[1 or batch, gates]``."""
        found = list[Tensor | None]()
        for kind in ("bias_ih", "bias_hh"):
            name = by_kind.get(kind, "")
            if name in drawn:
                found.append(drawn[name](x.new_ones(x.shape[1], 1)))
            else:
                found.append(bias_rows(getattr(self, name), x.shape[1]) if name else None)
        return found


def _sum(biases: Sequence[Tensor | None]) -> Tensor | None:
    first, second = biases
    return first if second is None else second if first is None else first + second


def _of_all_steps(drawn: Map, x: Tensor) -> Tensor:
    """The input part ``[time, batch, out]`` of every step, in one product where maps have an op."""
    if isinstance(drawn, LocalMap):
        return drawn(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    if is_dataclass(drawn) and hasattr(drawn, "op"):
        return with_op(drawn, Linear(batch_dim=1))(x)
    return torch.stack([drawn(step) for step in x.unbind(0)])


def _is_fixed(drawn: Mapping[str, Map]) -> bool:
    """Return whether every map is one matrix for the whole batch."""
    return all(isinstance(drawn_map, FixedMap) for drawn_map in drawn.values())
