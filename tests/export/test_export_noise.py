"""A pass whose noise is given has the law of the model it was traced from."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.export.tracing import sized, traced_pass

DRAWS = 1000


def net():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def dropping(layer):
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), layer, nn.Linear(6, 2))


def converted(posterior, prior=None, **options):
    return lambda: lb.convert(net(), posterior, prior or lb.priors.Flat(), **options)


MODELS = {
    "mean field": converted(lb.MeanField(0.5)),
    "k-tied weights": converted(lb.KTied(2, scale=0.5), estimator=lb.estimators.weights),
    "matrix normal": converted(lb.posteriors.MatrixNormal(scale=0.5)),
    "variance": converted(lb.posteriors.ZeroMean()),
    "signs": converted(lb.posteriors.ZeroMean(noise="bernoulli"), estimator=lb.estimators.weights),
    "uniform": converted(lb.posteriors.ZeroMean(noise="uniform"), estimator=lb.estimators.weights),
    "low rank": converted(lb.posteriors.LowRank(2, scale=0.5)),
    "rank-1": converted(lb.Rank1(members=2, rate=0.3)),
    "lognormal factors": converted(lb.Rank1(members=1, factors="lognormal", rate=0.3)),
    "cauchy factors": converted(lb.Rank1(members=1, factors="cauchy", rate=0.1, clip=2.0)),
    "flipout": converted(lb.MeanField(0.5), estimator=lb.estimators.flipout),
    "random biases": converted(lb.MeanField(0.5), bias=lb.MeanField(0.5)),
    "dropout": lambda: lb.mc_dropout(dropping(nn.Dropout(0.3))),
    "alpha dropout": lambda: lb.mc_dropout(dropping(nn.AlphaDropout(0.3))),
}


def given_noise(one, rows, draws):
    """Outputs ``[draws, members, rows, …]`` from noise of our own."""
    noise = [torch.randn(draws, rows, one.numbers)] if one.numbers else []
    noise += [torch.randn(draws, one.shared)] if one.shared else []

    def outputs(x):
        places = (None, *(0,) * len(noise))
        with torch.no_grad():
            return torch.func.vmap(lambda *given: one.module(*given)[0], places)(x, *noise)

    return outputs


def moments(samples):
    """Of every number: itself, its square, and products with the first number of its draw."""
    flat = samples.flatten(1)
    return torch.cat([flat, flat.square(), flat * flat[:, :1]], 1)


@pytest.mark.parametrize("name", MODELS)
def test_given_noise_has_the_law_of_the_model(name):
    model, x = MODELS[name](), torch.randn(3, 3)
    one = traced_pass(model, sized((x,), (0,)), (0,), noisy=True)
    given = given_noise(one, 3, DRAWS)(x)
    assert given.shape == (DRAWS, lb.extend.members(model), 3, 2)
    tiled = lb.tile(x, lb.extend.members(model))
    with torch.no_grad():
        own = torch.stack([model(tiled) for _ in range(DRAWS)]).unflatten(1, (-1, 3))
    a, b = moments(given), moments(own)
    error = ((a.var(0) + b.var(0)) / DRAWS).sqrt()
    off = ((a.mean(0) - b.mean(0)).abs() / (error + 1e-6)).max()
    assert off < lb.testing.threshold(a.shape[1])


def test_noise_is_that_of_the_formula():
    """One layer with a draw of every output: mean plus standard deviation times noise."""
    model = lb.convert(nn.Linear(3, 2), lb.MeanField(0.5), lb.priors.Flat())
    x, noise = torch.randn(4, 3), torch.randn(4, 2)
    one = traced_pass(model, sized((x,), (0,)), (0,), noisy=True)
    assert (one.numbers, one.shared) == (2, 0)
    q = model.posterior()
    std = F.linear(x.square(), q.variance).sqrt()
    expected = F.linear(x, q.mean, model.bias) + std * noise
    assert torch.allclose(one.module(x, noise)[0][0], expected, atol=1e-6)


def test_without_noise_it_is_the_mean_network():
    model, x = MODELS["rank-1"](), torch.randn(3, 3)
    one = traced_pass(model, sized((x,), (0,)), (0,), noisy=False)
    assert (one.numbers, one.shared) == (0, 0)
    for member in range(2):
        plain = lb.deterministic(model, member=member)
        assert torch.allclose(one.module(x)[0][member], plain(x), atol=1e-5)


class Twice(nn.Module):
    """One layer, called twice: it keeps its draw."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Tokens(nn.Module):
    """Every example has four rows, which share a draw of the weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).unflatten(0, (-1, 4)).sum(1)


@pytest.mark.parametrize(("make", "shape"), [(Twice, (3,)), (Tokens, (4, 3))])
def test_weights_that_are_used_again_are_drawn_once(make, shape):
    model, x = lb.convert(make(), lb.MeanField(0.5), lb.priors.Flat()), torch.randn(3, *shape)
    one = traced_pass(model, sized((x,), (0,)), (0,), noisy=True)
    assert (one.numbers, one.shared) == (0, model.layer.posterior().event_shape.numel())


def test_rank_1_tokens_share_the_factors_of_their_example():
    model = lb.convert(Tokens(), lb.Rank1(members=2), lb.priors.Flat())
    one = traced_pass(model, sized((torch.randn(3, 4, 3),), (0,)), (0,), noisy=True)
    assert (one.numbers, one.shared) == (2 * (3 + 2), 0)


def test_the_model_stays_as_it_was():
    model = lb.convert(dropping(nn.Dropout(0.3)), lb.MeanField(), lb.priors.Flat()).train()
    x, state = torch.randn(3, 3), torch.get_rng_state()
    traced_pass(model, sized((x,), (0,)), (0,), noisy=True)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


class Exponential(nn.Module):
    def forward(self, x):
        return x * torch.empty_like(x).exponential_()


class Die(nn.Module):
    def forward(self, x):
        return x + torch.randint(6, x.shape)


@pytest.mark.parametrize("make", [Exponential, Die])
def test_other_draws_are_refused(make):
    with pytest.raises(ValueError, match="cannot be made of normal noise; draw by"):
        traced_pass(make(), sized((torch.randn(3, 3),), (0,)), (0,), noisy=True)


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(11, 3)


def test_a_fixed_number_of_examples_is_refused():
    with pytest.raises(ValueError, match="works for 11 examples only; let it read"):
        traced_pass(Fixed(), sized((torch.randn(1, 3),), (0,)), (0,), noisy=True)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_a_pass_that_decides_by_values_is_refused():
    with pytest.raises(ValueError, match="the forward pass cannot be traced") as caught:
        traced_pass(Branching(), sized((torch.randn(1, 3),), (0,)), (0,), noisy=True)
    assert "\n" not in str(caught.value)
