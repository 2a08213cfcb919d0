"""Mixtures whose members learn from shares of a batch."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.errors import UntiledWarning
from leanbayes.likelihoods import Categorical
from leanbayes.models.random_maps import members, splits_batch
from leanbayes.posteriors import POSTERIORS
from leanbayes.spec import Spec
from leanbayes.training.objective import BatchObjective


def mixture(batch="split", factors="fixed", count=4):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    prior = lb.priors.Flat() if factors == "fixed" else lb.priors.Normal(0.1, loc=1.0)
    return lb.convert(net, lb.Rank1(count, factors=factors, batch=batch), prior)


def batch_of(size):
    return torch.randn(size, 5).double(), torch.randint(3, (size,))


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("size", [8, 10, 11])
def test_the_gradient_is_that_of_members_trained_on_their_shares(size):
    model, (x, y) = mixture(), batch_of(size)
    count, share = 4, size // 4
    outputs = model(lb.tile(x, count)).unflatten(0, (count, size))
    losses = [
        F.cross_entropy(outputs[m, m * share : (m + 1) * share], y[m * share : (m + 1) * share])
        for m in range(count)
    ]
    found = BatchObjective(model, Categorical(), 100)((x, y)).loss
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, model), gradients(expected, model))


def test_a_batch_smaller_than_the_members_is_tiled():
    split, tiled = mixture("split"), mixture("tile")
    batch = batch_of(3)
    losses = [BatchObjective(m, Categorical(), 100)(batch).loss for m in (split, tiled)]
    torch.testing.assert_close(*losses)


def test_tiling_shows_every_member_the_whole_batch():
    model, (x, y) = mixture("tile"), batch_of(8)
    expected = F.cross_entropy(model(lb.tile(x, 4)), lb.tile(y, 4))
    torch.testing.assert_close(BatchObjective(model, Categorical(), 100)((x, y)).loss, expected)


@pytest.mark.parametrize("loss", ["average", "mixture"])
def test_several_draws_of_a_split_batch(loss):
    model = mixture(factors="normal")
    objective = BatchObjective(model, Categorical(), 100, samples=3, loss=loss)
    assert objective(batch_of(10)).loss.isfinite()


def test_predictions_are_those_of_every_member_for_every_example():
    split, tiled = mixture("split"), mixture("tile")
    x, _ = batch_of(7)
    outputs = [lb.predict(model, x, samples=2, seed=0).samples for model in (split, tiled)]
    assert torch.equal(*outputs)
    assert outputs[0].shape == (8, 7, 3)


def test_an_ensemble_of_mixtures_tiles():
    ensemble = lb.DeepEnsemble([mixture(count=2), mixture(count=2)])
    assert members(ensemble) == 4
    assert not splits_batch(ensemble)


def test_parts_that_are_meant_bring_no_warning():
    x, _ = batch_of(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixture("split").train()(x)
    with pytest.warns(UntiledWarning):
        mixture("tile").train()(x)


def test_fit_splits_and_says_nothing():
    torch.manual_seed(0)
    x, y = torch.randn(50, 5).double(), torch.randint(3, (50,))
    model, seen = mixture(), []
    model[0].register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntiledWarning)
        lb.fit(model, (x, y), epochs=1, batch_size=10, progress=False)
    assert set(seen) == {8}


def test_specs_of_before_tile():
    described = lb.Rank1(4).to_dict()
    assert Spec.from_dict(described, POSTERIORS) == lb.Rank1(4, batch="split")
    del described["batch"]
    assert Spec.from_dict(described, POSTERIORS) == lb.Rank1(4, batch="tile")
    with pytest.raises(ValueError, match="batch"):
        lb.Rank1(4, batch="shared")
