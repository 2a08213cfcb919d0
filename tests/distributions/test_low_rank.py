"""Weights of low rank: their law against sums over the factors, their start, and their training."""

import itertools

import numpy as np
import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.distributions import LocationScale, LowRankProduct
from leanbayes.ops import Conv, Linear, Usage
from leanbayes.testing import assert_mean

OUT, RANK, COLUMNS = 3, 2, 4


def product():
    """Factors with numbers that no initialization gives."""
    shapes = (OUT, RANK), (RANK, COLUMNS)
    return LowRankProduct(
        *(LocationScale(torch.randn(s).double(), torch.rand(s).double() + 0.1) for s in shapes)
    )


def test_covariance_is_the_sum_over_pairs_of_products():
    """``Cov(Σ a b, Σ a′ b′)``, one pair of weights after another, by moments of normals."""
    q = product()
    (a, sa), (b, sb) = ((f.mean, f.variance) for f in q.factors)
    places = list(itertools.product(range(OUT), range(COLUMNS)))
    expected = torch.zeros(len(places), len(places)).double()
    for (m, (i, j)), (n, (k, h)) in itertools.product(enumerate(places), repeat=2):
        for r in range(RANK):
            of_a = a[i, r] * a[k, r] + (sa[i, r] if i == k else 0.0)
            of_b = b[r, j] * b[r, h] + (sb[r, j] if j == h else 0.0)
            expected[m, n] += of_a * of_b - a[i, r] * a[k, r] * b[r, j] * b[r, h]
    torch.testing.assert_close(q.covariance(), expected)
    torch.testing.assert_close(q.variance.flatten(), expected.diagonal())
    torch.testing.assert_close(q.mean, a @ b)


def test_local_outputs_have_the_law_of_weights_beyond_two_moments():
    """Products of normals are not normal; the fourth moments agree as well."""
    q, x, samples = product(), torch.randn(1, COLUMNS).double(), 100_000
    drawn = (q.rsample((samples,)) @ x[0]).detach()
    local = lb.estimators.local(q, Linear(), Usage(samples, reused=False))(x.expand(samples, -1))
    center, spread = F.linear(x, q.mean), drawn.std(0)
    fourth = [((y - center) / spread) ** 4 for y in (drawn, local)]
    assert fourth[0].mean() > 3.05  # a normal has 3
    assert_mean(fourth[0] - fourth[1], 0.0, "fourth moments")
    cross = [((y - center) / spread) ** 2 for y in (drawn, local)]
    cross = [c[:, 0] * c[:, 1] for c in cross]  # outputs share what the right factor gave
    assert_mean(cross[0] - cross[1], 0.0, "squares of two outputs")


def test_kl_is_that_of_the_factors():
    q, prior = product(), td.Normal(torch.tensor(0.2).double(), torch.tensor(0.7).double())
    expected = sum(td.kl_divergence(td.Normal(f.loc, f.scale), prior).sum() for f in q.factors)
    torch.testing.assert_close(td.kl_divergence(q, prior), expected)


@pytest.mark.parametrize("rank", [1, 3, 50])
@pytest.mark.parametrize("module", [nn.Linear(7, 5), nn.Conv2d(3, 6, (2, 3)), nn.Conv1d(4, 4, 2)])
def test_a_trained_layer_starts_at_the_nearest_matrix(module, rank):
    model = lb.convert(module, lb.posteriors.LowRank(rank), lb.priors.Normal(1.0))
    matrix = module.weight.detach().flatten(1).numpy()
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s[rank:] = 0.0
    found = model.mean_weight.detach().flatten(1).numpy()
    np.testing.assert_allclose(found, (u * s) @ v, atol=1e-5)
    assert np.linalg.matrix_rank(model.posterior().rsample().detach().numpy()) <= rank


def test_a_new_layer_starts_as_large_as_it_was():
    net = nn.Linear(300, 200, bias=False)
    for start, share in (("random", 1.0), ("svd", 0.1)):
        model = lb.convert(net, lb.posteriors.LowRank(8, start=start), lb.priors.Normal(1.0))
        size = float((model.mean_weight.square().mean() / net.weight.square().mean()).detach())
        assert size == pytest.approx(share, rel=0.25), start


def test_parameters_are_those_of_the_factors():
    count = lb.count_parameters(
        lb.convert(nn.Linear(784, 400, bias=False), lb.posteriors.LowRank(8), lb.priors.Flat())
    )
    assert count == (8 * 1184, 8 * 1184, 0)


@pytest.mark.parametrize(
    "estimator", [lb.estimators.auto, lb.estimators.weights, lb.estimators.local]
)
def test_a_convolutional_network_learns(estimator):
    """Which of two quadrants is bright: the loss falls to a third of what guessing costs."""
    y = torch.randint(2, (64,))
    x = 0.3 * torch.randn(64, 1, 6, 6)
    x[y == 1, :, :3, :3] += 1.0
    x[y == 0, :, 3:, 3:] += 1.0
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2))
    model = lb.convert(
        net, lb.posteriors.LowRank(2, start="random"), lb.priors.Normal(0.5), estimator
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        lb.elbo(F.cross_entropy(model(x), y), lb.kl(model), data_size=6400).loss.backward()
        optimizer.step()
    p = lb.predict(model, x, samples=20)
    assert p.metrics(y)["nll"].value < 0.23
    assert p.mutual_information.mean() > 0


def test_every_function_of_a_prediction_keeps_its_law():
    """Samples that are folded into one pass against a loop over draws."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    model = lb.convert(net, lb.posteriors.LowRank(2, scale=0.3), lb.priors.Normal(1.0)).double()
    x = torch.randn(5, 4).double()
    folded = lb.predict(model, x, samples=10_000).samples
    with torch.no_grad(), lb.using(model, lb.estimators.weights):
        drawn = torch.stack([model(x) for _ in range(1_000)])
    assert_mean(drawn - folded.mean(0), 0.0, "means")
    spread = folded.var(0)
    assert_mean((drawn - folded.mean(0)).square() - spread, 0.0, "variances")


def test_a_random_start_depends_on_the_seed_alone():
    torch.manual_seed(1)
    first = lb.posteriors.LowRank(2, start="random")(torch.ones(3, 4), Linear())().mean
    torch.manual_seed(1)
    again = lb.posteriors.LowRank(2, start="random")(torch.ones(3, 4), Linear())().mean
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: lb.posteriors.LowRank(0), "rank is 0; it must be at least 1"),
        (lambda: lb.posteriors.LowRank(2.0), "rank is 2.0; it must be a whole number"),
        (lambda: lb.posteriors.LowRank(2, scale=-1.0), "start is -1.0; it must be positive"),
        (lambda: lb.posteriors.LowRank(2, start="svdd"), "did you mean 'svd'?"),
        (
            lambda: lb.posteriors.Pruned(lb.posteriors.LowRank(2)),
            "give the spec of a posterior of single weights",
        ),
        (
            lambda: lb.convert(nn.Linear(3, 2), lb.posteriors.LowRank(1), lb.priors.ARD()),
            "a low-rank posterior",
        ),
        (
            lambda: lb.prune(
                lb.convert(nn.Linear(3, 2), lb.posteriors.LowRank(1), lb.priors.Normal(1.0)),
                keep=0.5,
            ),
            "no layer has standard deviations of single weights",
        ),
        (
            lambda: LowRankProduct(
                LocationScale(torch.ones(3, 2), torch.ones(3, 2)),
                LocationScale(torch.ones(1, 4), torch.ones(1, 4)),
            ),
            "a left factor of 2 columns does not fit a right factor of 1 rows",
        ),
        (
            lambda: lb.estimators.local(
                lb.posteriors.LowRank(1)(torch.randn(4, 1, 2), Conv((2,), groups=2))(),
                Conv((2,), groups=2),
                Usage(3, reused=True),
            )(torch.randn(3, 2, 5)),
            r"use estimator=lb\.estimators\.weights",
        ),
    ],
)
def test_mistakes_get_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_infinite_factors_are_refused_where_asked():
    left = LocationScale(torch.ones(3, 2), torch.full((3, 2), torch.inf), validate_args=False)
    right = LocationScale(torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(ValueError, match="not finite"):
        LowRankProduct(left, right, validate_args=True)
