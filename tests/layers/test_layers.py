"""Layer kinds: each keeps its contract, a third party's too; and what single ones can do."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_layers import LAYERS, POSTERIOR, PRIOR

import leanbayes as lb
from leanbayes.layers import KINDS, RandomMap, is_convertible
from leanbayes.layers.forward_pass import Held, set_estimators

BARE = [name for name in LAYERS if is_convertible(LAYERS[name].module())]


@pytest.fixture
def kinds():
    """What a test registers is forgotten again."""
    before = dict(KINDS)
    yield KINDS
    KINDS.clear()
    KINDS.update(before)


@pytest.mark.parametrize("name", BARE)
def test_every_kind_keeps_its_contract(name):
    lb.testing.check_layer(LAYERS[name].module(), *LAYERS[name].input())


def test_every_torch_layer_that_is_registered_is_an_example():
    examples = {type(LAYERS[name].module()) for name in BARE}
    torch_layers = {k for k in KINDS if isinstance(k, type) and k.__module__.startswith("torch")}
    assert torch_layers <= examples


class Gated(nn.Module):
    """A third party's layer: one matrix, a bias and a gate that stays plain."""

    def __init__(self, width: int, gate: bool = True) -> None:
        super().__init__()
        self.width, self.use_gate = width, gate
        self.kernel = nn.Parameter(torch.randn(width, width))
        self.shift = nn.Parameter(torch.randn(width))
        self.gate = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate) * F.linear(x, self.kernel, self.shift)


class RandomGated(lb.extend.Layer):
    """Its Bayesian counterpart, written with public names only."""

    def __init__(self, inner: lb.extend.Affine, gate: nn.Parameter) -> None:
        super().__init__()
        self.inner, self.gate = inner, gate

    @classmethod
    def refuse(cls, module):
        if not module.use_gate:
            raise ValueError("a gated layer without its gate is a linear one; use nn.Linear")

    @classmethod
    def from_torch(cls, module, make):
        inner = lb.extend.Affine.of(module.kernel, module.shift, lb.ops.Linear(), make)
        return cls(inner, nn.Parameter(module.gate.detach().clone(), module.gate.requires_grad))

    def torch_tensors(self, member):
        tensors = self.inner.torch_tensors(member)
        return {"kernel": tensors["weight"], "shift": tensors["bias"], "gate": self.gate}

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate) * self.inner(x)


def check_gated() -> None:
    net = Gated(3).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    lb.testing.check_layer(net, x, refused=[Gated(3, gate=False)])


def test_a_third_party_adds_a_kind_in_one_class(kinds):
    lb.extend.register_layer(Gated)(RandomGated)
    check_gated()
    net = nn.Sequential(Gated(3), nn.ReLU(), nn.Linear(3, 2))
    model = lb.convert(net, lb.KTied(2), PRIOR)
    assert [n for n, _ in lb.extend.random_maps(model)] == ["0.inner", "2"]
    assert model[0].width == 3
    assert "0      Gated" in str(lb.plan(net, POSTERIOR, PRIOR))


class ForgetsTheGate(RandomGated):
    def forward(self, x):
        return self.inner(x)


class DrawsNothing(RandomGated):
    def forward(self, x):
        bias = self.inner.torch_tensors(None)["bias"]
        return torch.sigmoid(self.gate) * F.linear(x, self.inner.mean_weight, bias)


class LosesANumber(RandomGated):
    def torch_tensors(self, member):
        return {**super().torch_tensors(member), "shift": nn.Parameter(torch.zeros(3).double())}


class KeepsNothingFrozen(RandomGated):
    @classmethod
    def from_torch(cls, module, make):
        layer = super().from_torch(module, make)
        layer.gate.requires_grad_(True)
        return layer


class DrawsWhenHeld(RandomGated):
    def forward(self, x):
        return super().forward(x) if self.inner.held is None else super().forward(x + torch.rand(1))


class CountsTwice(RandomGated):
    @classmethod
    def from_torch(cls, module, make):
        layer = super().from_torch(module, make)
        layer.spare = RandomMap(op := lb.ops.Linear(), *make.learned(module.kernel, op))
        return layer


class RefusesNothing(RandomGated):
    @classmethod
    def refuse(cls, module):
        pass


class RefusesAtLength(RandomGated):
    @classmethod
    def refuse(cls, module):
        if not module.use_gate:
            raise ValueError("first\nsecond")


BROKEN = {
    ForgetsTheGate: "gives other outputs",
    DrawsNothing: "does not use its draws",
    LosesANumber: "shift of Gated comes back",
    KeepsNothingFrozen: "of a frozen Gated comes back trained",
    DrawsWhenHeld: "draws again while it is held",
    CountsTwice: "as point estimates",
    RefusesNothing: "although it is to be refused",
    RefusesAtLength: "more than one sentence",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_kind_is_caught(kind, kinds):
    lb.extend.register_layer(Gated)(kind)
    with pytest.raises(AssertionError, match=BROKEN[kind]):
        check_gated()


def test_what_is_not_registered_is_said():
    with pytest.raises(AssertionError, match=r"call lb\.extend\.register_layer"):
        lb.testing.check_layer(Gated(3), torch.randn(5, 3))


def test_registering_something_else_gives_a_sentence(kinds):
    with pytest.raises(TypeError, match=r"subclass of lb\.extend\.Layer"):
        lb.extend.register_layer(Gated)(nn.Linear)
    with pytest.raises(TypeError, match="give a class"):
        lb.extend.register_layer(Gated(3))


def test_the_nearest_registered_class_decides(kinds):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Same(Doubled):
        pass

    class Other(Doubled):
        def forward(self, x):
            return 3 * x

    with pytest.raises(ValueError, match="overrides the forward of Linear"):
        lb.convert(Same(3, 2), POSTERIOR, PRIOR)

    @lb.extend.register_layer(Doubled)
    class RandomDoubled(lb.extend.Affine):
        def forward(self, x):
            return 2 * super().forward(x)

    for kind in (Doubled, Same):
        lb.testing.check_layer(kind(3, 2), torch.randn(4, 3), refused=[Other(3, 2)])


@pytest.fixture
def conv1d():
    """Hugging Face's ``Conv1D``: the real one, or the same few lines under the same name."""
    path = "transformers.pytorch_utils"
    if path in sys.modules:
        return sys.modules[path].Conv1D

    class Conv1D(nn.Module):
        def __init__(self, nf: int, nx: int) -> None:
            super().__init__()
            self.nf, self.nx = nf, nx
            self.weight = nn.Parameter(torch.empty(nx, nf))
            self.bias = nn.Parameter(torch.zeros(nf))
            nn.init.normal_(self.weight, std=0.02)

        def forward(self, x: Tensor) -> Tensor:
            size = (*x.size()[:-1], self.nf)
            return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)

    Conv1D.__module__, Conv1D.__qualname__ = path, "Conv1D"
    return Conv1D


@pytest.mark.parametrize("shape", [(6, 3), (6, 5, 3)])
def test_the_linear_layer_of_gpt2(conv1d, shape):
    net = conv1d(4, 3).double()
    lb.testing.check_layer(net, torch.randn(shape, dtype=torch.float64))
    model = lb.convert(net, lb.KTied(2), PRIOR)
    assert model.posterior().event_shape == (4, 3)
    assert model.posterior.loc.shape == net.weight.shape
    assert (model.nf, model.nx) == (4, 3)


def test_the_real_linear_layer_of_gpt2():
    utilities = pytest.importorskip("transformers.pytorch_utils")
    lb.testing.check_layer(utilities.Conv1D(4, 3), torch.randn(6, 3))


def test_a_class_of_another_library_with_that_name_is_left_alone(conv1d):
    other = types.new_class("Conv1D", (nn.Module,))
    assert is_convertible(conv1d(4, 3))
    assert not is_convertible(other())


CELLS = {"LSTM": (nn.LSTMCell, nn.LSTM), "GRU": (nn.GRUCell, nn.GRU), "RNN": (nn.RNNCell, nn.RNN)}


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "state"])
@pytest.mark.parametrize("shape", [(6, 3), (3,)], ids=["batched", "single"])
@pytest.mark.parametrize("mode", CELLS)
def test_cells_take_a_state_and_single_examples(mode, shape, given):
    net, x = CELLS[mode][0](3, 4), torch.randn(shape)
    state = [torch.randn(*shape[:-1], 4) for _ in range(2)]
    hx = (tuple(state) if mode == "LSTM" else state[0]) if given else None
    model = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean)
    torch.testing.assert_close(model(x, hx), net(x, hx))


@pytest.mark.parametrize("mode", CELLS)
def test_a_held_cell_runs_a_sequence_with_one_draw(mode):
    cell, whole = CELLS[mode][0](3, 4), CELLS[mode][1](3, 4)
    model, x = lb.convert(cell, POSTERIOR, PRIOR, bias=POSTERIOR), torch.randn(5, 6, 3)
    with lb.held(model), torch.no_grad():
        for part in ("ih", "hh"):
            affine = getattr(model, part)
            getattr(whole, f"weight_{part}_l0").copy_(affine.held.weight)
            getattr(whole, f"bias_{part}_l0").copy_(affine.bias.held.weight.squeeze(-1))
        state, outputs = None, []
        for step in x:
            state = model(step, state)
            outputs.append(state[0] if mode == "LSTM" else state)
        torch.testing.assert_close(torch.stack(outputs), whole(x)[0])


@pytest.mark.parametrize("mode", CELLS)
def test_a_state_of_the_wrong_size_is_refused(mode):
    model = lb.convert(CELLS[mode][0](3, 4), POSTERIOR, PRIOR)
    wrong = torch.zeros(1, 4)  # torch refuses it too; it would broadcast
    with pytest.raises(ValueError, match=r"a state has shape \(1, 4\); it must have \(6, 4\)"):
        model(torch.zeros(6, 3), (wrong, wrong) if mode == "LSTM" else wrong)
    with pytest.raises(ValueError, match="last dimension must be 3"):
        model(torch.zeros(6, 5))


def test_a_state_of_too_few_tensors_is_refused():
    model = lb.convert(nn.LSTM(3, 4), POSTERIOR, PRIOR)
    with pytest.raises(ValueError, match="1 tensors is given; 2 needed"):
        model(torch.zeros(5, 6, 3), torch.zeros(1, 6, 4))


BAGS = {
    "bags": ((6, 5), None),
    "offsets": ((7,), [0, 3, 3, 5]),
    "trailing empty bag": ((7,), [0, 7]),
    "no bag": ((0,), []),
}


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("last", [False, True], ids=["starts", "last_offset"])
@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
@pytest.mark.parametrize("case", BAGS)
def test_bags_give_the_results_of_torch(case, mode, weighted, last, padding):
    shape, starts = BAGS[case]
    net = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding, include_last_offset=last).double()
    x = torch.randint(9, shape)
    ends = [shape[0]] if last else []
    offsets = None if starts is None else torch.tensor(starts + ends, dtype=torch.long)
    weights = torch.randn(shape, dtype=torch.float64) if weighted else None
    if last and starts is None:
        with pytest.raises(ValueError, match="offsets"):
            lb.convert(net, POSTERIOR, PRIOR)(x, torch.tensor([0, 6]), weights)
        return
    model = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean)
    torch.testing.assert_close(model(x, offsets, weights), net(x, offsets, weights))


def test_a_bag_says_what_it_needs():
    model = lb.convert(nn.EmbeddingBag(9, 4), POSTERIOR, PRIOR)
    with pytest.raises(ValueError, match="offsets that say where each bag begins"):
        model(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="the first offset is 1"):
        model(torch.tensor([1, 2]), torch.tensor([1]))
    for offsets in ([0, 9], [0, 2, 1]):
        with pytest.raises(ValueError, match="must not fall, nor exceed 2 indices"):
            model(torch.tensor([1, 2]), torch.tensor(offsets))
    with pytest.raises(ValueError, match="need mode='sum'"):
        model(torch.tensor([[1, 2]]), per_sample_weights=torch.ones(1, 2))


def test_an_index_that_a_bag_holds_twice_has_one_vector():
    model = lb.convert(nn.EmbeddingBag(9, 4, mode="sum"), lb.MeanField(1.0), PRIOR)
    with lb.held(model):
        once, twice = model(torch.tensor([[3]])), model(torch.tensor([[3, 3]]))
    torch.testing.assert_close(twice, 2 * once)


@pytest.mark.parametrize("shape", [(), (6,), (2, 6)], ids=["single", "batch", "sequence"])
def test_a_bilinear_layer_takes_any_batch(shape):
    net = nn.Bilinear(3, 2, 4).double()
    a, b = (torch.randn(*shape, n, dtype=torch.float64) for n in (3, 2))
    model = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean)
    torch.testing.assert_close(model(a, b), net(a, b))


TRANSPOSED = {
    "1": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1), (4, 2, 5)),
    "2": (lambda: nn.ConvTranspose2d(2, 4, (3, 2), stride=(2, 3), groups=2), (4, 2, 3, 4)),
    "dilated": (lambda: nn.ConvTranspose1d(2, 3, 3, 3, 1, 2, dilation=2), (4, 2, 5)),
    "single": (lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), (2, 3, 4)),
}


@pytest.mark.parametrize("whole", [False, True], ids=["space", "whole"])
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("case", TRANSPOSED)
@torch.no_grad()
def test_a_transposed_convolution_gives_the_size_asked_for(case, extra, whole):
    make, shape = TRANSPOSED[case]
    net, x = make().double(), torch.randn(shape, dtype=torch.float64)
    dims = len(net.kernel_size)
    smallest = net(x).shape[-dims:]
    size = [n - p + extra for n, p in zip(smallest, net.output_padding, strict=True)]
    given = [*x.shape[: x.ndim - dims], *size] if whole else size
    model = lb.convert(net, POSTERIOR, PRIOR)
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(model(x, output_size=given), net(x, output_size=given))
    with lb.held(model):
        net.weight.copy_(model.op.unmatrix(model.held.weight))
        torch.testing.assert_close(model(x, given), net(x, given))
        torch.testing.assert_close(model(x), net(x))
    for estimator in (lb.estimators.weights, lb.estimators.local, lb.estimators.flipout):
        with lb.using(model, estimator):
            assert model(x, given).shape[-dims:] == tuple(size)


@pytest.mark.parametrize("size", [(8,), (11,), (9, 9), (4, 2, 9, 1)])
def test_a_size_that_cannot_be_is_refused(size):
    model = lb.convert(TRANSPOSED["1"][0](), POSTERIOR, PRIOR)
    with pytest.raises(ValueError, match=r"lies between \(9,\) and \(10,\)"):
        model(torch.zeros(4, 2, 5), size)


def test_a_map_of_ones_own_that_is_held_has_the_size_it_was_drawn_for():
    model, x = lb.convert(TRANSPOSED["1"][0](), POSTERIOR, PRIOR), torch.zeros(4, 2, 5)
    with set_estimators({model: Held(lambda x: torch.zeros(4, 3, 9), model.op)}):
        assert model(x).shape == (4, 3, 9)
        with pytest.raises(TypeError, match="dataclass"):
            model(x, [10])
