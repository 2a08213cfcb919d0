"""Automatic relevance determination of weights, rows and columns with every Gaussian family
[matrix normal, sections 3.1–3.2], and pruning by it.
"""

import math
import re

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import leanbayes as lb
from leanbayes.compression.prune import RELEVANT
from leanbayes.distributions import GroupRelevanceNormal

FAMILIES = {
    "mean_field": lb.MeanField(lb.posteriors.Scale(0.3, spread=0.1)),
    "k_tied": lb.KTied(2, lb.posteriors.Scale(0.3, raw_spread=0.3)),
    "matrix_normal": lb.posteriors.MatrixNormal(0.3),
    "matrix_normal_plus_diagonal": lb.posteriors.MatrixNormal(0.3, diagonal=True),
}
EXACT = [name for name in FAMILIES if name != "matrix_normal_plus_diagonal"]
GROUPS = ["row", "column", "both"]

over_families = pytest.mark.parametrize("family", FAMILIES)
over_groups = pytest.mark.parametrize("groups", GROUPS)


def layer(family, prior, shape=(4, 3)):
    """A layer away from its first values, with rows and columns of different sizes."""
    out, columns = shape
    net = nn.Linear(columns, out, bias=False).double()
    with torch.no_grad():
        net.weight.mul_(torch.outer(torch.logspace(-1, 1, out), torch.logspace(1, -1, columns)))
    model = lb.convert(net, FAMILIES[family], prior)
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def second_moments(model):
    q = model.posterior()
    return (q.mean.square() + q.variance).detach()


def minimize(loss, parameters):
    optimizer = torch.optim.LBFGS(parameters, max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(3):
        optimizer.step(closure)


# the priors


@over_groups
@over_families
def test_gradient_and_block_updates_reach_the_same_relevances(family, groups):
    model = layer(family, lb.priors.GroupARD(0.5, groups))
    minimize(model.kl, list(model.prior.parameters()))
    by_gradient, kl = model.prior().scale.detach(), model.kl().item()
    for start in (0.1, 5.0):
        model.prior = lb.priors.GroupARD(start, groups)(model.mean_weight.detach())
        assert torch.allclose(model.prior().scale, torch.tensor(start).double())
        lb.training.update_priors(model, rounds=100)
        torch.testing.assert_close(model.prior().scale, by_gradient, rtol=1e-4, atol=0)
        assert model.kl().item() == pytest.approx(kl, abs=1e-6)


@over_families
def test_relevances_of_rows_or_columns_alone_have_a_closed_form(family):
    model = layer(family, lb.priors.GroupARD(groups="row"))
    lb.training.update_priors(model)
    second = second_moments(model)
    torch.testing.assert_close(model.prior().row_precision, 3 / second.sum(1))
    assert model.prior().column_precision is None
    model = layer(family, lb.priors.GroupARD(groups="column"))
    lb.training.update_priors(model)
    torch.testing.assert_close(model.prior().column_precision, 4 / second_moments(model).sum(0))


@over_groups
@pytest.mark.parametrize("family", EXACT)
def test_the_kl_is_that_of_a_dense_normal(family, groups):
    model = layer(family, lb.priors.GroupARD(0.7, groups))
    with torch.no_grad():
        for parameter in model.prior.parameters():
            parameter.normal_()
    stored = {name: model.prior.value(name).tolist() for name in model.prior.roles}
    tau, gamma = stored.get("row_precision", [1.0] * 4), stored.get("column_precision", [1.0] * 3)
    variance = torch.tensor([[1 / (t * g) for g in gamma] for t in tau], dtype=torch.float64)
    q = model.posterior()
    dense = kl_divergence(
        MultivariateNormal(q.mean.flatten(), q.covariance()),
        MultivariateNormal(torch.zeros(12).double(), torch.diag(variance.flatten())),
    )
    torch.testing.assert_close(model.kl(), dense)


@pytest.mark.parametrize(
    "prior", [lb.priors.ARD(), *(lb.priors.GroupARD(0.7, g) for g in GROUPS)], ids=repr
)
def test_plus_a_diagonal_the_kl_is_a_bound_from_above(prior):
    model = layer("matrix_normal_plus_diagonal", prior)
    q, second = model.posterior(), second_moments(model)
    variance = second if prior == lb.priors.ARD() else torch.full((4, 3), 0.49).double()
    dense = kl_divergence(
        MultivariateNormal(q.mean.flatten(), q.covariance()),
        MultivariateNormal(torch.zeros(12).double(), torch.diag(variance.flatten())),
    )
    assert dense < model.kl() < dense + 12


@over_families
def test_ard_is_the_best_prior_of_single_weights(family):
    model = layer(family, lb.priors.ARD())
    best, second = model.kl(), second_moments(model)
    q = model.posterior()
    marginal = 0.5 * (2 * math.pi * math.e * second).log().sum() - q.entropy()
    torch.testing.assert_close(best, marginal)
    for groups in GROUPS:
        grouped = layer(family, lb.priors.GroupARD(groups=groups))
        grouped.posterior = model.posterior
        lb.training.update_priors(grouped, rounds=200)
        assert grouped.kl() > best


@over_groups
def test_a_part_of_a_group_prior_has_the_relevances_of_its_groups(groups):
    spec = lb.priors.GroupARD(0.5, groups)
    whole = spec(torch.zeros(4, 3).double())
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.normal_()
    rows, columns = torch.tensor([3, 0]), torch.tensor([2])
    part = spec.part(whole, rows, columns)
    expected = whole().scale.expand(4, 3)[rows][:, columns]
    torch.testing.assert_close(part().scale.expand(2, 1), expected)
    assert part.spec == spec


@over_groups
def test_group_priors_keep_the_contract_of_a_prior(groups):
    lb.testing.check_prior(lb.priors.GroupARD(0.5, groups))


@over_groups
def test_group_priors_are_saved(groups, tmp_path):
    net = nn.Linear(3, 4)
    model = lb.convert(net, lb.MeanField(), lb.priors.GroupARD(0.5, groups))
    lb.training.update_priors(model, rounds=3)
    again = lb.load(net, lb.save(model, tmp_path / "m"))
    assert again.prior.spec == model.prior.spec
    assert torch.equal(lb.kl(again), lb.kl(model))


@pytest.mark.parametrize("by_blocks", [False, True], ids=["gradient", "blocks"])
@over_families
def test_inputs_without_a_use_are_switched_off_and_the_others_are_not(family, by_blocks):
    """A regression on two of six inputs, with relevances of columns."""
    x = torch.randn(200, 6)
    truth = torch.zeros(3, 6)
    truth[:, 1], truth[:, 4] = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([-1.0, 0.3, 1.5])
    y = x @ truth.T + 0.1 * torch.randn(200, 3)
    model = lb.convert(nn.Linear(6, 3), FAMILIES[family], lb.priors.GroupARD(groups="column"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        nll = 0.5 * ((model(x) - y) / 0.1).square().sum(1).mean()
        lb.elbo(nll, lb.kl(model), data_size=200).loss.backward()
        optimizer.step()
        if by_blocks:
            lb.training.update_priors(model)
    precision = model.prior().column_precision
    assert precision[[0, 2, 3, 5]].min() > 10 * precision[[1, 4]].max()
    pruned = lb.prune(model, by="relevance", groups="column", threshold=0.9)
    assert pruned.posterior.mask.any(0).tolist() == [False, True, False, False, True, False]


# pruning by relevance


@over_families
def test_relevance_is_the_share_of_the_second_moment_in_the_mean(family):
    model = layer(family, lb.priors.ARD(), (8, 7))
    q = model.posterior()
    expected = q.mean.square() / second_moments(model)
    pruned = lb.prune(model, by="relevance", threshold=0.5)
    assert torch.equal(pruned.posterior.mask, expected >= 0.5)
    assert 0 < lb.compression.density(pruned)[""] < 1


@over_families
def test_the_threshold_that_is_stated_is_log_alpha_of_three(family):
    assert pytest.approx(0.0474, abs=1e-4) == RELEVANT
    model = layer(family, lb.priors.ARD(), (20, 20))
    ours = lb.prune(model, by="relevance").posterior.mask
    assert torch.equal(ours, lb.prune(model, by="log_alpha", threshold=3.0).posterior.mask)
    assert 0 < ours.double().mean() < 1


@pytest.mark.parametrize(
    "prior", [lb.priors.GroupARD(0.5), lb.priors.ARD(), lb.priors.Normal(1.0)], ids=repr
)
@pytest.mark.parametrize("groups", ["row", "column"])
@over_families
def test_the_relevance_of_a_group_weighs_by_the_precision_of_a_group_prior(family, groups, prior):
    model = layer(family, prior, (6, 5))
    lb.training.update_priors(model, rounds=50)
    q, second = model.posterior(), second_moments(model)
    p = model.prior()
    precision = p.scale**-2 if isinstance(p, GroupRelevanceNormal) else torch.ones(6, 5).double()
    dim = 1 if groups == "row" else 0
    share = (q.mean.square() * precision).sum(dim) / (second * precision).sum(dim)
    if isinstance(p, GroupRelevanceNormal):  # at the optimum: the mean of μ²/λ² over the group
        mean = (q.mean.square() * precision).mean(dim)
        torch.testing.assert_close(share, mean, rtol=1e-4, atol=1e-6)
    cut = share.detach().sort().values[2:4].mean().item()
    mask = lb.prune(model, by="relevance", groups=groups, threshold=cut).posterior.mask
    assert torch.equal(mask, (share >= cut).unsqueeze(dim).expand(6, 5))


@pytest.mark.parametrize("by", ["scale", "snr", "log_alpha"])
@pytest.mark.parametrize("groups", ["row", "column"])
def test_by_other_criteria_a_group_matters_as_its_best_weight(groups, by):
    model = layer("mean_field", lb.priors.Normal(1.0), (6, 5))
    q, dim = model.posterior(), 1 if groups == "row" else 0
    std = q.variance.sqrt()
    score = {"scale": std, "snr": q.mean.abs() / std, "log_alpha": q.mean.abs() / std}[by]
    best = score.amax(dim).topk(3).indices
    mask = lb.prune(model, by=by, groups=groups, keep=0.5 if groups == "row" else 0.6)
    kept = mask.posterior.mask.any(dim)
    assert set(kept.nonzero().flatten().tolist()) == set(best.tolist())
    assert mask.posterior.mask.sum() == 3 * (5 if groups == "row" else 6)


def test_groups_are_ranked_over_the_model_and_stay_pruned():
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).double()
    model = lb.convert(net, lb.MeanField(0.3), lb.priors.Normal(1.0))
    with torch.no_grad():
        model[1].posterior.loc.mul_(100.0)
    pruned = lb.prune(model, by="snr", groups="row", keep=6 / 9, scope="model")
    masks = [layer.posterior.mask for _, layer in lb.extend.random_maps(pruned)]
    assert [int(mask.any(1).sum()) for mask in masks] == [2, 4]
    again = lb.prune(pruned, by="relevance", groups="row", keep=0.9)
    assert torch.equal(again[0].posterior.mask, masks[0])
    fewer = lb.prune(pruned, by="relevance", groups="column", keep=0.5)
    assert not (fewer[0].posterior.mask & ~masks[0]).any()
    masks[0][0, 0] = ~masks[0][0, 0]  # a mask of its own memory, not a view of one row
    assert masks[0][0].any() != masks[0][0].all()


# bad input


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda m: lb.priors.GroupARD(groups="rows"),
            "groups 'rows' is unknown; did you mean 'row'?",
        ),
        (lambda m: lb.prune(m, groups="col", keep=0.5), "groups 'col' is unknown; did you mean"),
        (lambda m: lb.prune(m, groups="row"), "keep is None and threshold is None; give one"),
        (
            lambda m: lb.prune(m, by="relevance", groups="row", threshold=1.5),
            "threshold 1.5 would prune every weight: the largest relevance is",
        ),
        (lambda m: GroupRelevanceNormal(), "belong to rows, to columns or to both; give one"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        call(lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0)))
    assert "\n" not in str(caught.value)


def test_a_variance_layer_is_warned_of():
    model = lb.convert(nn.Linear(6, 4), lb.posteriors.ZeroMean(), lb.priors.ARD())
    with (
        pytest.warns(UserWarning, match="is a variance layer"),
        pytest.raises(ValueError, match="would prune every weight"),
    ):
        lb.prune(model, by="relevance", groups="row")
