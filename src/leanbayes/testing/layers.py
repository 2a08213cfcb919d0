"""The contract of a layer kind: from a torch layer, back to it, and everything in between."""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import convert, deterministic
from leanbayes.estimators import mean, weights
from leanbayes.layers import is_bayesian, is_convertible
from leanbayes.models.random_maps import held, kl, random_maps, using
from leanbayes.posteriors import MeanField, Point
from leanbayes.priors import Normal
from leanbayes.saving.io import load, save
from leanbayes.testing.assertions import assert_close, assert_gradients, seeded

_PRIOR = Normal(1.0)


def check_layer(
    net: nn.Module, *inputs: Any, refused: Sequence[nn.Module] = (), seed: int = 0
) -> None:
    """Check the Bayesian layer of a torch layer against its contract.

    It must convert and come back with the same weights under the same names, answer as the torch
    layer where its weights are the means, be one function where a draw is held, count every weight
    once in the KL, learn, stay frozen, be saved and loaded, and refuse what would be lost.

    Args:
        net: a torch layer whose kind was registered, in any state.
        *inputs: what it is called with.
        refused: layers whose options the kind does not know.
        seed: seed of the draws; the global generator is left as it was.

    Raises:
        AssertionError: If a part of the contract does not hold.
    """
    name = type(net).__name__
    assert is_convertible(net), f"{name} has no kind of layer; call lb.extend.register_layer"
    net = copy.deepcopy(net).eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with seeded(seed):
        for bias in (None, MeanField(0.1)):
            model = convert(net, MeanField(0.1), _PRIOR, bias=bias)
            assert is_bayesian(model), f"from_torch of {name} gives no lb.extend.Layer"
            assert any(True for _ in random_maps(model)), f"nothing in {name} became random"
            _check_outputs(model, net, inputs)
            _check_way_back(model, net, inputs)
            _check_file(model, net, inputs)
        _check_kl(net, inputs)
        _check_learning(net, inputs)
        hooked = copy.deepcopy(net)
        hooked.register_forward_hook(lambda module, inputs, output: output)
        for module in (hooked, *refused):
            _check_refusal(module)
    unchanged = all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert unchanged, f"converting {name} changed the torch layer"


def _tensors(output: Any) -> Iterator[Tensor]:
    """All tensors of an output, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Sequence):
        for part in output:
            yield from _tensors(part)


@torch.no_grad()
def _check_outputs(model: nn.Module, net: nn.Module, inputs: Sequence[Any]) -> None:
    name = type(net).__name__
    with using(model, mean):
        assert_close(model(*inputs), net(*inputs), f"with its means {name} gives other outputs")
    with using(model, weights):
        pairs = zip(_tensors(model(*inputs)), _tensors(model(*inputs)), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs), f"{name} does not use its draws"
    with held(model):
        assert_close(model(*inputs), model(*inputs), f"{name} draws again while it is held")


@torch.no_grad()
def _check_way_back(model: nn.Module, net: nn.Module, inputs: Sequence[Any]) -> None:
    name, back = type(net).__name__, deterministic(model)
    assert type(back) is type(net), f"{name} comes back as {type(back).__name__}"
    ours, theirs = back.state_dict(), net.state_dict()
    assert list(ours) == list(theirs), f"{name} comes back with tensors {list(ours)}"
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), f"{key} of {name} comes back with other numbers"
    assert_close(back(*inputs), net(*inputs), f"{name} comes back with other options")


@torch.no_grad()
def _check_file(model: nn.Module, net: nn.Module, inputs: Sequence[Any]) -> None:
    name = type(net).__name__
    with tempfile.TemporaryDirectory() as folder:
        again = load(net, save(model, f"{folder}/layer"))
    assert torch.equal(kl(again), kl(model)), f"a saved {name} has another KL"
    with using(model, mean), using(again, mean):
        assert_close(again(*inputs), model(*inputs), f"a saved {name} gives other outputs")


def _check_kl(net: nn.Module, inputs: Sequence[Any]) -> None:
    name, model = type(net).__name__, convert(net, Point(), _PRIOR)
    sizes = [sum(p.numel() for p in module.parameters()) for module in (net, model)]
    assert sizes[0] == sizes[1], f"{name} has {sizes[0]} numbers, and {sizes[1]} as point estimates"
    first = kl(model)
    model(*inputs)
    assert torch.equal(kl(model), first), f"the KL of {name} depends on a call"
    twice = nn.ModuleList([model, model])
    assert torch.equal(kl(twice), first), f"the KL of a shared {name} is counted twice"


def _check_learning(net: nn.Module, inputs: Sequence[Any]) -> None:
    name, model = type(net).__name__, convert(net, MeanField(0.1), _PRIOR, weights)
    loss = sum(y.square().sum() for y in _tensors(model(*inputs)) if y.requires_grad) + kl(model)
    loss.backward()
    assert_gradients(model.named_parameters(), name)
    frozen = convert(copy.deepcopy(net).requires_grad_(False), MeanField(0.1), _PRIOR)
    trained = [key for key, p in deterministic(frozen).named_parameters() if p.requires_grad]
    assert not trained, f"{trained[0]} of a frozen {name} comes back trained"


def _check_refusal(module: nn.Module) -> None:
    try:
        convert(module, MeanField(), _PRIOR)
    except ValueError as error:
        sentence = str(error.__cause__ or error)
    else:
        raise AssertionError(f"{module} is converted although it is to be refused")
    assert "\n" not in sentence, f"{module} is refused in more than one sentence: {sentence}"
