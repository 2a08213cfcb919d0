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

import leanbayes as lb
from test_convert import POSTERIOR, PRIOR, assert_unchanged, snapshot

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


def by_weight(kept):
    return sorted(kept, key=lambda layer: float(layer.weight.detach().sum()))


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
    with lb.using(model, lb.mean):
        torch.testing.assert_close(back(x), model(x))
    if way != "inplace":
        assert_unchanged(net, before)
        assert {id(layer) for layer in net.layers(net.kept)} == {id(net.a), id(net.b)}


def test_what_is_not_converted_stays_in_its_containers():
    net = Walk(*CONTAINERS["list"])
    model = lb.convert(net, POSTERIOR, PRIOR, exclude=["b"], inplace=True)
    assert model.kept == [model.a, model.b]
    assert isinstance(model.a, lb.Affine)
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
