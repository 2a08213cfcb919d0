"""Predictive samples and their summary, against explicit formulas."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn
from torch_layers import POSTERIOR, PRIOR, mlp

import leanbayes as lb
from leanbayes.testing import assert_mean

X = torch.linspace(-1, 1, 21, dtype=torch.float64).reshape(7, 3)


def model(posterior=POSTERIOR, prior=PRIOR) -> nn.Module:
    return lb.convert(mlp(), posterior, prior)


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("members", [1, 3])
def test_shapes(members, batch_size, coherent):
    net = model(lb.Rank1(members), lb.priors.Flat())
    p = lb.predict(net, X, samples=4, batch_size=batch_size, coherent=coherent)
    assert p.samples.shape == (4 * members, 7, 2)
    assert p.probs.shape == p.log_probs.shape == (7, 2)
    assert p.entropy.shape == p.mutual_information.shape == p.labels.shape == (7,)
    assert not p.samples.requires_grad


def test_no_examples_give_no_predictions():
    assert lb.predict(model(), X[:0], samples=4).probs.shape == (0, 2)


def test_any_network_can_predict():
    p = lb.predict(mlp(), X, samples=3)
    assert torch.equal(p.samples[0], p.samples[1])
    assert p.mutual_information.max() < 1e-12


def test_several_inputs():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()

        def forward(self, x, y):
            return self.a(x) - self.b(y)

    net = lb.convert(Two(), POSTERIOR, PRIOR)
    assert lb.predict(net, (X, X + 1), samples=5, batch_size=2).samples.shape == (5, 7, 2)


@pytest.mark.parametrize("coherent", [False, True])
def test_a_seed_repeats_the_draws_and_leaves_the_generator_alone(coherent):
    net, state = model(), torch.get_rng_state()
    draws = [lb.predict(net, X, samples=3, seed=s, coherent=coherent).samples for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), state)
    lb.predict(net, X, samples=1)
    assert not torch.equal(torch.get_rng_state(), state)


class _Fails(nn.Module):
    def forward(self, x):
        raise RuntimeError("no")


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_mode_back(fails):
    net = nn.Sequential(model(), nn.BatchNorm1d(2), nn.Dropout(), _Fails() if fails else nn.Tanh())
    net = net.double()
    net[1].eval()
    modes = [m.training for m in net.modules()]
    if fails:
        with pytest.raises(RuntimeError, match="no"):
            lb.predict(net, X, samples=2)
    else:
        lb.predict(net, X, samples=2)
    assert [m.training for m in net.modules()] == modes


def test_batch_norm_and_dropout_are_in_eval_mode():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).double()
    converted = lb.convert(net, lb.posteriors.Point(), PRIOR)
    statistics = {n: b.clone() for n, b in converted.named_buffers()}
    p = lb.predict(converted, X, samples=3)
    assert all(torch.equal(b, statistics[n]) for n, b in converted.named_buffers())
    with torch.no_grad():
        expected = net.eval()(X)
    torch.testing.assert_close(p.samples, expected.expand(3, 7, 4))


def test_a_coherent_draw_is_one_function_over_all_batches():
    linear = lb.convert(nn.Linear(3, 2).double(), lb.MeanField(0.5), PRIOR)
    repeated = X[:1].expand(6, 3)
    together = lb.predict(linear, repeated, samples=3, batch_size=2, coherent=True).samples
    assert (together.amax(1) - together.amin(1)).max() < 1e-12
    apart = lb.predict(linear, repeated, samples=3, batch_size=2).samples
    assert (apart.amax(1) - apart.amin(1)).min() > 0


def test_samples_have_the_law_of_the_output():
    linear = lb.convert(nn.Linear(3, 2).double(), lb.MeanField(0.5), PRIOR)
    mean = (X @ linear.mean_weight.T + linear.bias).detach()
    variance = (X.square() @ linear.posterior().variance.T).detach()
    for coherent in (False, True):
        y = lb.predict(linear, X, samples=2000, coherent=coherent).samples
        assert_mean(y, mean, "mean of predictive samples")
        assert_mean((y - mean).square(), variance, "variance of predictive samples")


def test_members_come_block_by_block():
    net = model(lb.Rank1(3, factors="fixed"), lb.priors.Flat())
    p = lb.predict(net, X, samples=2, batch_size=3)
    by_member = p.samples.unflatten(0, (2, 3))
    assert torch.equal(by_member[0], by_member[1])  # nothing is random but the member
    for member in range(3):
        plain = lb.deterministic(net, member=member)
        torch.testing.assert_close(by_member[0, member], plain(X).detach())


LOGITS = torch.tensor([[[2.0, 0.0, -1.0]], [[-1.0, 0.5, 0.0]], [[0.0, 3.0, 1.0]]]).double()


def test_probabilities_are_averaged_and_not_logits():
    p = lb.Prediction(LOGITS)
    each = np.exp(LOGITS.numpy()) / np.exp(LOGITS.numpy()).sum(-1, keepdims=True)
    average = each.mean(0)
    np.testing.assert_allclose(p.probs, average, rtol=1e-12)
    np.testing.assert_allclose(p.log_probs, np.log(average), rtol=1e-12)
    total = stats.entropy(average, axis=-1)
    expected = stats.entropy(each, axis=-1).mean(0)
    np.testing.assert_allclose(p.entropy, total, rtol=1e-12)
    np.testing.assert_allclose(p.expected_entropy, expected, rtol=1e-12)
    np.testing.assert_allclose(p.mutual_information, total - expected, rtol=1e-12)
    assert p.labels.tolist() == [1]
    y = torch.tensor([2])
    np.testing.assert_allclose(p.log_likelihood(y), np.log(average[:, 2]), rtol=1e-12)


def test_mutual_information_is_between_zero_and_the_entropy():
    certain = lb.Prediction(torch.zeros(5, 2, 3, dtype=torch.float64))
    assert certain.mutual_information.tolist() == [0.0, 0.0]
    torch.testing.assert_close(certain.entropy, torch.full((2,), math.log(3)).double())
    opposed = lb.Prediction(torch.tensor([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]]))
    torch.testing.assert_close(opposed.mutual_information, torch.tensor([math.log(2)]))
    torch.testing.assert_close(opposed.entropy, torch.tensor([math.log(2)]))


def test_bernoulli_outputs():
    logits = torch.tensor([[0.3, -2.0, 1000.0], [1.5, 0.0, -1000.0]], dtype=torch.float64)
    p = lb.Prediction(logits, lb.likelihoods.Bernoulli())
    on = (1 / (1 + np.exp(-np.clip(logits.numpy(), -700, 700)))).mean(0)
    np.testing.assert_allclose(p.probs, on, rtol=1e-12)
    np.testing.assert_allclose(p.entropy, stats.bernoulli(on).entropy(), rtol=1e-12)
    each = stats.bernoulli(torch.sigmoid(logits).numpy()).entropy().mean(0)
    np.testing.assert_allclose(p.mutual_information, p.entropy.numpy() - each, rtol=1e-9)
    assert p.labels.tolist() == [1, 0, int(on[2] > 0.5)]
    off = np.log1p(-on)
    np.testing.assert_allclose(p.log_likelihood(torch.zeros(3).double()), off, rtol=1e-12)


def mixture(noise: str):
    """Predictive samples of two targets, and the means and standard deviations they say."""
    loc = torch.randn(40, 2, dtype=torch.float64)
    if noise == "predicted":
        raw = torch.randn(40, 2, dtype=torch.float64)
        scale = 0.3 * torch.log1p(raw.exp()) / math.log(2) + 1e-6
        return torch.cat([loc, raw], -1).unsqueeze(1), loc, scale
    return loc.unsqueeze(1), loc, torch.full_like(loc, 0.3)


@pytest.mark.parametrize("noise", ["fixed", "learned", "predicted"])
def test_regression_summaries(noise):
    samples, loc, scale = mixture(noise)
    p = lb.Prediction(samples, lb.likelihoods.Gaussian(0.3, noise).double())
    torch.testing.assert_close(p.mean[0], loc.mean(0))
    torch.testing.assert_close(p.aleatoric[0], scale.square().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(p.epistemic[0], loc.var(0, correction=0))
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    drawn = (loc + scale * torch.randn(5000, 40, 2).double()).flatten(0, 1)
    assert_mean((drawn - p.mean[0].detach()).square(), p.variance[0].detach(), "total variance")


@pytest.mark.parametrize("noise", ["fixed", "predicted"])
def test_quantiles_invert_the_distribution_function_of_the_mixture(noise):
    samples, loc, scale = mixture(noise)
    levels = (0.001, 0.05, 0.5, 0.95)
    found = lb.Prediction(samples, lb.likelihoods.Gaussian(0.3, noise)).quantiles(levels)
    assert found.shape == (4, 1, 2)
    for target in range(2):
        normals = stats.norm(loc[:, target].numpy(), scale[:, target].numpy())
        for row, level in enumerate(levels):
            exact = optimize.brentq(
                lambda y, n=normals, level=level: n.cdf(y).mean() - level, -20, 20, xtol=1e-13
            )
            assert float(found[row, 0, target]) == pytest.approx(exact, abs=1e-9)


def test_predict_passes_the_likelihood_on():
    p = lb.predict(model(), X, samples=50, likelihood=lb.likelihoods.Gaussian(0.1))
    torch.testing.assert_close(p.aleatoric, torch.full((7, 2), 0.01).double())
    assert p.epistemic.max() > 0
    normals = stats.norm(p.samples.numpy(), 0.1)
    expected = np.log(np.prod(normals.pdf(0.0), -1).mean(0))
    np.testing.assert_allclose(p.log_likelihood(torch.zeros(7, 2).double()), expected, rtol=1e-9)


CLASSES, NUMBERS = ("probs", "log_probs", "labels", "entropy"), ("mean", "variance", "epistemic")


@pytest.mark.parametrize("summary", [*CLASSES, "mutual_information", "expected_entropy"])
def test_numbers_have_no_classes(summary):
    with pytest.raises(TypeError, match="Gaussian has no class probabilities; ask for mean"):
        getattr(lb.Prediction(torch.zeros(2, 3), lb.likelihoods.Gaussian()), summary)


@pytest.mark.parametrize("summary", [*NUMBERS, "aleatoric"])
def test_classes_have_no_variance(summary):
    with pytest.raises(TypeError, match=r"Categorical has no \w+; ask for probs, log_probs"):
        getattr(lb.Prediction(torch.zeros(2, 3)), summary)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
    ids=repr,
)
def test_impossible_options(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        lb.predict(model(), X, **options)


@pytest.mark.parametrize("level", [0.0, 1.0, float("nan")])
def test_impossible_quantiles(level):
    with pytest.raises(ValueError, match="does not lie between 0 and 1"):
        lb.Prediction(torch.zeros(2, 3), lb.likelihoods.Gaussian()).quantiles([0.5, level])


def test_a_network_that_returns_several_tensors_is_told_to_return_one():
    recurrent = lb.convert(nn.LSTM(3, 2, batch_first=True), POSTERIOR, PRIOR)
    with pytest.raises(TypeError, match="tuple") as caught:
        lb.predict(recurrent, torch.zeros(2, 4, 3), samples=2)
    assert "one tensor" in str(caught.value)


def test_inputs_that_cannot_be_cut_or_are_no_tensors_are_refused():
    class Sum(nn.Module):
        def forward(self, a, b):
            return a + b

    with pytest.raises(ValueError, match=r"inputs have \[4, 1\] examples.*slices of 2"):
        lb.predict(Sum(), (torch.zeros(4, 2), torch.zeros(1, 2)), samples=1, batch_size=2)
    whole = lb.predict(Sum(), (torch.zeros(4, 2), torch.ones(1, 2)), samples=1)
    assert whole.samples.shape == (1, 4, 2)
    with pytest.raises(TypeError, match="an input is a float; give tensors"):
        lb.predict(Sum(), [1.0, 2.0], samples=1)
