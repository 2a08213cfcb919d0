"""The ELBO, its schedules, the likelihoods and the four losses over several samples."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats
from torch import nn
from torch_layers import POSTERIOR, PRIOR, mlp

import leanbayes as lb
from leanbayes.training import schedules
from research.papers.rank1.losses import mean_logits_nll, mean_probs_nll

LOSSES = (
    mean_logits_nll,
    mean_probs_nll,
    lb.training.average_nll,
    lb.training.mixture_nll,
)
DOUBLE = torch.float64


def test_elbo_parts():
    nll, kl = torch.tensor(2.0), torch.tensor(300.0)
    parts = lb.elbo(nll, kl, data_size=1000, weight=0.5)
    assert (parts.nll, parts.kl, parts.weight) == (nll, torch.tensor(0.3), 0.5)
    assert float(parts.loss) == pytest.approx(2.15)
    assert float(lb.elbo(nll, kl, data_size=1000).loss) == pytest.approx(2.3)


def test_batches_of_one_epoch_count_the_kl_once():
    model, x = lb.convert(mlp(), lb.posteriors.Point(), PRIOR), torch.randn(12, 3, dtype=DOUBLE)
    y = torch.randint(2, (12,))
    parts = [
        12 / 4 * lb.elbo(F.cross_entropy(model(a), b), lb.kl(model), data_size=12).loss
        for a, b in zip(x.chunk(4), y.chunk(4), strict=True)
    ]
    whole = F.cross_entropy(model(x), y, reduction="sum") + lb.kl(model)
    torch.testing.assert_close(sum(parts), whole)


def test_what_a_user_writes(tmp_path):
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    model = lb.convert(net, posterior=lb.KTied(rank=2), prior=lb.priors.Normal(0.2))
    x = torch.randn(60, 4)
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(150):
        loss = lb.elbo(F.cross_entropy(model(x), y), lb.kl(model), data_size=6000, weight=1.0).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    p = lb.predict(model, x, samples=20)
    assert p.samples.shape == (20, 60, 3)
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(60))
    assert (p.mutual_information <= p.entropy).all()
    assert (p.labels == y).float().mean() > 0.8
    lb.save(model, tmp_path / "m")
    with (
        lb.using(model, lb.estimators.mean),
        lb.using(again := lb.load(net, tmp_path / "m"), lb.estimators.mean),
    ):
        assert torch.equal(again(x), model(x))
        torch.testing.assert_close(lb.deterministic(model)(x), model(x))


def test_constant():
    assert [schedules.Constant(0.3)(t) for t in (0, 10**6)] == [0.3, 0.3]


def test_linear_rises_after_its_delay():
    rise = schedules.LinearRamp(15, delay=5)
    assert [rise(t) for t in (0, 5, 12.5, 20, 99)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert [schedules.LinearRamp(10, start=0.2)(t) for t in (0, 5, 10)] == pytest.approx(
        [0.2, 0.6, 1]
    )


def test_exponential_has_a_constant_ratio():
    rise = schedules.Exponential(300, start=1e-3)
    weights = [rise(t) for t in range(301)]
    ratios = {round(b / a, 12) for a, b in itertools.pairwise(weights)}
    assert len(ratios) == 1
    assert weights[0] == pytest.approx(1e-3)
    assert weights[-1] == rise(1000) == 1.0


@pytest.mark.parametrize(
    "schedule",
    [schedules.LinearRamp(7), schedules.Stepwise(0.01, every=3), schedules.Exponential(7)],
    ids=repr,
)
def test_schedules_rise_from_their_start_to_one(schedule):
    weights = [schedule(t) for t in range(200)]
    assert weights == sorted(weights)
    assert weights[0] == schedule.start
    assert weights[-1] == 1.0


def test_categorical_likelihood():
    logits, y = torch.randn(5, 4, 3, dtype=DOUBLE), torch.tensor([0, 2, 1, 1])
    likelihood = lb.likelihoods.Categorical()
    expected = torch.stack([F.cross_entropy(z, y, reduction="none") for z in logits])
    torch.testing.assert_close(-likelihood.log_prob(logits, y), expected)
    torch.testing.assert_close(likelihood.nll(logits[0], y), F.cross_entropy(logits[0], y))


def test_bernoulli_likelihood_sums_over_all_but_the_batch():
    logits = torch.randn(5, 4, 2, 3, dtype=DOUBLE)
    y = torch.randint(2, (4, 2, 3)).double()
    expected = F.binary_cross_entropy_with_logits(
        logits, y.expand_as(logits), reduction="none"
    ).sum((-1, -2))
    torch.testing.assert_close(-lb.likelihoods.Bernoulli().log_prob(logits, y), expected)


@pytest.mark.parametrize("noise", ["fixed", "learned"])
def test_gaussian_likelihood(noise):
    likelihood, outputs = (
        lb.likelihoods.Gaussian(0.7, noise).double(),
        torch.randn(4, 2, dtype=DOUBLE),
    )
    y = torch.randn(4, 2, dtype=DOUBLE)
    expected = stats.norm(outputs.numpy(), 0.7).logpdf(y.numpy()).sum(-1)
    np.testing.assert_allclose(likelihood.log_prob(outputs, y).detach(), expected, rtol=1e-6)
    assert len(list(likelihood.parameters())) == (noise == "learned")


def test_a_learned_noise_finds_the_spread_of_the_residuals():
    likelihood, y = lb.likelihoods.Gaussian(1.0, "learned"), 0.2 * torch.randn(500)
    optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = likelihood.nll(torch.zeros(500), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    scale = likelihood.distribution(torch.zeros(1)).scale
    assert float(scale.detach()) == pytest.approx(float(y.square().mean().sqrt()), rel=1e-3)


def test_a_predicted_noise_starts_at_its_scale_and_stays_positive():
    likelihood = lb.likelihoods.Gaussian(0.5, "predicted")
    outputs = torch.tensor([[1.0, 2.0, 0.0, -1000.0]], dtype=DOUBLE)
    normal = likelihood.distribution(outputs)
    assert normal.loc.tolist() == [[1.0, 2.0]]
    assert float(normal.scale[0, 0]) == pytest.approx(0.5, rel=1e-5)
    assert float(normal.scale[0, 1]) > 0
    with pytest.raises(ValueError, match="3, an odd number"):
        likelihood.distribution(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y"),
    [
        (lb.likelihoods.Gaussian(), torch.zeros(4, 2), torch.zeros(4)),
        (lb.likelihoods.Gaussian(), torch.zeros(4), torch.zeros(4, 2)),
        (lb.likelihoods.Categorical(), torch.zeros(4, 3), torch.zeros(5, dtype=torch.long)),
        (lb.likelihoods.Bernoulli(), torch.zeros(2, 4, 3), torch.zeros(2, 4)),
    ],
    ids=["column", "row", "classes", "bernoulli"],
)
def test_targets_are_never_broadcast(likelihood, outputs, y):
    with pytest.raises(ValueError, match=rf"targets must .* got \({y.shape[0]},.*Reshape"):
        likelihood.nll(outputs, y)


def explicit_losses(logits: np.ndarray, y: np.ndarray) -> list[float]:
    """The four losses over ``logits [samples, batch, classes]``, as they are printed."""
    rows = np.arange(len(y))
    log_probs = special.log_softmax(logits, -1)[:, rows, y]
    of_mean_logits = special.log_softmax(logits.mean(0), -1)[rows, y]
    of_mean_probs = np.log(special.softmax(logits, -1).mean(0))[rows, y]
    mixture = special.logsumexp(log_probs, 0) - math.log(len(logits))
    return [-of_mean_logits.mean(), -of_mean_probs.mean(), -log_probs.mean(), -mixture.mean()]


def test_the_four_losses_are_the_printed_ones():
    logits, y = 2 * torch.randn(6, 5, 4, dtype=DOUBLE), torch.randint(4, (5,))
    values = [float(loss(logits, y)) for loss in LOSSES]
    np.testing.assert_allclose(values, explicit_losses(logits.numpy(), y.numpy()), rtol=1e-12)
    _, mean_probs, average, mixture = values
    assert mean_probs == pytest.approx(mixture, rel=1e-12)
    assert mixture <= average


def test_the_four_losses_agree_for_one_sample():
    logits, y = torch.randn(1, 5, 4, dtype=DOUBLE), torch.randint(4, (5,))
    for loss in LOSSES:
        torch.testing.assert_close(loss(logits, y), F.cross_entropy(logits[0], y))


@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize(
    "likelihood", [lb.likelihoods.Categorical(), lb.likelihoods.Bernoulli()], ids=repr
)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_four_losses_are_stable_at_huge_logits(dtype, loss, likelihood, right):
    """Of three samples none or one is right; the others are wrong by 2000 nats."""
    good, bad = [[1000.0, -1000.0]], [[-1000.0, 1000.0]]
    outputs = torch.tensor([good] * right + [bad] * (3 - right), dtype=dtype, requires_grad=True)
    classes = isinstance(likelihood, lb.likelihoods.Categorical)
    y = torch.tensor([0]) if classes else torch.tensor([[1.0, 0.0]], dtype=dtype)
    value = loss(outputs, y, likelihood)
    value.backward()
    expected = {
        mean_logits_nll: 2000 / 3,
        mean_probs_nll: math.log(3) if classes else 2 * math.log(3),
        lb.training.average_nll: 4000 / 3,
        lb.training.mixture_nll: math.log(3),
    }
    assert float(value.detach()) == pytest.approx(expected[loss] if right else 2000.0, rel=1e-6)
    assert outputs.grad.isfinite().all()


def test_losses_of_a_regression():
    outputs, y = torch.randn(6, 5, 2, dtype=DOUBLE), torch.randn(5, 2, dtype=DOUBLE)
    values = [float(loss(outputs, y, lb.likelihoods.Gaussian(0.5))) for loss in LOSSES]
    each = stats.norm(outputs.numpy(), 0.5).logpdf(y.numpy()).sum(-1)
    of_mean = stats.norm(outputs.numpy().mean(0), 0.5).logpdf(y.numpy()).sum(-1)
    mixture = special.logsumexp(each, 0) - math.log(6)
    expected = [-of_mean.mean(), -of_mean.mean(), -each.mean(), -mixture.mean()]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert values[1] != pytest.approx(values[3])


def test_losses_average_the_predicted_noise():
    outputs, y = torch.randn(6, 5, 4, dtype=DOUBLE), torch.randn(5, 2, dtype=DOUBLE)
    likelihood = lb.likelihoods.Gaussian(0.5, "predicted")
    loc, raw = outputs.numpy()[..., :2], outputs.numpy()[..., 2:]
    scale = 0.5 * np.log1p(np.exp(raw)) / math.log(2) + 1e-6
    averaged = stats.norm(loc.mean(0), scale.mean(0)).logpdf(y.numpy()).sum(-1)
    value = mean_probs_nll(outputs, y, likelihood)
    assert float(value) == pytest.approx(-averaged.mean(), rel=1e-12)


def test_averages_are_of_probabilities_and_not_of_logits():
    outputs, y = torch.randn(5, 4, dtype=DOUBLE), torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=DOUBLE)
    p = outputs.sigmoid().mean(0)
    value = mean_probs_nll(outputs, y, lb.likelihoods.Bernoulli())
    torch.testing.assert_close(value, F.binary_cross_entropy(p, y))


def test_a_mixture_trains_on_tiled_targets():
    model = lb.convert(mlp(), lb.Rank1(3), lb.priors.Normal(0.1, loc=1.0))
    x, y = torch.randn(4, 3, dtype=DOUBLE), torch.randint(2, (4,))
    with lb.using(model, lb.estimators.mean):
        outputs = model(lb.tile(x, 3))
        tiled = F.cross_entropy(outputs, lb.tile(y, 3))
        by_member = lb.training.average_nll(outputs.unflatten(0, (3, 4)), y)
    torch.testing.assert_close(tiled, by_member)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"data_size": 0}, "data_size is 0; give the number of training examples"),
        ({"nll": torch.zeros(3)}, r"nll has shape \(3,\); give its mean over the batch"),
    ],
    ids=["data_size", "nll"],
)
def test_impossible_objectives(arguments, sentence):
    given = {"nll": torch.tensor(0.0), "kl": torch.tensor(0.0), "data_size": 1, **arguments}
    with pytest.raises(ValueError, match=sentence):
        lb.elbo(**given)


def test_a_posterior_kept_at_its_prior_costs_nothing():
    zero = nn.Linear(3, 2).double()
    nn.init.zeros_(zero.weight)
    model = lb.convert(zero, lb.MeanField(0.5), lb.priors.Normal(0.5))
    assert float(lb.kl(model).detach()) == pytest.approx(0.0, abs=1e-12)
    assert float(lb.kl(lb.convert(zero, POSTERIOR, PRIOR)).detach()) > 0
