"""Likelihoods: their contract, against scipy, of one's own, and in files."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import special, stats
from torch import distributions as td
from torch import nn

import leanbayes as lb
from leanbayes.likelihoods import LIKELIHOODS
from leanbayes.likelihoods.incomplete_beta import incomplete_beta
from leanbayes.testing import check_likelihood
from leanbayes.training.schedules import SCHEDULES

DOUBLE = torch.float64
LEVELS = (0.01, 0.3, 0.5, 0.975)


def outputs(*shape):
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


NUMBERS, COUNTS = torch.tensor([[0.3], [-1.0], [2.0]]).double(), torch.tensor([[0.0], [1.0], [7.0]])
EXAMPLES = {
    "categorical": (lb.likelihoods.Categorical(), outputs(4, 5, 3), torch.tensor([0, 2, 1, 1, 0])),
    "bernoulli": (lb.likelihoods.Bernoulli(), outputs(4, 6), torch.tensor([0.0, 1, 1, 0, 1, 0])),
    "bernoulli_pixels": (lb.likelihoods.Bernoulli(), outputs(2, 3, 2, 2), torch.ones(3, 2, 2)),
    "gaussian": (lb.likelihoods.Gaussian(0.7), outputs(4, 3, 1), NUMBERS),
    "gaussian_learned": (lb.likelihoods.Gaussian(0.7, "learned"), outputs(4, 3, 1), NUMBERS),
    "gaussian_predicted": (lb.likelihoods.Gaussian(0.7, "predicted"), outputs(4, 3, 2), NUMBERS),
    "student_t": (lb.likelihoods.StudentTNoise(0.7, df=9.0), outputs(4, 3, 1), NUMBERS),
    "student_t_learned": (
        lb.likelihoods.StudentTNoise(0.7, "learned", df=9.0, learn_df=True),
        outputs(4, 3, 1),
        NUMBERS,
    ),
    "student_t_predicted": (
        lb.likelihoods.StudentTNoise(0.7, "predicted", 9.0),
        outputs(4, 3, 2),
        NUMBERS,
    ),
    "poisson": (lb.likelihoods.Poisson(), outputs(4, 3, 1), COUNTS),
    "poisson_whole_numbers": (lb.likelihoods.Poisson(), outputs(4, 3), COUNTS.flatten().long()),
    "negative_binomial": (lb.likelihoods.NegativeBinomial(0.5), outputs(4, 3, 1), COUNTS),
    "negative_binomial_fixed": (
        lb.likelihoods.NegativeBinomial(0.5, "fixed"),
        outputs(4, 3, 1),
        COUNTS,
    ),
    "negative_binomial_predicted": (
        lb.likelihoods.NegativeBinomial(2.0, "predicted"),
        outputs(4, 3, 2),
        COUNTS,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_likelihood_keeps_its_contract(name):
    check_likelihood(*EXAMPLES[name], samples=5000)


def test_every_registered_likelihood_has_an_example():
    ours = {made for made in LIKELIHOODS.values() if made.__module__.startswith("leanbayes.")}
    assert ours == {type(likelihood) for likelihood, _, _ in EXAMPLES.values()}
    assert {made.__name__ for made in ours} <= set(lb.likelihoods.__all__)


class _Laplace(lb.likelihoods.Likelihood):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def distribution(self, outputs):
        return td.Laplace(outputs, self.scale)


def _with(**methods):
    """A Laplace likelihood with one thing wrong."""
    return type("Broken", (_Laplace,), methods)


BROKEN = {
    "log_prob": (_with(log_prob=lambda self, o, y: -(o - y).abs().sum(-1)), "not that of its dis"),
    "mean": (_with(mean=lambda self, o: o.mean(0) + 0.3), "mean of Broken"),
    "variance": (_with(variance=lambda self, o: o.var(0)), "variance of Broken"),
    "cdf": (_with(cdf=lambda self, o, y: torch.sigmoid(y - o).mean(0)), "cdf of Broken"),
    "quantiles": (_with(quantiles=lambda self, o, levels: o[: len(levels)] - 9), "is too low"),
    "sample": (_with(sample=lambda self, o: o[..., 0]), "sample of Broken has shape"),
    "metrics": (_with(metrics=lambda self, o, y: {}), "have no 'nll'"),
    "arguments": (_with(to_dict=lambda self: {"kind": "broken", "scale": 2.0}), "does not survive"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_check_catches_what_it_is_for(what, registered):
    broken, sentence = BROKEN[what]
    registered(LIKELIHOODS, "broken", broken)
    with pytest.raises(AssertionError, match=sentence):
        check_likelihood(broken(0.5), outputs(4, 3, 1), NUMBERS, samples=5000)


def test_one_s_own_passes_the_check_once_it_is_registered(registered):
    with pytest.raises(AssertionError, match="_Laplace is missing in LIKELIHOODS"):
        check_likelihood(_Laplace(0.5), outputs(4, 3, 1), NUMBERS)
    registered(LIKELIHOODS, "laplace", _Laplace)
    check_likelihood(_Laplace(0.5), outputs(4, 3, 1), NUMBERS, samples=5000)


MEANS = np.array([0.2, 3.0, 40.0])
SCIPY = {
    "poisson": (lb.likelihoods.Poisson(), stats.poisson(MEANS)),
    "negative_binomial": (
        lb.likelihoods.NegativeBinomial(0.25, "fixed"),
        stats.nbinom(4.0, 4.0 / (4.0 + MEANS)),
    ),
    "student_t": (lb.likelihoods.StudentTNoise(0.7, df=5.0), stats.t(5.0, np.log(MEANS), 0.7)),
}


@pytest.mark.parametrize("name", SCIPY)
def test_one_sample_is_scipy_s_distribution(name):
    likelihood, law = SCIPY[name]
    given = torch.from_numpy(np.log(MEANS))[None]
    y = torch.tensor([0.0, 5.0, 33.0], dtype=DOUBLE)
    density = law.logpdf if name == "student_t" else law.logpmf
    np.testing.assert_allclose(likelihood.log_prob(given, y)[0], density(y.numpy()), rtol=1e-9)
    np.testing.assert_allclose(likelihood.mean(given), law.mean(), rtol=1e-9)
    np.testing.assert_allclose(likelihood.variance(given), law.var(), rtol=1e-9)
    np.testing.assert_allclose(likelihood.cdf(given, y), law.cdf(y.numpy()), rtol=1e-8)
    expected = np.stack([law.ppf(level) for level in LEVELS])
    np.testing.assert_allclose(likelihood.quantiles(given, LEVELS), expected, rtol=1e-9)


def test_quantiles_of_counts_are_the_least_numbers_that_reach_a_level():
    given = outputs(6, 3) + 1
    values = torch.arange(60, dtype=DOUBLE)
    mixed = stats.poisson(given.exp().numpy()[None]).cdf(values.numpy()[:, None, None]).mean(1)
    expected = np.stack([(mixed < level).sum(0) for level in LEVELS])
    np.testing.assert_array_equal(lb.likelihoods.Poisson().quantiles(given, LEVELS), expected)


def test_quantiles_of_large_counts_in_single_precision():
    given = torch.full((2, 1), math.log(5e5))
    middle = float(lb.likelihoods.Poisson().quantiles(given, [0.5]))
    assert middle == pytest.approx(stats.poisson(5e5).ppf(0.5), rel=1e-4)


@pytest.mark.parametrize("size", [0.3, 4.0, 2000.0, 3000.0, 1e7])
def test_incomplete_beta_is_scipy_s(size):
    generator = np.random.default_rng(0)
    a, b = generator.gamma(size, size=(2, 500)) + 0.01
    near = a / (a + b) + generator.normal(size=500) / np.sqrt(4 * (a + b))
    x = np.concatenate([[0.0, 1.0], generator.uniform(size=248), near[250:].clip(0, 1)])
    ours = incomplete_beta(*(torch.from_numpy(v) for v in (a, b, x)))
    np.testing.assert_allclose(ours, special.betainc(a, b, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dispersion", [2.0, 1.0, 1e-3, 1e-5, 1e-8])
def test_negative_binomial_is_scipy_s_in_single_precision(dispersion):
    given = torch.tensor([[1.0, 1e2, 1e4, 1e6, 1e7, 3e7]]).log()
    likelihood = lb.likelihoods.NegativeBinomial(dispersion, "fixed")
    spread = float(torch.tensor(dispersion))
    law = stats.nbinom(1 / spread, 1 / (1 + spread * given[0].double().exp().numpy()))
    expected = np.stack([law.ppf(level) for level in LEVELS])
    np.testing.assert_allclose(likelihood.quantiles(given, LEVELS), expected, rtol=3e-7)
    y = torch.tensor(expected[-1]).float()
    np.testing.assert_allclose(likelihood.cdf(given, y), law.cdf(y.double().numpy()), rtol=1e-6)
    log_probs = law.logpmf(y.double().numpy())
    np.testing.assert_allclose(likelihood.log_prob(given, y)[0], log_probs, rtol=1e-6)


def test_negative_binomial_towards_poisson():
    given, y = outputs(1, 5) + 2, torch.arange(5.0).double()
    almost = lb.likelihoods.NegativeBinomial(1e-13, "fixed")
    poisson = lb.likelihoods.Poisson()
    torch.testing.assert_close(almost.log_prob(given, y), poisson.log_prob(given, y))
    torch.testing.assert_close(almost.cdf(given, y), poisson.cdf(given, y))


def test_negative_binomial_gradients():
    y = torch.tensor([0.0, 3.0, 40.0], dtype=DOUBLE)

    def log_prob(log_mean, raw):
        likelihood = lb.likelihoods.NegativeBinomial(0.02, "predicted")
        return likelihood.log_prob(torch.stack([log_mean, raw], -1), y[:, None])

    log_mean = torch.tensor([-2.0, 1.0, 3.0], dtype=DOUBLE, requires_grad=True)
    raw = torch.tensor([0.1, 9.0, -9.0], dtype=DOUBLE, requires_grad=True)
    torch.autograd.gradcheck(log_prob, (log_mean, raw))


@pytest.mark.parametrize("df", [0.05, 0.1, 0.5, 1.0])
def test_student_t_quantiles_with_few_degrees_of_freedom(df):
    levels = [0.025, 0.3, 0.9, 0.975]
    ours = lb.likelihoods.StudentTNoise(df=df).quantiles(torch.zeros(1, 1), levels).flatten()
    np.testing.assert_allclose(ours, stats.t(df).ppf(levels), rtol=1e-5)


def test_a_quantile_beyond_single_precision_is_infinite():
    likelihood = lb.likelihoods.StudentTNoise(df=0.01)
    ends = likelihood.quantiles(torch.zeros(1, 1), [0.025, 0.975]).flatten()
    assert ends.tolist() == [-math.inf, math.inf]


def test_rates_far_below_zero_have_a_likelihood_and_a_gradient():
    given = torch.tensor([[-300.0, 3.0]], requires_grad=True)
    nll = lb.likelihoods.Poisson().nll(given, torch.tensor([2.0, 1.0]))
    nll.backward()
    assert nll.isfinite()
    assert given.grad.isfinite().all()


def test_a_heavy_tail_costs_an_outlier_less():
    given, outlier = torch.zeros(1, 1), torch.tensor([20.0])
    assert lb.likelihoods.StudentTNoise().nll(given, outlier) < 0.1 * lb.likelihoods.Gaussian().nll(
        given, outlier
    )
    assert lb.likelihoods.StudentTNoise(df=1.5).variance(given).isinf().all()


def test_dispersion_is_learned_from_counts():
    counts = td.NegativeBinomial(4.0, probs=torch.tensor(0.5)).sample((1000,))
    likelihood = lb.likelihoods.NegativeBinomial(1.0)
    optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = likelihood.nll(counts.mean().log().expand(1000), counts)
        loss.backward()
        return loss

    optimizer.step(closure)
    excess = (counts.var() - counts.mean()) / counts.mean() ** 2
    assert float(likelihood.log_dispersion.detach().exp()) == pytest.approx(float(excess), rel=0.4)


class _Own(lb.likelihoods.Likelihood):
    """Whatever distribution somebody chooses."""

    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def distribution(self, outputs):
        return self.make(outputs)


def _normals(outputs):
    return td.MultivariateNormal(outputs, torch.eye(outputs.shape[-1], dtype=outputs.dtype))


CLASS_WORDS = {"probs", "log_probs", "labels", "entropy", "expected_entropy", "mutual_information"}
NUMBER_WORDS = {"mean", "aleatoric", "epistemic", "variance"}
CDF_WORDS = {"cdf", "quantiles", "interval"}
OWN = {
    "laplace": (lambda o: td.Laplace(o, 1.0), NUMBER_WORDS | CDF_WORDS),
    "log_normal": (lambda o: td.LogNormal(o, 1.0), NUMBER_WORDS | CDF_WORDS),
    "gamma": (lambda o: td.Gamma(o.exp(), 1.0), NUMBER_WORDS | CDF_WORDS),
    "cauchy": (lambda o: td.Cauchy(o, 1.0), CDF_WORDS),
    "binomial": (lambda o: td.Binomial(3, logits=o), CLASS_WORDS | NUMBER_WORDS | CDF_WORDS),
    "ordinal": (lambda o: td.Categorical(logits=o), CLASS_WORDS | {"interval"}),
    "yes_or_no": (lambda o: td.Bernoulli(logits=o), CLASS_WORDS | NUMBER_WORDS | CDF_WORDS),
    "counts": (lambda o: td.Poisson(o.exp()), NUMBER_WORDS),
    "several": (_normals, NUMBER_WORDS),
    "transformed": (
        lambda o: td.TransformedDistribution(td.StudentT(3.0, o), td.ExpTransform()),
        set(),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_one_s_own_gets_answers_or_one_true_sentence(name):
    make, answered = OWN[name]
    prediction = lb.Prediction(outputs(5, 4, 3), _Own(make))
    assert set(prediction.answers) == answered | {"log_likelihood"}
    for word in CLASS_WORDS | NUMBER_WORDS | CDF_WORDS:
        ask = {
            "cdf": lambda: prediction.cdf(torch.ones(4) if name == "ordinal" else torch.ones(4, 3)),
            "quantiles": lambda: prediction.quantiles([0.25, 0.5]),
            "interval": lambda: torch.stack(prediction.interval(0.9)),
        }.get(word, lambda word=word: getattr(prediction, word))
        if word in answered:
            assert ask().isfinite().all()
        else:
            with pytest.raises(TypeError, match=r"_Own has no .+; ask for") as caught:
                ask()
            named = str(caught.value).split("ask for ")[1]
            assert set(named.replace(" or ", ", ").split(", ")) == set(prediction.answers)


@pytest.mark.parametrize("name", ["log_normal", "gamma", "cauchy", "binomial", "yes_or_no"])
def test_quantiles_of_one_s_own_invert_its_cdf(name):
    likelihood, given = _Own(OWN[name][0]), outputs(5, 4)
    for level, value in zip(LEVELS, likelihood.quantiles(given, LEVELS), strict=True):
        reached = likelihood.cdf(given, value)
        if name in ("binomial", "yes_or_no"):
            assert (reached >= level).all()
            below = likelihood.cdf(given, (value - 1).clamp_min(0))
            assert ((below < level) | (value == 0)).all()
        else:
            torch.testing.assert_close(reached, torch.full_like(reached, level))


def test_numbers_that_are_not_finite_stay_so():
    broken = lb.Prediction(torch.full((3, 2), torch.nan), lb.likelihoods.Gaussian())
    assert broken.mean.isnan().all()
    assert broken.quantiles([0.5]).isnan().all()
    assert lb.Prediction(torch.zeros(3, 0), lb.likelihoods.Gaussian()).mean.shape == (0,)


def test_metrics_of_one_s_own_are_those_of_its_kind_of_target():
    y = torch.tensor([0, 1, 2, 1])
    own, ours = (
        lb.Prediction(outputs(5, 4, 3), likelihood).metrics(y)
        for likelihood in (_Own(OWN["ordinal"][0]), lb.likelihoods.Categorical())
    )
    assert own.keys() == ours.keys()
    assert all(own[name] == pytest.approx(ours[name]) for name in own)
    numbers = lb.Prediction(outputs(5, 4), _Own(OWN["counts"][0]))
    assert set(numbers.metrics(y)) == {"nll", "squared_error", "rmse", "crps"}
    heavy = lb.Prediction(outputs(5, 4), _Own(OWN["cauchy"][0])).metrics(y)
    assert set(heavy) == {"nll", "coverage_90", "width_90"}
    normal = lb.Prediction(outputs(5, 4), lb.likelihoods.Gaussian()).metrics(y)
    assert set(normal) == set(numbers.metrics(y)) | set(heavy)
    binary = lb.Prediction(outputs(5, 4), _Own(OWN["yes_or_no"][0])).metrics(y.clamp_max(1))
    assert set(binary) == {"nll", "accuracy", "ece", "auc_pr", "auroc"}


def test_targets_of_several_numbers_each():
    likelihood, given, y = _Own(_normals), outputs(5, 4, 3), outputs(4, 3)
    expected = td.Normal(given, 1.0).log_prob(y).sum(-1)
    torch.testing.assert_close(likelihood.log_prob(given, y), expected)
    with pytest.raises(ValueError, match="targets must have the last dimensions"):
        likelihood.log_prob(given, y[:, :2])


def test_many_classes_are_told_apart_in_half_precision():
    given = torch.zeros(1, 2, 600, dtype=torch.bfloat16)
    given[0, 0, 511] = given[0, 1, 513] = 50.0
    nll = lb.likelihoods.Categorical().nll(given, torch.tensor([511, 513]))
    assert float(nll) == pytest.approx(0.0, abs=1e-3)


def test_a_prediction_draws_targets():
    prediction = lb.Prediction(outputs(400, 3), lb.likelihoods.Poisson())
    drawn = prediction.draw()
    assert drawn.shape == (400, 3)
    assert (drawn == drawn.round()).all()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "gausian"}, "likelihood 'gausian' is unknown; did you mean 'gaussian'?"),
        (
            {"kind": "gaussian", "scal": 1.0},
            "has no argument 'scal'; did you mean 'scale'?",
        ),
        ({"kind": "poisson", "scale": 1.0}, "poisson has no argument 'scale'; it has none"),
        ({"kind": "gaussian", "scale": "wide"}, "'gaussian' cannot be made: "),
        ({"kind": "gaussian", "scale": -1.0}, "scale is -1.0; it must be positive"),
        ({"scale": 1.0}, "likelihood '' is unknown"),
    ],
)
def test_what_is_wrong_with_a_description_is_one_sentence(values, sentence):
    with pytest.raises(ValueError, match=r"is|has|cannot") as caught:
        lb.likelihoods.Likelihood.from_dict(values)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_file_cannot_hold_is_said():
    with pytest.raises(
        ValueError, match=r"_Laplace is not a registered .* lb.extend.register_likelihood"
    ):
        _Laplace().to_dict()
    forgetful = _with(__init__=lambda self, scale, shape: _Laplace.__init__(self, scale))
    with pytest.raises(ValueError, match="no attribute 'shape', and a file needs it"):
        forgetful(1.0, 2.0).to_dict()


def model():
    return lb.convert(nn.Linear(3, 1), lb.KTied(2), lb.priors.Normal(1.0))


def test_a_likelihood_is_saved_with_its_model(tmp_path):
    net, likelihood = model(), lb.likelihoods.StudentTNoise(0.5, "learned", df=3.0, learn_df=True)
    with torch.no_grad():
        likelihood.log_scale.add_(0.25)
    lb.save(net, tmp_path / "m", likelihood)
    again = lb.saving.load_likelihood(tmp_path / "m")
    assert repr(again) == repr(likelihood)
    assert torch.equal(again.log_scale, likelihood.log_scale)
    assert again.log_scale.requires_grad
    same = lb.load(nn.Linear(3, 1), tmp_path / "m")
    assert torch.equal(lb.kl(same), lb.kl(net))
    alone = set(load_file(tmp_path / "m.safetensors")) - set(net.state_dict())
    assert alone == {".likelihood.log_scale", ".likelihood.log_df"}


def test_a_layer_called_likelihood_keeps_its_tensors(tmp_path):
    net = nn.ModuleDict({"likelihood": nn.Linear(3, 1)})
    converted = lb.convert(net, lb.KTied(2), lb.priors.Normal(1.0))
    lb.save(converted, tmp_path / "m", lb.likelihoods.Gaussian(1.0, "learned"))
    same = lb.load(net, tmp_path / "m")
    assert torch.equal(lb.kl(same), lb.kl(converted))


def test_a_file_without_a_likelihood_says_so(tmp_path):
    lb.save(model(), tmp_path / "m")
    with pytest.raises(ValueError, match="was saved without a likelihood; give it to save"):
        lb.saving.load_likelihood(tmp_path / "m")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        lb.saving.load_likelihood(tmp_path / "absent")


def test_schedules_are_made_by_name():
    assert SCHEDULES.make("linear", steps=10)(5) == 0.5
    with pytest.raises(ValueError, match="schedule 'liner' is unknown; did you mean 'linear'"):
        SCHEDULES.make("liner")
    with pytest.raises(ValueError, match="linear has no argument 'step'; did you mean 'steps'"):
        SCHEDULES.make("linear", step=10)
    with pytest.raises(ValueError, match=r"schedule 'linear' cannot be made: .*'steps'"):
        SCHEDULES.make("linear")


def test_a_schedule_of_one_s_own():
    @lb.extend.register_schedule("square_root")
    @dataclass(frozen=True)
    class SquareRoot:
        steps: float

        def __call__(self, step: float) -> float:
            return min(1.0, math.sqrt(step / self.steps))

    try:
        assert SCHEDULES.make("square_root", steps=100)(25) == 0.5
    finally:
        SCHEDULES.unregister("square_root")


@pytest.mark.parametrize(
    "likelihood", [lb.likelihoods.Poisson(), lb.likelihoods.NegativeBinomial()]
)
@pytest.mark.parametrize("wrong", [-1.0, 0.5, math.nan])
def test_what_is_no_count_is_refused(likelihood, wrong):
    y = torch.tensor([2.0, wrong])
    with pytest.raises(ValueError, match="is for counts, and a target is negative or not a whole"):
        likelihood.nll(torch.zeros(2), y)
    likelihood.nll(torch.zeros(2), torch.tensor([2.0, 0.0]))


@pytest.mark.parametrize("classes", [1, 2, 10, 15, 16, 40])
@pytest.mark.parametrize("shape", [(1, 5), (4, 5), (4, 5, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_probabilities_are_softmaxes_whatever_the_number_of_classes(classes, shape, dtype):
    outputs = 3 * torch.randn(*shape, classes, dtype=dtype)
    if classes > 1:
        outputs[0, 0, ..., 0] = -torch.inf  # a class that is impossible
    expected = outputs.double().softmax(-1)
    tolerance = {"rtol": 0.0, "atol": 2e-2 if dtype is torch.bfloat16 else 1e-6}
    found = lb.likelihoods.Categorical().class_log_probs(outputs)
    assert found.dtype == dtype
    assert found.is_contiguous()
    torch.testing.assert_close(found.double().exp(), expected, **tolerance)
    averaged = lb.likelihoods.Categorical().probs(outputs).double()
    torch.testing.assert_close(averaged, expected.mean(0), **tolerance)
