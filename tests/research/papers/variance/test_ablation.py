"""Models without means, and with shuffled standard deviations [variance, 4.3]."""

import pytest
import torch
from registry import POSTERIORS, suitable_prior
from torch import nn

import leanbayes as lb
from research.papers.variance.ablation import permute_scales, zero_means

FACTORED = lb.Rank1 | lb.posteriors.LowRank | lb.posteriors.Point
SCALED = [n for n, spec in POSTERIORS.items() if not isinstance(spec, FACTORED)]
INDEPENDENT = [n for n in SCALED if not n.startswith("matrix_normal")] + [
    "matrix_normal_diagonal_factors"
]


def converted(posterior, module=None):
    spec = POSTERIORS[posterior] if isinstance(posterior, str) else posterior
    net = module or nn.Conv2d(2, 5, (3, 2))
    model = lb.convert(net.double(), spec, suitable_prior(spec))
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_unchanged(model, before):
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("posterior", SCALED)
def test_zero_means_keep_the_covariance(posterior):
    model = converted(posterior)
    before = snapshot(model)
    q, zero = model.posterior(), zero_means(model).posterior()
    assert_unchanged(model, before)
    assert not zero.mean.any()
    torch.testing.assert_close(zero.variance, q.variance)
    if not posterior.startswith("matrix_normal"):
        assert type(zero) is type(q)
    torch.testing.assert_close(zero.covariance(), q.covariance())
    assert (zero.normal_marginals, zero.discrete) == (q.normal_marginals, q.discrete)


@pytest.mark.parametrize("posterior", INDEPENDENT)
def test_scales_are_shuffled_and_means_stay(posterior):
    model = converted(posterior)
    before = snapshot(model)
    q, shuffled = model.posterior(), permute_scales(model).posterior()
    assert_unchanged(model, before)
    assert torch.equal(shuffled.mean, q.mean)
    assert not torch.allclose(shuffled.variance, q.variance)
    torch.testing.assert_close(
        shuffled.variance.flatten().sort().values, q.variance.flatten().sort().values
    )
    assert (shuffled.normal_marginals, shuffled.discrete) == (q.normal_marginals, q.discrete)


def test_the_shuffle_follows_its_seed_and_leaves_the_generator():
    model, state = converted("zero_mean"), torch.get_rng_state()
    first, again, other = (
        permute_scales(model, seed=seed).posterior().variance for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("posterior", ["mean_field", "dropout_layer", "k_tied_2", "zero_mean"])
@pytest.mark.parametrize("change", [zero_means, permute_scales])
def test_pruned_weights_stay_pruned(change, posterior):
    model = lb.prune(converted(posterior), keep=0.4)
    mask = model.posterior.mask
    q, changed = model.posterior(), change(model).posterior()
    assert torch.equal(changed.mask, mask)
    assert not changed.variance[~mask].any()
    torch.testing.assert_close(changed.variance[mask].sort().values, q.variance[mask].sort().values)


@pytest.mark.parametrize("change", [zero_means, permute_scales])
def test_only_the_layers_asked_for_change_and_biases_do_not(change):
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model = lb.convert(
        net,
        lb.MeanField(lb.posteriors.Scale(0.1, spread=0.05)),
        lb.priors.Normal(1.0),
        bias=lb.MeanField(),
    )
    changed = change(model, include=["1"])
    moved = [
        name
        for name, value in model.state_dict().items()
        if not torch.equal(value, changed.state_dict()[name])
    ]
    assert moved in (["1.posterior.loc"], ["1.posterior.scale"])
    assert torch.equal(model[0].bias.posterior.loc, changed[0].bias.posterior.loc)


def test_a_changed_model_is_saved_and_trained(tmp_path):
    net = nn.Linear(4, 3)
    model = lb.convert(net, lb.posteriors.VariationalDropout("neuron"), lb.priors.LogUniform())
    for changed in (zero_means(model), permute_scales(model)):
        again = lb.load(net, lb.save(changed, tmp_path / "m"))
        assert again.posterior.spec == changed.posterior.spec
        assert torch.equal(again.posterior().variance, changed.posterior().variance)
        changed(torch.randn(5, 4)).sum().backward()
        assert all(p.grad is not None for p in changed.posterior.tensors("scales").values())


@pytest.mark.parametrize("change", [zero_means, permute_scales])
def test_bad_input(change):
    with pytest.raises(ValueError, match=r"has no Bayesian layer; call lb\.convert"):
        change(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="no layer has standard deviations of single weights"):
        change(lb.convert(nn.Linear(3, 2), lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0)))
    with pytest.raises(ValueError, match="pattern 'x' matches no layer"):
        change(converted("mean_field"), include=["x"])


def test_correlated_weights_cannot_be_shuffled():
    with pytest.raises(ValueError, match=r"layer '' has correlated weights .* exclude it"):
        permute_scales(converted("matrix_normal"))
