"""One draw for a forward pass, where a pass can be seen; and weights that other code reads."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb
from leanbayes.layers.forward_pass import forward_pass
from leanbayes.lightning import BayesianModule

FAMILIES = {
    "mean_field": (lb.MeanField(0.5), lb.priors.Normal(1.0)),
    "k_tied": (lb.KTied(2), lb.priors.Normal(1.0)),
    "matrix_normal": (lb.posteriors.MatrixNormal(), lb.priors.Normal(1.0)),
    "rank1": (lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0)),
    "zero_mean": (lb.posteriors.ZeroMean(), lb.priors.LogUniform()),
}


class Twice(nn.Module):
    """A layer's output, and the difference of two of them: zero for any one function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        y = self.layer(x)
        return torch.cat([y, y - self.layer(x)], -1)


def difference(outputs):
    return outputs[..., 2:]


@pytest.mark.tried(
    "Serving",
    what="a layer that one forward pass calls twice, in predict and in Lightning",
    holds="it keeps one draw for the pass",
)
@pytest.mark.parametrize(
    "estimator", [lb.estimators.auto, lb.estimators.weights], ids=lambda e: e.__name__
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_that_is_called_twice_keeps_its_draw(family, estimator):
    model = lb.convert(Twice(), *FAMILIES[family], estimator)
    x = torch.randn(6, 3)
    assert difference(lb.predict(model, x, samples=3).samples).abs().max() == 0
    assert difference(lb.predict(model, x, samples=2, batch_size=2).samples).abs().max() == 0
    module = BayesianModule(
        model, data_size=100, likelihood=lb.likelihoods.Gaussian(1.0), output=difference
    )
    target = torch.zeros(6, 2)
    expected = module.likelihood.nll(torch.zeros(6, 2), target)
    torch.testing.assert_close(module.objective((x, target)).nll, expected)
    with lb.held(model):
        assert difference(model(x)).abs().max() == 0


def test_a_pass_is_not_seen_in_a_loop_of_ones_own():
    """Which the gotchas say, with what to do."""
    model = lb.convert(Twice(), lb.MeanField(0.5), lb.priors.Normal(1.0))
    x = torch.randn(6, 3)
    assert difference(model(x)).std() > 0.1
    with lb.using(model, lb.estimators.weights), forward_pass():
        assert difference(model(x)).abs().max() == 0


def test_batches_of_different_sizes_share_a_draw():
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            y = self.layer(x)
            return torch.cat([y, y - self.layer(x.repeat_interleave(2, 0))[::2]], -1)

    for posterior, prior in FAMILIES.values():
        model = lb.convert(Siamese(), posterior, prior)
        drawn = difference(lb.predict(model, torch.randn(4, 3), samples=2).samples)
        torch.testing.assert_close(drawn, torch.zeros_like(drawn), atol=1e-6, rtol=0)


def test_repeatable_where_a_layer_is_called_twice():
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    model, x = lb.convert(Again(), lb.MeanField(0.5), lb.priors.Normal(1.0)), torch.randn(4, 3)
    first, second = (lb.predict(model, x, samples=3, seed=1).samples for _ in range(2))
    assert torch.equal(first, second)
    with lb.using(model, lb.estimators.weights):
        assert torch.equal(lb.predict(model, x, samples=3, seed=1).samples, first)


def test_noise_of_every_output_that_was_asked_for_stays():
    model = lb.convert(Twice(), lb.MeanField(0.5), lb.priors.Normal(1.0), lb.estimators.local)
    assert difference(lb.predict(model, torch.randn(6, 3), samples=3).samples).std() > 0.1


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_in_the_backward_pass_draws_for_itself(reentrant):
    """A kept draw would not be there when activation checkpointing runs the layer again."""
    model = lb.convert(
        nn.Linear(3, 3), lb.MeanField(0.5), lb.priors.Normal(1.0), lb.estimators.weights
    )
    x = torch.randn(4, 3, requires_grad=True)

    def gradients(again) -> torch.Tensor:
        torch.manual_seed(0)
        with forward_pass(rows=4):
            (again(again(x)) ** 3).sum().backward()
        gradient = model.posterior.loc.grad.clone()
        model.zero_grad()
        return gradient

    spared = gradients(lambda h: checkpoint(model, h, use_reentrant=reentrant))
    torch.manual_seed(0)
    (model(model(x)) ** 3).sum().backward()
    torch.testing.assert_close(spared, model.posterior.loc.grad)


@pytest.mark.tried(
    "Serving",
    what="code that reads layer.weight and computes with it",
    holds="the held draw while one is held; a warning otherwise",
)
def test_a_weight_that_is_read():
    layer, x = (
        lb.convert(nn.Linear(3, 2), lb.MeanField(0.5), lb.priors.Normal(1.0)),
        torch.randn(4, 3),
    )
    with pytest.warns(UserWarning, match="posterior mean"):
        assert torch.equal(layer.weight, layer.mean_weight)
    with lb.held(layer):
        torch.testing.assert_close(F.linear(x, layer.weight, layer.bias), layer(x))
        assert not torch.allclose(layer.weight, layer.mean_weight)
    with lb.using(layer, lb.estimators.mean):
        assert torch.equal(layer.weight, layer.mean_weight)
    point = lb.convert(nn.Linear(3, 2), lb.posteriors.Point(), lb.priors.Normal(1.0))
    assert torch.equal(point.weight, point.mean_weight)


def test_a_tied_head_reads_the_held_draw():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, i):
            return F.linear(self.table(i), self.table.weight)

    model, i = lb.convert(Tied(), lb.MeanField(0.5), lb.priors.Normal(1.0)), torch.arange(5)
    with lb.held(model):
        table = model.table.weight
        torch.testing.assert_close(model(i), table @ table.T)


def test_the_innermost_block_wins():
    model, x = (
        lb.convert(nn.Linear(3, 2), lb.MeanField(0.5), lb.priors.Normal(1.0)),
        torch.randn(4, 3),
    )
    with lb.using(model, lb.estimators.mean):
        plain = model(x)
    with lb.held(model):
        held = model(x)
        with lb.using(model, lb.estimators.mean):
            assert torch.equal(model(x), plain)
        assert torch.equal(model(x), held)
    with lb.using(model, lb.estimators.mean), lb.held(model):
        assert not torch.allclose(model(x), plain)
