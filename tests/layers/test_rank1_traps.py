"""What used to go wrong with rank-one mixtures without a word."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.errors import UntiledWarning
from leanbayes.layers.forward_pass import warn_untiled
from leanbayes.lightning import BayesianModule

X, Y = torch.randn(8, 3), torch.arange(8) % 2


def mixture(members=4):
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    return lb.convert(net, lb.Rank1(members, batch="tile"))


def said(act):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [w for w in caught if w.category is UntiledWarning]


@pytest.mark.parametrize(
    ("posterior", "prior"),
    [
        (lb.Rank1(4), lb.priors.Normal(0.1, loc=1.0)),
        (lb.Rank1(4, factors=("normal", "none")), lb.priors.Normal(0.1, loc=1.0)),
        (lb.Rank1(4, perturb="add"), lb.priors.Normal(0.1)),
        (lb.Rank1(4, factors="fixed"), lb.priors.Flat()),
    ],
)
def test_without_a_prior_factors_are_around_what_changes_nothing(posterior, prior):
    (layer,) = lb.plan(nn.Linear(3, 2), posterior).layers
    assert layer.choice.prior == prior
    assert lb.convert(nn.Linear(3, 2), posterior).prior.spec == prior


@pytest.mark.parametrize("posterior", [lb.posteriors.LowRank(2), lb.Rank1(2, factors="lognormal")])
def test_what_has_no_published_prior_asks_for_one(posterior):
    with pytest.raises(
        ValueError, match=r"has no separate prior; give one such as lb\.priors\.Normal"
    ):
        lb.convert(nn.Linear(3, 2), posterior)


@pytest.mark.parametrize("prior", [lb.priors.Normal(0.1), lb.priors.Cauchy(0.1)])
def test_a_prior_at_zero_would_switch_off_what_factors_multiply(prior):
    with pytest.raises(
        ValueError, match=r"must have loc=1\.0, .*lb\.priors\.Normal\(0\.1, loc=1\.0\)"
    ):
        lb.convert(nn.Linear(3, 2), lb.Rank1(4), prior)
    lb.convert(nn.Linear(3, 2), lb.Rank1(4, perturb="add"), prior)


def test_a_plain_loop_that_forgets_to_tile_is_told():
    (warning, *_) = said(lambda: F.cross_entropy(mixture()(X), Y).backward())
    assert "each of 4 members learns from another part" in str(warning.message)


def test_an_ensemble_is_told_too():
    ensemble = lb.DeepEnsemble.of(lambda: nn.Linear(3, 2), members=2)
    assert said(lambda: ensemble(X))
    assert not said(lambda: ensemble(lb.tile(X, 2)))


def test_positions_that_members_would_split_are_told_in_a_plain_loop():
    table = lb.convert(nn.Embedding(10, 3), lb.Rank1(4, batch="tile"))
    assert said(lambda: table(torch.arange(8)))
    assert not said(lambda: table(lb.tile(torch.arange(8), 4)))


def test_a_mixture_behind_a_trained_layer_is_not_judged():
    """Only an input that nothing trained has computed is equal for all members."""
    model = nn.Sequential(nn.Linear(3, 3), mixture())
    assert not said(lambda: model(X))
    model[0].requires_grad_(False)
    assert said(lambda: model(X))


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_numbers_that_cannot_be_read_are_not_judged(device):
    model, x = mixture().to(device), X.to(device)
    assert bool(said(lambda: model(x))) == (device == "cpu")
    each = x.expand(2, -1, -1)
    assert not said(lambda: torch.func.vmap(lambda x: warn_untiled(x, 0, 4) or x)(each))


def tiled(model):
    return F.cross_entropy(model(lb.tile(X, 4)), lb.tile(Y, 4))


def tiled_and_changed(model):
    x = lb.tile(X, 4)
    x = x + 1  # the tiled tensor itself is gone
    return model(x)


def dropped(model):
    return model(nn.Dropout(0.5)(lb.tile(X, 4)))


QUIET = {
    "input dropout": dropped,
    "tiled": tiled,
    "tiled and changed": tiled_and_changed,
    "eval mode": lambda model: model.eval()(X),
    "predict": lambda model: lb.predict(model, X, samples=2),
    "module": lambda model: BayesianModule(model, data_size=8).objective((X, Y)),
    "one member": lambda _: mixture(1)(X),
}


@pytest.mark.parametrize("case", QUIET)
def test_who_repeats_the_batch_or_does_not_train_hears_nothing(case):
    assert not said(lambda: QUIET[case](mixture()))


def test_without_gradients_nothing_is_learned_and_nothing_said():
    with torch.no_grad():
        assert not said(lambda: mixture()(X))


def test_a_plan_says_what_training_has_to_do():
    text = str(lb.plan(nn.Linear(3, 2), lb.Rank1(4)))
    assert "Repeat batches and targets for 4 members" in text
    assert "weight_decay" in text
    quiet = str(lb.plan(nn.Linear(3, 2), lb.Rank1(1, weight_scale=1.0)))
    assert "Repeat" not in quiet
    assert "weight_decay" not in quiet
