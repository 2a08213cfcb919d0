"""What a prediction answers beside samples: intervals, calibration, rejection and one sentence."""

import sys

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import leanbayes as lb
from leanbayes import metrics

CLASSES = torch.randn(40, 30, 5, generator=torch.Generator().manual_seed(0)).double()


def test_intervals_of_numbers_are_quantiles_of_the_mixture():
    means = torch.randn(6, 3).double()
    p = lb.Prediction(means, lb.likelihoods.Gaussian(0.7))
    low, high = p.interval(0.8)
    for i in range(3):
        for end, level in ((low[i], 0.1), (high[i], 0.9)):
            exact = optimize.brentq(
                lambda z, i=i, level=level: stats.norm.cdf(z, means[:, i], 0.7).mean() - level,
                *(-20, 20),
            )
            assert float(end) == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_intervals_of_classes_are_quantiles_of_samples(count):
    p = lb.Prediction(CLASSES[:count])
    probs = CLASSES[:count].softmax(-1).numpy()
    low, high = p.interval(0.9)
    np.testing.assert_allclose(low, np.quantile(probs, 0.05, axis=0), atol=1e-12)
    np.testing.assert_allclose(high, np.quantile(probs, 0.95, axis=0), atol=1e-12)
    assert low.shape == (30, 5)


def test_intervals_of_on_and_off_are_those_of_being_on():
    logits = torch.randn(9, 4, 2)
    low, high = lb.Prediction(logits, lb.likelihoods.Bernoulli()).interval(0.5)
    np.testing.assert_allclose(low, np.quantile(logits.sigmoid(), 0.25, axis=0), atol=1e-6)
    assert high.shape == (4, 2)


def test_intervals_in_half_precision():
    low, high = lb.Prediction(CLASSES.to(torch.bfloat16)).interval(0.9)
    exact = lb.Prediction(CLASSES).interval(0.9)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.double(), exact.low, atol=0.02, rtol=0.02)
    torch.testing.assert_close(high.double(), exact.high, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.5])
def test_a_coverage_is_a_probability(coverage):
    with pytest.raises(ValueError, match="it must lie between 0 and 1"):
        lb.Prediction(CLASSES).interval(coverage)


def test_calibration_of_classes_is_in_bins():
    p, y = lb.Prediction(CLASSES), torch.randint(5, (30,))
    bins = p.calibration(y)
    assert bins.examples.sum() == 30
    assert bins.calibration_error == pytest.approx(p.metrics(y)["ece"].value)
    sequence = lb.Prediction(CLASSES.unflatten(1, (10, 3)))
    again = sequence.calibration(y.unflatten(0, (10, 3)))
    assert torch.equal(again.accuracy, bins.accuracy)


def test_calibration_of_numbers_is_the_coverage_of_their_intervals():
    p = lb.Prediction(torch.randn(7, 50).double(), lb.likelihoods.Gaussian(0.5))
    y = torch.randn(50)
    nominal, observed, examples = p.calibration(y)
    assert examples == 50
    for level, share in zip(nominal.tolist(), observed.tolist(), strict=True):
        low, high = p.interval(level)
        assert share == pytest.approx(metrics.interval_coverage(low, high, y.double()).value)
    scores = p.metrics(y)
    assert scores["coverage_90"].value == pytest.approx(float(observed[17]))


def test_rejection_of_classes_keeps_the_certain_ones():
    p, y = lb.Prediction(3 * CLASSES), torch.randint(5, (30,))
    order = p.entropy.argsort()
    right = (p.labels == y)[order].double()
    for share, kept in zip(*p.rejection(y), strict=True):
        count = round(30 * (1 - float(share)))
        assert float(kept) == pytest.approx(float(right[:count].mean()))
    assert p.metrics(y)["aurc"].value == pytest.approx(1 - float(p.rejection(y).kept.mean()))


def test_rejection_of_numbers_keeps_small_variances():
    outputs = torch.randn(5, 20, 2).double()
    p, y = (
        lb.Prediction(outputs, lb.likelihoods.Gaussian(noise="predicted")),
        torch.randn(20, 1).double(),
    )
    order = p.variance.flatten().argsort()
    off = (p.mean - y).flatten()[order]
    curve = p.rejection(y)
    assert float(curve.kept[5]) == pytest.approx(float(off[:15].square().mean().sqrt()))


def test_shapes_that_do_not_fit_are_refused():
    numbers = lb.Prediction(CLASSES[..., 0], lb.likelihoods.Gaussian())
    for ask in ("calibration", "rejection", "metrics", "log_likelihood"):
        for p, y in ((lb.Prediction(CLASSES), torch.zeros(29)), (numbers, torch.zeros(30, 2))):
            with pytest.raises(ValueError, match="Reshape one of them"):
                getattr(p, ask)(y)
    with pytest.raises(ValueError, match="targets are shares"):
        lb.Prediction(CLASSES, lb.likelihoods.Bernoulli()).calibration(torch.full((30, 5), 0.5))


@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        (lb.Prediction(CLASSES), ("30 examples in 5 classes from 40 samples", "nats")),
        (lb.Prediction(CLASSES[:1, :1]), ("1 example in 5 classes from 1 sample:", "0 of it")),
        (lb.Prediction(CLASSES, lb.likelihoods.Bernoulli()), ("5 predictions each, in 2 classes",)),
        (lb.Prediction(CLASSES[:, :0]), ("0 examples from 40 samples.",)),
        (
            lb.Prediction(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), lb.likelihoods.Gaussian(1.0)),
            ("2 examples from 2 samples: means from 2 to 5", "deviation 1.22, 33% of the"),
        ),
        (
            lb.Prediction(torch.full((3, 2), torch.nan), lb.likelihoods.Gaussian()),
            ("an unknown share",),
        ),
    ],
    ids=["classes", "one", "on and off", "none", "numbers", "nan"],
)
def test_a_prediction_is_a_sentence(prediction, words):
    text = repr(prediction)
    assert text == str(prediction)
    assert text.startswith("Prediction of ")
    assert text.endswith(".")
    assert "tensor" not in text
    assert "\n" not in text
    for word in words:
        assert word in text


def test_the_sentence_tells_disagreement_from_noise():
    apart = torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]])
    assert "entropy 0.69 of at most 0.69 nats, 0.69 of it because" in repr(lb.Prediction(apart))
    assert "0 of it because" in repr(lb.Prediction(torch.zeros(2, 1, 2)))


def test_a_likelihood_without_a_mean_is_named():
    class Sum(lb.likelihoods.Likelihood):
        def distribution(self, outputs):
            return torch.distributions.Cauchy(outputs, 1.0)

    assert "outputs (4,) from 3 samples, which a Sum explains" in repr(
        lb.Prediction(torch.zeros(3, 4), Sum())
    )


def test_a_prediction_has_a_length_and_parts():
    p = lb.Prediction(CLASSES, method="looped", reason="a test")
    examples = CLASSES.shape[1]
    assert len(p) == examples
    assert torch.equal(p[:3].samples, CLASSES[:, :3])
    assert torch.equal(p[-1].samples, CLASSES[:, -1:])
    assert torch.equal(p[torch.arange(examples) > 1].probs, p.probs[2:])
    assert p[:3].reason == "a test"
    assert len(list(p)) == examples
    with pytest.raises(IndexError, match=f"must be below the {examples} examples, got {examples}"):
        p[examples]


def test_confidence_and_standard_deviation():
    p = lb.Prediction(CLASSES)
    torch.testing.assert_close(p.confidence, p.probs.amax(-1))
    numbers = lb.Prediction(torch.randn(20, 5), lb.likelihoods.Gaussian(0.5))
    torch.testing.assert_close(numbers.std.square(), numbers.variance)


@pytest.mark.parametrize("name", ["mean", "std", "variance", "aleatoric", "epistemic"])
def test_results_carry_a_gradient_only_if_samples_do(name):
    likelihood = lb.likelihoods.Gaussian(0.5, noise="learned")
    assert any(p.requires_grad for p in likelihood.parameters())
    samples = torch.randn(20, 5)
    assert not getattr(lb.Prediction(samples, likelihood), name).requires_grad
    assert getattr(lb.Prediction(samples.requires_grad_(), likelihood), name).requires_grad
    low, _ = lb.Prediction(samples.detach(), likelihood).interval()
    low.numpy()


def test_a_prediction_as_a_table():
    pandas = pytest.importorskip("pandas")
    p = lb.Prediction(CLASSES)
    table = p.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert len(table) == len(p)
    assert table["labels"].tolist() == p.labels.tolist()
    np.testing.assert_allclose(table["probs_0"], p.probs[:, 0], rtol=1e-6)
    numbers = lb.Prediction(torch.randn(20, 5, 2), lb.likelihoods.Gaussian(0.5)).to_pandas()
    assert {"mean_0", "mean_1", "std_0", "low_1", "high_1"} <= set(numbers.columns)
    on_and_off = lb.Prediction(torch.randn(20, 5), lb.likelihoods.Bernoulli()).to_pandas()
    assert "probs" in on_and_off


def test_a_table_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="install it: pip install pandas"):
        lb.Prediction(CLASSES).to_pandas()


@pytest.mark.parametrize("ask", ["metrics", "log_likelihood", "calibration", "rejection"])
def test_targets_of_every_kind_score_alike(ask):
    p = lb.Prediction(torch.randn(4, 9, 2))
    y = torch.arange(9) % 2
    expected = str(getattr(p, ask)(y))
    kinds = (torch.uint8, torch.bool, torch.int32, torch.float64)
    for same in (*map(y.to, kinds), y.reshape(-1, 1), y.numpy(), y.tolist()):
        assert str(getattr(p, ask)(same)) == expected
    outputs, numbers = torch.randn(4, 9, 1), torch.randn(9)
    column = lb.Prediction(outputs, lb.likelihoods.Gaussian(0.5))
    flat = lb.Prediction(outputs[..., 0], lb.likelihoods.Gaussian(0.5))
    assert str(getattr(column, ask)(numbers)) == str(getattr(flat, ask)(numbers[:, None]))


def test_flat_targets_train_a_column_of_outputs():
    x = torch.randn(60, 3)
    losses = []
    for y in (x[:, 0], x[:, :1]):
        net = torch.nn.Linear(3, 1)
        torch.nn.init.zeros_(net.weight), torch.nn.init.zeros_(net.bias)
        law = lb.likelihoods.Gaussian(0.5)
        row = lb.fit(net, (x, y), (x, y), epochs=2, likelihood=law, progress=False)[-1]
        losses.append((row["nll"], row["validation_nll"]))
    assert losses[0] == losses[1]
    rows = [
        lb.fit(torch.nn.Linear(3, 2), (x, y), (x, y), epochs=1, progress=False)[-1]
        for y in ((x[:, 0] > 0).long(), (x[:, :1] > 0).long())
    ]
    assert all(row["validation_accuracy"] <= 1 for row in rows)
