"""Parameter groups: fast-weight learning rate and the scope of the L2 penalty."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.training.parameter_groups import parameter_groups, parameter_roles

LR, L2 = 0.1, 3e-4


def rank1_network():
    """A convolution, a normalization and a dense layer: what a wide ResNet is made of."""
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    ).double()
    return lb.convert(net, lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0))


def batch():
    return torch.randn(4, 2, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0])


def gradients(model):
    x, y = batch()
    tiled = lb.tile(x, lb.extend.members(model))
    nn.functional.cross_entropy(model(tiled), y.repeat(2)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def kind(name):
    """What a parameter is, told from its name alone."""
    last = name.rsplit(".", 1)[-1]
    if last.startswith(("r_", "s_")):
        return "fast location" if last.endswith("_loc") else "fast scale"
    return "kernel, bias or normalization"


def test_every_parameter_is_in_exactly_one_group():
    model = rank1_network()
    grouped = [p for group in parameter_groups(model, LR) for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(model.parameters()))
    assert set(map(id, grouped)) == set(map(id, model.parameters()))


def test_the_network_has_every_kind():
    kinds = [kind(name) for name, _ in rank1_network().named_parameters()]
    assert set(kinds) == {"fast location", "fast scale", "kernel, bias or normalization"}


@pytest.mark.checklist("R21")
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 2.0])
def test_fast_weights_step_with_their_own_learning_rate(multiplier):
    """One step of plain SGD moves by rate times gradient, whatever the group says of itself."""
    model = rank1_network()
    groups = parameter_groups(model, LR, multipliers={"factors": multiplier})
    optimizer = torch.optim.SGD(groups)
    slopes, before = gradients(model), values(model)
    optimizer.step()
    for name, after in values(model).items():
        rate = LR * (multiplier if kind(name) == "fast location" else 1.0)
        expected = before[name] - rate * slopes[name] if name in slopes else before[name]
        torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-14)
    moved = [name for name in slopes if kind(name) == "fast location"]
    assert all(not torch.equal(values(model)[name], before[name]) for name in moved)
    assert len(moved) == 4


@pytest.mark.checklist("R17")
def test_weight_decay_is_the_gradient_of_l2_without_a_half():
    """torch's decay is d/dw of ½ wd w², so the published l2 · Σ w² needs wd = 2 · l2."""
    model = rank1_network()
    optimizer = torch.optim.SGD(parameter_groups(model, LR, weight_decay=2 * L2))
    slopes, before = gradients(model), values(model)
    optimizer.step()
    penalized = 0
    for name, after in values(model).items():
        start = before[name].requires_grad_()
        (pull,) = torch.autograd.grad(L2 * start.square().sum(), start)
        decays = kind(name) == "kernel, bias or normalization"
        penalized += decays
        slope = slopes.get(name)
        if slope is None:
            continue  # torch leaves parameters without a gradient alone
        expected = start - LR * (slope + pull if decays else slope)
        torch.testing.assert_close(after, expected.detach(), rtol=1e-12, atol=1e-15)
    assert penalized == 6  # two kernels, two biases, gain and shift


@pytest.mark.checklist("R17")
@pytest.mark.parametrize("posterior", [lb.KTied(2), lb.MeanField()], ids=str)
def test_scales_do_not_decay(posterior):
    model = lb.convert(nn.Linear(3, 2), posterior, lb.priors.Normal(1.0))
    decay = {
        id(p): group["weight_decay"]
        for group in parameter_groups(model, LR, weight_decay=2 * L2)
        for p in group["params"]
    }
    by_name = {name: decay[id(p)] for name, p in model.named_parameters()}
    assert by_name.pop("posterior.loc") == by_name.pop("bias") == 2 * L2
    assert by_name
    assert set(by_name.values()) == {0.0}


def test_decayed_roles_can_be_chosen():
    groups = parameter_groups(rank1_network(), LR, weight_decay=0.2, decayed=("factors",))
    assert {g["role"]: g["weight_decay"] for g in groups} == {
        "means": 0.0,
        "factors": 0.2,
        "scales": 0.0,
        "other": 0.0,
    }


def test_learned_priors_are_other_parameters():
    model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0, learn="model"))
    roles = {name: parameter_roles(model)[p] for name, p in model.named_parameters()}
    assert {role for name, role in roles.items() if name.startswith("prior")} == {"other"}
    assert any(name.startswith("prior") for name in roles)


@pytest.mark.tried(
    "Input",
    what="a misspelled role in multipliers or decayed",
    holds="refused with the nearest role",
)
@pytest.mark.parametrize("options", [{"multipliers": {"factor": 0.5}}, {"decayed": ("factor",)}])
def test_a_misspelled_role_is_refused(options):
    with pytest.raises(ValueError, match=r"role 'factor' is unknown; did you mean 'factors'\?"):
        parameter_groups(rank1_network(), LR, **options)


@pytest.mark.parametrize("lr", [0.0, -0.1])
def test_a_learning_rate_is_positive(lr):
    with pytest.raises(ValueError, match=r"lr is .* must be positive"):
        parameter_groups(nn.Linear(2, 2), lr)
