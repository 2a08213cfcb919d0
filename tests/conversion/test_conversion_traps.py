"""Networks whose code goes past what a conversion sees: converted all the same, or refused."""

import copy
import functools
import types
import weakref
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch_layers import LAYERS, POSTERIOR, PRIOR, assert_unchanged, first, snapshot

import leanbayes as lb

Pair = namedtuple("Pair", ["first", "second"])


@dataclass(frozen=True)
class Parts:
    """Plain data that holds layers."""

    layers: tuple


class Slotted:
    __slots__ = ("layers",)

    def __init__(self, layers):
        self.layers = layers


class Walk(nn.Module):
    """Two layers that ``forward`` reaches through something else than their attributes."""

    def __init__(self, keep, layers):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.kept = keep(self.a, self.b)
        self.layers = layers

    def forward(self, x):
        for layer in self.layers(self.kept):
            x = layer(x)
        return x


def identity(kept):
    return kept


def mean_weight(layer: nn.Module) -> torch.Tensor:
    return layer.mean_weight if isinstance(layer, lb.extend.Affine) else layer.weight


def by_weight(kept):
    return sorted(kept, key=lambda layer: float(mean_weight(layer).detach().sum()))


CONTAINERS = {
    "list": (lambda a, b: [a, b], identity),
    "tuple": (lambda a, b: (a, b), identity),
    "nested tuples": (lambda a, b: ((a,), (0, (b,))), lambda kept: (kept[0][0], kept[1][1][0])),
    "dictionary": (lambda a, b: {"x": a, "y": [b]}, lambda kept: (kept["x"], kept["y"][0])),
    "ordered dictionary": (lambda a, b: OrderedDict(x=a, y=b), lambda kept: kept.values()),
    "keys of a dictionary": (lambda a, b: {a: 1, b: 2}, lambda kept: kept),
    "named tuple": (lambda a, b: Pair(a, b), lambda kept: (kept.first, kept.second)),
    "deque": (lambda a, b: deque([a, b]), identity),
    "set": (lambda a, b: {a, b}, by_weight),
    "frozen set": (lambda a, b: frozenset((a, b)), by_weight),
    "frozen dataclass": (lambda a, b: Parts((a, b)), lambda kept: kept.layers),
    "object with slots": (lambda a, b: Slotted([a, b]), lambda kept: kept.layers),
    "namespace": (
        lambda a, b: types.SimpleNamespace(a=a, b=b),
        lambda kept: (kept.a, kept.b),
    ),
    "module in a list": (lambda a, b: [nn.Sequential(a, b)], lambda kept: kept[0]),
    "one tuple twice": (lambda a, b: [(a, b)] * 2, lambda kept: (kept[0][0], kept[1][1])),
}


@pytest.mark.tried(
    "Conversion",
    what="layers that forward reads from a list, dictionary, tuple, set or object",
    holds="converted there too, nested and in copies; every parameter gets a gradient",
)
@pytest.mark.parametrize("way", ["copy", "inplace", "copied before", "copied after"])
@pytest.mark.parametrize("case", CONTAINERS)
def test_layers_in_containers_are_exchanged_there_too(case, way):
    net, x = Walk(*CONTAINERS[case]), torch.randn(5, 3)
    before = snapshot(net)
    given = copy.deepcopy(net) if way == "copied before" else net
    model = lb.convert(given, POSTERIOR, PRIOR, inplace=way == "inplace")
    if way == "copied after":
        model = copy.deepcopy(model)
    assert {id(layer) for layer in model.layers(model.kept)} == {id(model.a), id(model.b)}
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    back = lb.deterministic(model)
    assert {id(layer) for layer in back.layers(back.kept)} == {id(back.a), id(back.b)}
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(back(x), model(x))
    if way != "inplace":
        assert_unchanged(net, before)
        assert {id(layer) for layer in net.layers(net.kept)} == {id(net.a), id(net.b)}


def test_what_is_not_converted_stays_in_its_containers():
    net = Walk(*CONTAINERS["list"])
    model = lb.convert(net, POSTERIOR, PRIOR, exclude=["b"], inplace=True)
    assert model.kept == [model.a, model.b]
    assert isinstance(model.a, lb.extend.Affine)
    assert type(model.b) is nn.Linear


def test_containers_that_hold_themselves_are_walked_once():
    net = Walk(*CONTAINERS["list"])
    net.kept.append(net.kept)
    net.layers = lambda kept: kept[:2]
    model = lb.convert(net, POSTERIOR, PRIOR)
    assert model.kept[2] is model.kept
    assert model.kept[0] is model.a


def _with_class_closure():
    layer = nn.Linear(3, 3)

    class Closed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = layer

        def forward(self, x):
            return layer(x)

    return Closed()


def _with_hook():
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net.a, layer = net[0], net[0]
    net[1].register_forward_hook(lambda module, inputs, output: layer(output))
    return net


def _walk(keep, layers=identity):
    return Walk(lambda a, b: keep(a), layers)


def _inside_attention():
    net = nn.ModuleDict({"a": nn.MultiheadAttention(4, 2)})
    net.kept = [net["a"].out_proj]
    return net


def _keeps_its_owner():
    net = nn.ModuleDict({"a": nn.Linear(3, 3)})
    net["a"].kept = [net]
    return net


UNREACHED = {
    "function": (lambda: _walk(lambda a: lambda x: a(x)), r"'kept' \(a function\)"),
    "default": (lambda: _walk(lambda a: lambda x, layer=a: layer(x)), r"'kept' \(a function\)"),
    "partial": (lambda: _walk(lambda a: functools.partial(a)), r"'kept' \(a functools.partial\)"),
    "bound method": (lambda: _walk(lambda a: a.forward), r"'kept' \(a bound method\)"),
    "method in a list": (lambda: _walk(lambda a: [a.forward]), r"'kept\[0\]' \(a bound method\)"),
    "weak reference": (lambda: _walk(lambda a: weakref.ref(a)), r"'kept' \(a weak reference\)"),
    "hook": (_with_hook, r"'1\._forward_hooks\[\d+\]' \(a function\)"),
    "method that closes over a layer": (_with_class_closure, r"'Closed\.forward' \(a function\)"),
    "list of weights": (lambda: _walk(lambda a: [a.weight]), r"a weight of layer 'a'.*'kept\[0\]'"),
    "part of a layer": (_inside_attention, r"a part of layer 'a'.*'kept\[0\]'"),
    "layer that keeps its owner": (_keeps_its_owner, r"layer 'a' keeps .*'kept\[0\]'"),
}


@pytest.mark.tried(
    "Conversion",
    what="layers held by a closure, functools.partial, a bound method, a hook or a weak reference",
    holds="refused: the sentence names the layer, the attribute and what holds it",
)
@pytest.mark.parametrize("inplace", [False, True], ids=["copy", "inplace"])
@pytest.mark.parametrize("case", UNREACHED)
def test_what_no_exchange_reaches_is_refused_by_name(case, inplace):
    make, phrase = UNREACHED[case]
    net = make()
    before = snapshot(net)
    with pytest.raises(ValueError, match=phrase) as caught:
        lb.convert(net, POSTERIOR, PRIOR, inplace=inplace)
    assert "layer 'a'" in str(caught.value) or "layer '0'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_unchanged(net, before)


def test_a_plan_refuses_what_a_conversion_would():
    with pytest.raises(ValueError, match="a function"):
        lb.plan(UNREACHED["function"][0](), POSTERIOR, PRIOR)


@pytest.mark.parametrize("keep", [lambda a: a.forward, lambda a: lambda x: a(x)])
def test_the_way_back_refuses_them_too(keep):
    model = lb.convert(Walk(*CONTAINERS["list"]), POSTERIOR, PRIOR)
    model.kept = keep(model.a)
    with pytest.raises(ValueError, match=r"'kept' \(a .*make it a method|layer 'a'.*'kept'"):
        lb.deterministic(model)


class Later(nn.Module):
    """A function that looks its layer up when it is called."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.call = lambda x: self.a(x)

    def forward(self, x):
        return self.call(x)


@pytest.mark.tried(
    "Conversion",
    what="a lambda that closes over self, which no copy of the model takes along",
    holds="refused for a copy, with the remedy; converted with inplace=True",
)
def test_a_function_that_closes_over_the_model_is_right_in_place_only():
    net, x = Later(), torch.randn(5, 3)
    with pytest.raises(ValueError, match=r"'call' \(a function\).*inplace=True"):
        lb.convert(net, POSTERIOR, PRIOR)
    model = lb.convert(net, POSTERIOR, PRIOR, inplace=True)
    assert not torch.equal(model(x), model(x))
    with pytest.raises(ValueError, match=r"'call' \(a function\); make it a method"):
        lb.deterministic(model)


def test_bound_methods_of_the_model_itself_are_no_obstacle():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.way = self.through
            self.register_forward_hook(self.seen)
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

        def through(self, x):
            return self.a(x)

        def seen(self, module, inputs, output):
            return output

        def forward(self, x):
            return self.way(x)

    model, x = lb.convert(Chosen(), POSTERIOR, PRIOR), torch.randn(5, 3)
    assert not torch.equal(model(x), model(x))
    lb.deterministic(model)(x)


def test_a_part_of_a_layer_under_a_second_name_is_refused():
    net = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2)})
    net["out"] = net["attention"].out_proj
    with pytest.raises(ValueError, match=r"'attention\.out_proj' and 'out' share one weight"):
        lb.convert(net, POSTERIOR, PRIOR)


class Standardized(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Called(nn.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


class WeightProperty(nn.Linear):
    @property
    def weight(self):
        return 2 * self.stored

    @weight.setter
    def weight(self, value):
        self.register_parameter("stored", value)


class MoreParameters(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.ones(outputs))


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def changed(layer, change):
    change(layer)
    return layer


def _set_forward(layer):
    layer.forward = types.MethodType(lambda self, x: x, layer)


def _attention(change):
    return changed(nn.MultiheadAttention(4, 2), change)


def _replace_out_proj(module):
    def change(attention):
        attention.out_proj = module

    return change


CUSTOM = {
    "_conv_forward of a subclass": (
        lambda: Standardized(3, 4, 3),
        "Standardized overrides the _conv_forward of Conv2d",
    ),
    "__call__ of a subclass": (lambda: Called(3, 4), "Called overrides the __call__ of Linear"),
    "weight as a property": (lambda: WeightProperty(3, 4), "overrides the weight of Linear"),
    "forward of an instance": (
        lambda: changed(nn.Linear(3, 4), _set_forward),
        "has a forward that was set on the instance",
    ),
    "more parameters": (lambda: MoreParameters(3, 4), "a parameter 'gain'"),
    "backward hook": (
        lambda: changed(
            nn.Linear(3, 4), lambda m: m.register_full_backward_hook(lambda *args: None)
        ),
        "it has backward hooks",
    ),
    "backward pre-hook": (
        lambda: changed(
            nn.Linear(3, 4), lambda m: m.register_full_backward_pre_hook(lambda *args: None)
        ),
        "it has backward hooks",
    ),
    "gradient hook of a weight": (
        lambda: changed(nn.Linear(3, 4), lambda m: m.weight.register_hook(lambda grad: 0 * grad)),
        "gradient hooks on its weight",
    ),
    "state-dict hook": (
        lambda: changed(
            nn.Linear(3, 4), lambda m: m.register_state_dict_post_hook(lambda *args: None)
        ),
        "it has state-dict hooks",
    ),
    "hook on loading": (
        lambda: changed(
            nn.Linear(3, 4), lambda m: m.register_load_state_dict_pre_hook(lambda *args: None)
        ),
        "it has hooks on loading a state dict",
    ),
    "parametrized out_proj": (
        lambda: _attention(lambda m: parametrizations.weight_norm(m.out_proj)),
        "its out_proj has parametrizations",
    ),
    "hooked out_proj": (
        lambda: _attention(lambda m: m.out_proj.register_forward_hook(lambda *args: None)),
        "its out_proj has forward hooks",
    ),
    "out_proj of a subclass": (
        lambda: _attention(_replace_out_proj(Scaled(4, 4))),
        r"its out_proj \(Scaled\) overrides the forward",
    ),
    "out_proj of another kind": (
        lambda: _attention(_replace_out_proj(nn.Sequential(nn.Linear(4, 4)))),
        "out_proj must be nn.Linear, got Sequential",
    ),
}


@pytest.mark.tried(
    "Conversion",
    what="methods overridden in a subclass or on an instance, hooks, parts of attention changed",
    holds="refused: the sentence names the layer, the part and what would be lost",
)
@pytest.mark.parametrize("case", CUSTOM)
def test_custom_behavior_is_refused_by_name(case):
    make, phrase = CUSTOM[case]
    net = nn.Sequential(nn.Linear(3, 3), make())
    types_before = [type(m) for m in net.modules()]
    with pytest.raises(ValueError, match=rf"layer '1' \(\w+\) cannot be .*{phrase}") as caught:
        lb.convert(net, POSTERIOR, PRIOR, inplace=True)
    assert "\n" not in str(caught.value)
    assert "exclude it" in str(caught.value)
    assert [type(m) for m in net.modules()] == types_before
    lb.convert(net, POSTERIOR, PRIOR, exclude=["1"], inplace=True)


def test_a_subclass_that_changes_no_computation_is_converted():
    class Named(nn.Linear):
        """A linear layer that starts elsewhere and shows another name."""

        def __init__(self, size):
            super().__init__(size, size)

        def reset_parameters(self):
            nn.init.eye_(self.weight)

        def extra_repr(self):
            return "named"

        def helper(self):
            return 1

    assert isinstance(lb.convert(Named(3), POSTERIOR, PRIOR), lb.extend.Affine)


@pytest.mark.tried(
    "Conversion",
    what="a converted model converted again",
    holds="refused: the sentence names the way back and the way to other posteriors",
)
def test_a_converted_model_is_not_converted_again():
    model = lb.convert(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), POSTERIOR, PRIOR)
    with pytest.raises(ValueError, match=r"converted already.*lb\.deterministic.*map_posteriors"):
        lb.convert(model, POSTERIOR, PRIOR)


@pytest.mark.tried(
    "Conversion",
    what="a network on the meta device",
    holds="can be planned; its conversion is refused: its weights have no numbers",
)
@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(3, 3), lambda: nn.Embedding(5, 3, padding_idx=0)]
)
def test_a_network_without_numbers_is_refused(make):
    with torch.device("meta"):
        net = nn.Sequential(make())
    assert len(lb.plan(net, POSTERIOR, PRIOR).layers) == 1
    with pytest.raises(ValueError, match=r"layer '0'.*meta device.*to_empty"):
        lb.convert(net, POSTERIOR, PRIOR)


FROZEN = [
    POSTERIOR,
    lb.KTied(2),
    lb.posteriors.MatrixNormal(),
    lb.Rank1(2),
    lb.posteriors.ZeroMean(),
    lb.posteriors.VariationalDropout(),
]


@pytest.mark.tried(
    "Conversion",
    what="a frozen backbone with a trained head",
    holds="nothing of the backbone learns, scales and prior included; the way back is frozen too",
)
@pytest.mark.parametrize("kind", ["linear", "lstm", "attention"])
@pytest.mark.parametrize("posterior", FROZEN, ids=repr)
def test_nothing_of_a_frozen_layer_learns(posterior, kind):
    net = nn.ModuleDict({"backbone": LAYERS[kind].module(), "head": nn.Linear(4, 2)})
    net["backbone"].requires_grad_(False)
    prior = lb.priors.Normal(0.1, loc=1.0, learn="layer")
    model = lb.convert(net, posterior, prior, bias=lb.MeanField(), bias_prior=prior)
    learns = {n for n, p in model.named_parameters() if p.requires_grad}
    assert learns == {n for n, _ in model.named_parameters() if n.startswith("head")}
    back = lb.deterministic(model, member=0)
    assert {n: p.requires_grad for n, p in back.named_parameters()} == {
        n: p.requires_grad for n, p in net.named_parameters()
    }


def test_a_model_that_is_frozen_after_its_conversion_comes_back_frozen():
    for posterior in (POSTERIOR, lb.posteriors.ZeroMean()):
        model = lb.convert(nn.MultiheadAttention(8, 2), posterior, PRIOR).requires_grad_(False)
        assert not any(p.requires_grad for p in lb.deterministic(model).parameters())


@pytest.mark.parametrize("frozen", [["0"], ["1"], ["0", "1"]])
def test_a_shared_prior_learns_if_one_of_its_layers_does(frozen):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    model = lb.convert(net, POSTERIOR, lb.priors.Normal(1.0, learn="model"))
    assert model[0].prior is model[1].prior
    assert model[0].prior.scale.requires_grad == (len(frozen) < 2)


def _as(spec):
    def change(name, posterior):
        (weight,) = posterior.tensors("means").values()
        op = posterior.transforms[next(iter(posterior.tensors("means")))].op
        return spec(weight.detach(), op)

    return change


@pytest.mark.tried(
    "Conversion",
    what="map_posteriors from a mixture of 4 members to a family without members",
    holds="a bias that the members share fits; biases that differ are refused by the layer's name",
)
@pytest.mark.parametrize("kind", ["linear", "conv2d", "lstm", "gru_cell", "attention"])
def test_plain_biases_follow_the_number_of_members(kind):
    layer, rank1 = LAYERS[kind], lb.Rank1(4)
    model = nn.ModuleDict({"a": lb.convert(layer.module(), rank1, lb.priors.Flat())})
    single = lb.extend.map_posteriors(model, _as(POSTERIOR))
    first(single["a"](*layer.input()))
    expected = lb.convert(layer.module(), POSTERIOR, lb.priors.Flat())
    shapes = {n: p.shape for n, p in single["a"].named_parameters() if "bias" in n}
    assert shapes == {n: p.shape for n, p in expected.named_parameters() if "bias" in n}
    again = lb.extend.map_posteriors(single, _as(rank1))
    assert {n: p.shape for n, p in again.named_parameters() if "bias" in n} == {
        n: p.shape for n, p in model.named_parameters() if "bias" in n
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter[1] += 1
    if shapes:
        before = snapshot(model)
        with pytest.raises(ValueError, match=r"layer 'a.*4 members.*lb\.deterministic"):
            lb.extend.map_posteriors(model, _as(POSTERIOR), inplace=True)
        assert_unchanged(model, before)
        lb.extend.map_posteriors(model, _as(lb.Rank1(4, signs=-0.1)), inplace=True)


@pytest.mark.tried(
    "Conversion",
    what="He() on an embedding of 10,000 entries",
    holds="a variance of 2: one row is looked up, so the fan-in is 1 for a table of any size",
)
@pytest.mark.parametrize(
    ("make", "fan_in"),
    [
        (lambda: nn.Embedding(10_000, 3), 1),
        (lambda: nn.EmbeddingBag(10_000, 3), 1),
        (lambda: nn.Linear(5, 3), 5),
        (lambda: nn.Conv2d(4, 6, 2, groups=2), 8),
    ],
)
def test_he_counts_the_weights_that_an_output_adds_up(make, fan_in):
    ((_, layer),) = lb.extend.random_maps(lb.convert(make(), POSTERIOR, lb.priors.He()))
    assert float(layer.prior().scale) == pytest.approx((2 / fan_in) ** 0.5)
    ((_, layer),) = lb.extend.random_maps(
        lb.convert(make(), lb.posteriors.ZeroMean(), lb.priors.He())
    )
    assert float(layer.posterior().scale.detach().max()) == pytest.approx(fan_in**-0.5, rel=0.2)
