"""Weight decay pulls scales to where they started, and state dicts of before still load."""

import copy
import io

import pytest
import torch
from dense import absolute
from torch import nn

import leanbayes as lb

LOGS = {
    "k_tied": lb.KTied(2, 0.01),
    "k_tied_log_variance": lb.KTied(2, lb.posteriors.Scale(0.01, stored="log_variance")),
    "mean_field": lb.MeanField(0.01),
    "mean_field_log_variance": lb.MeanField(lb.posteriors.Scale(0.01, stored="log_variance")),
    "mean_field_ceiling": lb.MeanField(lb.posteriors.Scale(0.01, ceiling=0.2)),
    "zero_mean": lb.posteriors.ZeroMean(scale=0.01),
    "matrix_normal": lb.posteriors.MatrixNormal(),
    "matrix_normal_low_rank": lb.posteriors.MatrixNormal(rank=1, diagonal=True),
    "low_rank": lb.posteriors.LowRank(2),
    "dropout_layer": lb.posteriors.VariationalDropout("layer"),
    "dropout_weight": lb.posteriors.VariationalDropout("weight"),
    "pruned": lb.posteriors.Pruned(lb.KTied(2, 0.01)),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=5e-4),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
}
LEARNED_PRIORS = [lb.priors.Normal(0.2, learn="layer"), lb.priors.GroupARD(0.2)]


def scales(learned):
    """Every scale of a distribution, as it is now."""
    names = [name for name, t in learned.transforms.items() if hasattr(t, "origin")]
    assert names
    return {name: learned.value(name).detach().clone() for name in names}


def decayed(learned, optimizer):
    """The same after 2,000 steps without any data."""
    optimizer = optimizer(learned.parameters())
    for parameter in learned.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(2000):
        optimizer.step()
    return learned


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("family", LOGS)
def test_weight_decay_leaves_scales_where_they_began(family, optimizer):
    learned = lb.convert(nn.Linear(5, 4), LOGS[family], lb.priors.Normal(1.0)).posterior
    before = scales(learned)
    for name, value in scales(decayed(learned, OPTIMIZERS[optimizer])).items():
        torch.testing.assert_close(value, before[name], rtol=0.01, atol=0)


@pytest.mark.parametrize("prior", LEARNED_PRIORS, ids=repr)
def test_weight_decay_leaves_learned_priors_where_they_began(prior):
    learned = prior(torch.randn(4, 5))
    before = scales(learned)
    for name, value in scales(decayed(learned, OPTIMIZERS["sgd"])).items():
        torch.testing.assert_close(value, before[name], rtol=0.01, atol=0)


def test_a_drawn_spread_decays_to_the_start():
    learned = lb.convert(nn.Linear(5, 4), lb.KTied(), lb.priors.Normal(1.0)).posterior
    value = scales(decayed(learned, OPTIMIZERS["adamw"]))["u"]
    start = (0.01 / learned.spec.rank) ** 0.5
    assert ((value / start - 1).abs() < 0.15).all()


def of_version_1(model):
    """The state dict that a model had when logarithms of scales were stored as they are."""
    state = copy.deepcopy(model.state_dict())
    for name, module in model.named_modules():
        if name in state._metadata and hasattr(module, "transforms"):
            state._metadata[name]["version"] = 1
            state.update({f"{name}.{key}": t.detach() for key, t in absolute(module).items()})
    return state


@pytest.mark.parametrize("family", LOGS)
def test_state_dicts_of_before_load(family):
    prior = lb.priors.Normal(0.2, learn="model")
    model, again = (
        lb.convert(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), LOGS[family], prior)
        for _ in range(2)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    file = io.BytesIO()
    torch.save(of_version_1(model), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(lb.kl(again), lb.kl(model))
    without_note = {name: value.clone() for name, value in model.state_dict().items()}
    again.load_state_dict(without_note)
    assert torch.equal(lb.kl(again), lb.kl(model))


def test_a_part_of_a_scale_by_fan_in_keeps_its_values():
    spec = lb.KTied(2, lb.posteriors.Scale(0.5, raw_spread=0.1, by_fan_in=True))
    op, rows, columns = lb.extend.ops.Linear(), torch.tensor([2, 0]), torch.tensor([1, 4, 3])
    whole = spec(torch.randn(4, 9), op)
    part = spec.part(whole, op, rows, columns)
    torch.testing.assert_close(part().scale, whole().scale[rows][:, columns])
    part.load_state_dict(spec(torch.zeros(2, 3), op).state_dict() | part.state_dict())
    torch.testing.assert_close(part().scale, whole().scale[rows][:, columns])
