"""Every option of rank-one factors on linear and convolutional layers, and training with them.

Options are those of the paper and its code [rank-1, appendices B, C and E].
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.lightning import BayesianModule
from leanbayes.training.parameter_groups import parameter_groups
from research.networks import build

MEMBERS = 3
LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "conv": (lambda: nn.Conv2d(5, 4, 3, padding=1), (5, 6, 7)),
}
KINDS = {
    "normal": lb.priors.Normal(0.1, loc=1.0),
    "cauchy": lb.priors.Cauchy(0.1, loc=1.0),
    "lognormal": lb.priors.LogNormal(0.1),
    "halfcauchy": lb.priors.HalfCauchy(0.1),
    "fixed": lb.priors.Normal(0.1, loc=1.0),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def converted(name, prior=None, estimator=lb.estimators.local, **options):
    make, shape = LAYERS[name]
    recipe = lb.Rank1(MEMBERS, batch="tile", **options)
    first = recipe.factors if isinstance(recipe.factors, str) else recipe.factors[0]
    model = lb.convert(make(), recipe, prior or KINDS.get(first, lb.priors.Flat()), estimator)
    return model, torch.randn(2 * MEMBERS, *shape)


@every_layer
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_factor_has_gradients(name, kind):
    model, x = converted(name, factors=kind)
    lb.elbo(model(x).square().mean(), lb.kl(model), data_size=10).loss.backward()
    for title, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), title
        assert parameter.grad.any(), title


@pytest.mark.checklist("R12")
@every_layer
@pytest.mark.parametrize(("side", "size"), [("r", 4), ("s", 5)])
def test_one_side_alone_has_factors_and_a_kl(name, side, size):
    factors = ("normal", "none") if side == "r" else ("none", "normal")
    model, x = converted(name, prior=KINDS["normal"], factors=factors, kl="sum")
    q = model.posterior()
    assert (q.r is None) == (side == "s")
    factor = q.r if side == "r" else q.s
    assert factor.loc.shape == (MEMBERS, size)
    expected = torch.distributions.kl_divergence(
        factor, torch.distributions.Normal(torch.tensor(1.0), torch.tensor(0.1))
    )
    torch.testing.assert_close(lb.kl(model), expected.sum(), rtol=1e-4, atol=1e-4)
    assert len(model(x)) == len(x)


@every_layer
@pytest.mark.parametrize("estimator", [lb.estimators.local, lb.estimators.weights])
@pytest.mark.parametrize("clip", [10.0, None])
def test_heavy_tails_are_clipped_in_both_kinds_of_layer(name, estimator, clip):
    """A layer that passes its input on shows the factors of its outputs."""
    options = {"factors": ("cauchy", "none"), "rate": 0.999, "clip": clip}
    model, x = converted(name, prior=KINDS["cauchy"], estimator=estimator, **options)
    with torch.no_grad():
        weight = model.posterior.get_parameter("weight")
        weight.zero_()
        center = (slice(None), slice(None), *(1,) * (weight.ndim - 2))
        weight[center] = torch.eye(4, 5) if weight.ndim > 2 else weight[center]
        if weight.ndim == 2:
            weight.copy_(torch.eye(4, 5))
        model.bias.zero_()
        largest = max(float(model(torch.ones_like(x)).abs().max()) for _ in range(200))
    assert (largest == 10) if clip else (largest > 20)


@every_layer
def test_scales_start_at_the_rate_and_means_at_the_signs(name):
    model, _ = converted(name, factors="cauchy", rate=1e-6, signs=0.5)
    q = model.posterior()
    for factor in (q.r, q.s):
        torch.testing.assert_close(factor.scale, torch.full_like(factor.scale, 1e-3), rtol=1e-3,
                                   atol=0.0)  # fmt: skip
        assert set(factor.loc.flatten().tolist()) <= {-1.0, 1.0}


@pytest.mark.checklist("R14")
@every_layer
def test_log_normal_factors_start_with_mean_one(name):
    """The published initializer, ones for the mean of the logarithm, makes factors of e."""
    model, _ = converted(name, factors="lognormal", signs=0.0, rate=1e-3)
    q = model.posterior()
    assert len(set(q.r.loc.flatten().tolist())) == 1
    assert math.isclose(float(q.r.mean.detach().mean()), 1.0, rel_tol=2e-3)


@pytest.mark.checklist("R14")
def test_spread_log_normal_factors_keep_mean_one():
    torch.manual_seed(0)
    posterior = lb.Rank1(members=50, factors="lognormal", signs=-0.5, rate=0.1)
    layer = lb.convert(nn.Linear(400, 2), posterior, prior=lb.priors.LogNormal(0.1))
    factor = layer.posterior().s
    assert math.isclose(factor.mean.mean().item(), 1.0, rel_tol=0.03)
    assert math.isclose(factor.loc.std().item(), 0.5, rel_tol=0.03)


@every_layer
def test_every_member_has_a_bias_of_its_own(name):
    model, x = converted(name, factors="fixed", signs=0.0)
    assert model.bias.shape == (MEMBERS, 4)
    with torch.no_grad():
        model.bias.copy_(torch.arange(3.0).unsqueeze(1))
        apart = model(torch.zeros_like(x)).unflatten(0, (MEMBERS, 2))
    for member in range(MEMBERS):
        assert set(apart[member].flatten().tolist()) == {float(member)}


@every_layer
def test_the_kl_is_summed_or_averaged_over_members(name):
    values = []
    for kl in ("sum", "mean"):
        torch.manual_seed(3)
        model, _ = converted(name, factors="normal", kl=kl)
        values.append(lb.kl(model).detach())
    torch.testing.assert_close(values[0], MEMBERS * values[1])


@every_layer
def test_weights_and_biases_decay_and_factors_do_not(name):
    model, _ = converted(name, factors="normal")
    groups = parameter_groups(model, 0.1, multipliers={"factors": 0.5}, weight_decay=0.2)
    by_role = {group["role"]: group for group in groups}
    assert {role: group["weight_decay"] for role, group in by_role.items()} == {
        "means": 0.2,
        "factors": 0.0,
        "scales": 0.0,
        "other": 0.2,
    }
    assert by_role["factors"]["lr"] == 0.05
    assert sum(p.numel() for p in by_role["factors"]["params"]) == MEMBERS * (4 + 5)


# average and mixture


def module(loss, samples=1):
    torch.manual_seed(0)
    model, x = converted("linear", factors="fixed")
    trained = BayesianModule(model, data_size=10, loss=loss, train_samples=samples)
    return model, trained, (x[:4], torch.tensor([0, 1, 2, 3]))


@pytest.mark.checklist("R13")
@pytest.mark.parametrize("samples", [1, 2])
def test_training_takes_the_average_or_the_mixture_of_members(samples):
    model, trained, (x, y) = module("mixture", samples)
    log_probs = model(lb.tile(x, MEMBERS)).unflatten(0, (MEMBERS, 4)).log_softmax(-1)
    right = log_probs.gather(-1, y.expand(MEMBERS, 4).unsqueeze(-1)).squeeze(-1)
    mixture = -(right.exp().mean(0)).log().mean()
    torch.testing.assert_close(trained.objective((x, y)).nll, mixture)
    average = module("average", samples)[1].objective((x, y)).nll
    torch.testing.assert_close(average, -right.mean())
    assert average > mixture


@pytest.mark.checklist("R13")
def test_gradients_of_the_mixture_weigh_members_by_their_likelihood():
    """``∇p_k / Σp`` instead of ``∇p_k / (K p_k)``."""
    model, trained, (x, y) = module("mixture")
    bias = model.bias
    (found,) = torch.autograd.grad(trained.objective((x, y)).nll, bias)
    log_probs = model(lb.tile(x, MEMBERS)).unflatten(0, (MEMBERS, 4)).log_softmax(-1).detach()
    right = log_probs.gather(-1, y.expand(MEMBERS, 4).unsqueeze(-1)).squeeze(-1)
    shares = right.softmax(0).unsqueeze(-1)
    expected = (shares * (log_probs.exp() - F.one_hot(y, 4))).mean(1)
    torch.testing.assert_close(found, expected)


def test_another_loss_gets_a_sentence():
    with pytest.raises(ValueError, match="loss is 'sum'; it is 'average' or 'mixture'"):
        BayesianModule(nn.Linear(2, 2), data_size=1, loss="sum")


# heavy tails in a whole network


@pytest.mark.parametrize("seed", range(5))
def test_cauchy_factors_train_a_residual_network_without_nan(seed):
    """With the published learning rate, and scales wide enough that tails are met at once."""
    torch.manual_seed(seed)
    net = build("resnet-small", filters=(4, 8))
    model = lb.convert(
        net, lb.Rank1(2, "cauchy", rate=0.01, kl="sum"), KINDS["cauchy"], lb.estimators.local
    )
    trained = BayesianModule(model, data_size=64, lr=0.1)
    groups = parameter_groups(model, 0.1, weight_decay=2e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    x, y = torch.randn(32, 1, 12, 12), torch.arange(32) % 4
    first = None
    for _ in range(40):
        optimizer.zero_grad()
        parts = trained.objective((x, y))
        parts.loss.backward()
        optimizer.step()
        assert torch.isfinite(parts.loss)
        first = first or float(parts.loss.detach())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert float(parts.loss.detach()) < first


def test_dropout_of_a_residual_network_draws_in_predictions():
    net = build("resnet-small", filters=(4, 8), dropout=0.3)
    rates = [part.p for part in net.modules() if isinstance(part, nn.Dropout)]
    assert rates == [0.3] * 3  # before both convolutions of the block and before the dense layer
    x = torch.randn(2, 1, 12, 12)
    plain = lb.predict(net, x, samples=2).samples
    assert torch.equal(plain[0], plain[1])
    drawn = lb.predict(lb.mc_dropout(net), x, samples=2).samples
    assert not torch.equal(drawn[0], drawn[1])


def test_a_centered_prior_leaves_means_alone():
    layer = nn.Linear(3, 2)
    model = lb.convert(layer, lb.MeanField(0.05), lb.priors.Centered(0.1))
    q = model.posterior()
    shifted = torch.distributions.Normal(q.mean.detach(), torch.tensor(0.1))
    each = torch.distributions.kl_divergence(
        torch.distributions.Normal(q.mean, q.variance.sqrt()), shifted
    )
    torch.testing.assert_close(lb.kl(model), each.sum())
    lb.kl(model).backward()
    loc = next(p for n, p in model.posterior.named_parameters() if "loc" in n)
    assert loc.grad is None or not loc.grad.any()
    with pytest.raises(ValueError, match="scale is 0"):
        lb.priors.Centered(0.0)
    with pytest.raises(ValueError, match="is a prior of weights"):
        lb.convert(layer, lb.Rank1(2), lb.priors.Centered(0.1))
