"""What save unwraps and leaves out, and state dicts of plain networks."""

import copy
import typing

import pytest
import torch
from registry import POSTERIORS, suitable_prior
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch_layers import LAYERS, first

import leanbayes as lb
from leanbayes.conversion.convert import Plan
from leanbayes.saving.adapters import fingerprint

POSTERIOR, PRIOR = lb.KTied(2), lb.priors.Normal(0.5)


def net():
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def same_outputs(a, b, x):
    torch.manual_seed(0)
    expected = a.eval()(x)
    torch.manual_seed(0)
    return torch.equal(b.eval()(x), expected)


WRAPPERS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "averaged": AveragedModel,
    "data parallel": nn.DataParallel,
    "averaged and compiled": lambda m: AveragedModel(torch.compile(m, backend="eager")),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_model_is_saved_as_the_model(name, tmp_path):
    model = lb.convert(net(), POSTERIOR, PRIOR)
    lb.save(WRAPPERS[name](model), tmp_path / "wrapped")
    assert load_file(tmp_path / "wrapped.safetensors").keys() == model.state_dict().keys()
    assert same_outputs(model, lb.load(net(), tmp_path / "wrapped"), torch.randn(4, 3))


def test_a_file_of_a_wrapped_model_from_before_loads_into_a_wrapped_network(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "leanbayes.saving.io.unwrapped", lambda model: model
    )  # as the first versions
    averaged = AveragedModel(lb.convert(net(), POSTERIOR, PRIOR))
    lb.save(averaged, tmp_path / "old")
    again = lb.load(AveragedModel(net()), tmp_path / "old")
    assert same_outputs(averaged, again, torch.randn(4, 3))


def test_an_adapter_keeps_running_averages_and_nothing_frozen(tmp_path):
    base = net()
    model = lb.convert(base, POSTERIOR, PRIOR, include=["3"], freeze="rest")
    model(torch.randn(50, 3) + 2.0)  # moves the averages of a frozen layer
    path = lb.save(model, tmp_path / "a", trainable_only=True)
    held = set(load_file(path))
    assert held == {n for n in model.state_dict() if n.startswith("3.") or "running" in n} | {
        "1.num_batches_tracked"
    }
    again = lb.load(copy.deepcopy(base), path)
    assert same_outputs(model, again, torch.randn(4, 3))
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }


def test_an_adapter_with_a_likelihood(tmp_path):
    model = lb.convert(nn.Linear(3, 1), POSTERIOR, PRIOR)
    lb.save(model, tmp_path / "a", lb.likelihoods.Gaussian(0.5, "learned"), trainable_only=True)
    assert repr(lb.saving.load_likelihood(tmp_path / "a")) == repr(
        lb.likelihoods.Gaussian(0.5, "learned")
    )
    assert torch.equal(lb.kl(lb.load(nn.Linear(3, 1), tmp_path / "a")), lb.kl(model))


def test_another_base_is_refused(tmp_path):
    base = net()
    model = lb.convert(base, POSTERIOR, PRIOR, include=["3"], freeze="rest")
    lb.save(model, tmp_path / "a", trainable_only=True)
    other = copy.deepcopy(base)
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-6
    with pytest.raises(
        lb.errors.LoadError, match="give the pretrained network that it was trained on"
    ):
        lb.load(other, tmp_path / "a")


def test_a_fingerprint_looks_at_every_tensor():
    state = {"a": torch.zeros(3), "b": torch.arange(1000.0), "c": torch.ones(2).bool()}
    seen = fingerprint(state, [])
    changes = (("a", torch.ones(3)), ("b", torch.arange(1000.0).flip(0)), ("c", torch.zeros(2)))
    assert all(fingerprint(state | {name: value}, []) != seen for name, value in changes)
    assert fingerprint(state, ["a"]) == fingerprint(state | {"a": torch.ones(3)}, ["a"]) != seen


@pytest.mark.parametrize("bias", [None, lb.MeanField(0.3)], ids=["plain_bias", "random_bias"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_plain_state_dict_loads_as_means(name, bias):
    plain, x = nn.Sequential(LAYERS[name].module()), LAYERS[name].input()
    model = lb.convert(nn.Sequential(LAYERS[name].module()), POSTERIOR, PRIOR, bias=bias)
    before = copy.deepcopy(model.state_dict())
    model.load_state_dict(plain.state_dict())
    with lb.using(model, lb.estimators.mean):
        outputs = first(model[0](*x))
    torch.testing.assert_close(outputs, first(plain[0](*x)))
    scales = [n for n in before if n.endswith((".u", ".v", ".scale"))]
    assert scales
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in scales)


@pytest.mark.parametrize("name", POSTERIORS)
def test_a_posterior_takes_plain_weights_or_says_why_not(name):
    posterior, plain = POSTERIORS[name], nn.Linear(4, 3)
    model = lb.convert(nn.Linear(4, 3), posterior, suitable_prior(posterior))
    if len(model.posterior.tensors("means")) != 1:  # products of factors, or no means at all
        with pytest.raises(RuntimeError, match="load that into the network and convert it"):
            model.load_state_dict(plain.state_dict())
        return
    model.load_state_dict(plain.state_dict())
    (means,) = model.posterior.tensors("means").values()
    assert torch.equal(means, plain.weight)
    assert torch.equal(model.bias, plain.bias.expand_as(model.bias))


def test_a_state_dict_of_neither_is_still_refused():
    model = lb.convert(net(), POSTERIOR, PRIOR)
    state = net().state_dict()
    del state["0.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.posterior\.loc"):
        model.load_state_dict(state)
    assert not model.load_state_dict(model.state_dict()).missing_keys


@pytest.mark.parametrize("function", [lb.convert, lb.deterministic, lb.load, Plan.apply])
def test_functions_return_the_type_that_they_were_given(function):
    """What that means for a type checker stands in ``typed.py``, which ``make lint`` checks."""
    hints = typing.get_type_hints(function)
    given = hints.get("net", hints.get("model"))
    assert isinstance(given, typing.TypeVar)
    assert hints["return"] is given
