"""Means and variances of one pass, against samples, quadrature and closed forms."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import integrate
from torch import nn

import leanbayes as lb
from leanbayes.extend import Uncertain
from leanbayes.testing import assert_mean

FAMILIES = {
    "mean_field": (lb.MeanField(0.5), lb.priors.Normal(1.0)),
    "k_tied": (lb.KTied(2), lb.priors.Normal(1.0)),
    "matrix_normal": (lb.posteriors.MatrixNormal(), lb.priors.Normal(1.0)),
    "rank1": (lb.Rank1(1), lb.priors.Normal(0.1, loc=1.0)),
    "zero_mean": (lb.posteriors.ZeroMean(), lb.priors.LogUniform()),
}
FUNCTIONS = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
}


def mlp(outputs=1, posterior=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, outputs))
    return lb.convert(net, posterior or lb.MeanField(0.1), lb.priors.Normal(1.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_linear_layer_is_exact(family):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2)).double()
    model = lb.convert(net, *FAMILIES[family])
    x = torch.randn(4, 3, dtype=torch.float64)
    p = lb.predict(model, x, method="moments")
    assert p.method == "moments"
    drawn = lb.predict(model, x, samples=20_000, seed=1).samples
    assert_mean(drawn, p.moments.loc[0], "mean")
    assert_mean((drawn - p.moments.loc[0]) ** 2, p.moments.variance[0], "variance")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("m", "v"), [(0.0, 0.5), (-1.0, 0.2), (1.5, 1.0)])
def test_activations_agree_with_quadrature(name, m, v):
    function = FUNCTIONS[name]

    def expected(power):
        def integrand(z):
            x = torch.tensor(m + math.sqrt(v) * z, dtype=torch.float64)
            density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            return float(function(x)) ** power * density

        return integrate.quad(integrand, -12, 12, points=[-m / math.sqrt(v)], limit=200)[0]

    y = function(Uncertain(*(torch.tensor([t], dtype=torch.float64) for t in (m, v))))
    mean = expected(1)
    assert float(y.loc) == pytest.approx(mean, abs=2e-3)
    assert float(y.variance) == pytest.approx(expected(2) - mean**2, abs=2e-3)


def test_an_mlp_is_near_its_samples():
    model, x = mlp(), torch.randn(20, 3)
    p = lb.predict(model, x, method="moments", likelihood=lb.likelihoods.Gaussian(0.5))
    drawn = lb.predict(model, x, samples=4000, seed=0).samples
    assert torch.allclose(p.moments.loc[0], drawn.mean(0), atol=0.05)
    ratio = p.moments.variance[0].sqrt() / drawn.std(0)
    assert ratio.min() > 0.8
    assert ratio.max() < 1.25


def test_normal_noise_is_added_in_closed_form():
    p = lb.predict(
        mlp(), torch.randn(5, 3), method="moments", likelihood=lb.likelihoods.Gaussian(0.5)
    )
    assert torch.allclose(p.mean, p.moments.loc[0])
    assert torch.allclose(p.variance, p.moments.variance[0] + 0.25)
    assert torch.allclose(p.epistemic, p.moments.variance[0], atol=1e-5)
    assert torch.equal(p[1:3].moments.loc, p.moments.loc[:, 1:3])


def test_class_probabilities_are_near_those_of_samples():
    model, x = mlp(4), torch.randn(20, 3)
    probs = lb.predict(model, x, method="moments").probs
    assert torch.allclose(probs.sum(-1), torch.ones(20))
    assert torch.allclose(probs, lb.predict(model, x, samples=2000, seed=0).probs, atol=0.05)


def test_every_member_of_a_rank1_posterior_has_one_pass():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2)).double()
    model = lb.convert(net, lb.Rank1(3), lb.priors.Normal(0.1, loc=1.0))
    x = torch.randn(4, 3, dtype=torch.float64)
    p = lb.predict(model, x, method="moments", samples=8)
    assert p.moments.shape == (3, 4, 2)
    assert p.samples.shape == (24, 4, 2)
    drawn = lb.predict(model, x, samples=10_000, seed=0).samples.unflatten(0, (-1, 3))
    assert_mean(drawn, p.moments.loc, "means of members")


class Cumulative(nn.Module):
    def forward(self, x):
        return x.cumsum(-1)


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("a bug of the model")


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (Cumulative(), "cumsum"),
        (nn.Softmin(-1), "softmin"),
        (
            nn.Sequential(nn.Unflatten(-1, (1, 4)), nn.AvgPool1d(3, ceil_mode=True), nn.Flatten()),
            "ceil",
        ),
        (nn.AlphaDropout(0.5), "alpha dropout"),
    ],
)
def test_a_part_without_a_rule_is_named_and_sampled(part, reason):
    model = nn.Sequential(mlp(4), part)
    if isinstance(part, nn.AlphaDropout):
        model = lb.mc_dropout(model)
    p = lb.predict(model, torch.randn(5, 3), method="moments", samples=3)
    assert p.method in ("vectorized", "looped")
    assert reason in p.fallback
    assert len(p.samples) == 3


def test_hooks_are_sampled():
    model = mlp(4)
    model[0].register_forward_hook(lambda *_: None)
    assert "hooks" in lb.predict(model, torch.randn(5, 3), method="moments", samples=2).fallback


def test_a_bug_of_the_model_is_raised():
    with pytest.raises(RuntimeError, match="a bug of the model"):
        lb.predict(nn.Sequential(mlp(4), Broken()), torch.randn(5, 3), method="moments")


@pytest.mark.parametrize(
    "options",
    [
        {"method": "magic"},
        {"method": "moments", "coherent": True},
        {"method": "moments", "linearized": True},
    ],
)
def test_refused_arguments(options):
    with pytest.raises(ValueError, match=r"method (must be|'magic' is unknown)"):
        lb.predict(mlp(4), torch.randn(5, 3), **options)


def test_slices_give_what_all_give():
    model, x = mlp(4), torch.randn(10, 3)
    parts = list(lb.predict_batches(model, x, method="moments", batch_size=4))
    assert [len(part) for part in parts] == [4, 4, 2]
    whole = lb.predict(model, x, method="moments")
    assert torch.allclose(torch.cat([part.probs for part in parts]), whole.probs, atol=1e-6)


@pytest.mark.parametrize("posterior", [lb.posteriors.Point(), lb.MeanField(), lb.KTied(2)])
def test_outputs_of_the_same_hidden_units_are_correlated(posterior):
    """Noise of one hidden layer makes outputs that move together, as samples do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 50), nn.Linear(50, 4))
    hidden = {"posterior": lb.posteriors.ZeroMean(scale=0.5)}
    model = lb.convert(net, posterior, overrides={"0": hidden})
    x = torch.randn(6, 3)
    draws = lb.predict(model, x, method="moments", samples=4096, batch_size=4).samples
    exact = lb.predict(model, x, samples=20_000, seed=0).samples
    for example in range(6):
        apart, wanted = (torch.corrcoef(y[:, example].T) for y in (draws, exact))
        assert torch.allclose(apart, wanted, atol=0.05)
    assert (wanted - torch.eye(4)).abs().max() > 0.1
    torch.testing.assert_close(draws.std(0), exact.std(0), rtol=0.05, atol=0.01)


def test_outputs_that_others_determine_have_no_noise_of_their_own():
    """Three outputs of two hidden units have a covariance of rank two."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    model = lb.convert(net, lb.posteriors.ZeroMean(), include=("0",))
    samples = lb.predict(model, torch.randn(5, 2), method="moments").samples
    weight = net[1].weight.detach()
    normal = torch.linalg.cross(weight[:, 0], weight[:, 1])
    along = (samples - net[1].bias.detach()) @ (normal / normal.norm())
    assert samples.isfinite().all()
    assert along.abs().max() < 1e-2 * samples.std()
