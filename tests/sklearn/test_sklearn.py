"""Estimators for scikit-learn: what they promise beyond scikit-learn's own checks."""

import importlib
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import leanbayes as lb
from leanbayes.errors import NonFiniteLossError
from leanbayes.sklearn import BayesClassifier, BayesRegressor, base
from leanbayes.sklearn.fitting import FitSettings, WeightedRows, distinct_rows, round_off
from leanbayes.sklearn.posterior_names import NAMED_FAMILIES, NamedFamily

SHORT = {"epochs": 4, "samples": 11, "random_state": 3}
KINDS = [BayesRegressor, BayesClassifier]
OF_REGRESSOR = {
    "predict": lambda m, X: m.predict(X),
    "std": lambda m, X: m.predict(X, return_std=True)[1],
    "interval": lambda m, X: m.predict_interval(X, [0.5, 0.9]),
    "quantiles": lambda m, X: m.predict_quantiles(X, [0.05, 0.5, 0.95]),
    "uncertainty": lambda m, X: np.stack(m.predict_uncertainty(X), -1),
}
OF_CLASSIFIER = {
    "predict": lambda m, X: m.predict(X),
    "proba": lambda m, X: m.predict_proba(X),
    "log_proba": lambda m, X: m.predict_log_proba(X),
    "uncertainty": lambda m, X: np.stack(m.predict_uncertainty(X), -1),
}


def table(rows=37, features=3, seed=0):
    rng = np.random.RandomState(seed)
    X = rng.randn(rows, features)
    return X, 40 + 10 * np.sin(2 * X[:, 0]) + X[:, 1] + rng.randn(rows)


def targets(kind, y):
    return (
        y
        if kind is BayesRegressor
        else np.array(["low", "middle", "high"])[np.digitize(y, (36, 44))]
    )


def made(kind, rows=37, **options):
    X, y = table(rows)
    return kind(**{**SHORT, **options}).fit(X, targets(kind, y)), X


def answers(model, X):
    asked = OF_REGRESSOR if isinstance(model, BayesRegressor) else OF_CLASSIFIER
    return {name: ask(model, X) for name, ask in asked.items()}


def assert_same(one, other):
    for name, values in one.items():
        assert np.array_equal(values, other[name]), name


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.networks_.parameters()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("posterior", ["k-tied", "matrix-normal", "rank-1", "ensemble"])
def test_what_a_row_gets_does_not_depend_on_the_rows_beside_it(kind, posterior, monkeypatch):
    model, _ = made(kind, posterior=posterior)
    X = np.random.RandomState(1).randn(300, 3)
    expected = answers(model, X)
    order = np.random.RandomState(2).permutation(300)
    for rows in (order, order[:7], order[:1]):
        assert_same(answers(model, X[rows]), {n: v[rows] for n, v in expected.items()})
    monkeypatch.setattr(base, "_BLOCK", 11 * 64)
    assert_same(answers(model, X), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_equal_fits_whatever_the_order_of_rows(kind):
    X, y = table()
    y, order = targets(kind, y), np.random.RandomState(0).permutation(len(X))
    first = kind(**SHORT, batch_size=8).fit(X, y)
    again = kind(**SHORT, batch_size=8).fit(X[order], y[order])
    assert torch.equal(weights_of(first), weights_of(again))
    assert_same(answers(first, X), answers(again, X))
    other = clone(first).set_params(random_state=4).fit(X, y)
    assert not torch.equal(weights_of(first), weights_of(other))


def test_threads_fit_what_one_fits_alone():
    X, y = table()
    fits = [BayesRegressor(**{**SHORT, "random_state": seed}) for seed in (0, 1)]
    alone = [weights_of(clone(each).fit(X, y)) for each in fits]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda each: weights_of(each.fit(X, y)), fits))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_precision_changes_nothing(kind, request):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    model, X = made(kind)
    expected = answers(model, X)
    torch.set_default_dtype(torch.float64)
    assert_same(answers(made(kind)[0], X), expected)


def test_other_generators_stay_as_they_were():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    model, X = made(BayesClassifier)
    model.predict_proba(X)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_weight_three_is_three_rows(kind):
    X, y = table(20)
    y, counts = targets(kind, y), np.random.RandomState(0).randint(0, 4, 20)
    weighted = kind(**SHORT).fit(X, y, sample_weight=counts)
    repeated = kind(**SHORT).fit(X.repeat(counts, 0), y.repeat(counts))
    if kind is BayesClassifier:
        assert list(weighted.classes_) == list(repeated.classes_)
    assert torch.equal(weights_of(weighted), weights_of(repeated))
    plain = kind(**SHORT).fit(X, y)
    assert not torch.equal(weights_of(weighted), weights_of(plain))


def test_distinct_rows_are_those_of_a_plain_count():
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 3, (60, 2)) * 0.5, rng.randint(0, 2, 60) * 1.0
    weight = rng.randint(0, 3, 60) * 1.0
    counted = {}
    for row, target, w in zip(x, y, weight, strict=True):
        if w:
            key = (*row, target)
            counted[key] = counted.get(key, 0) + w
    merged = distinct_rows(x, y, weight)
    found = {(*row, t): w for row, t, w in zip(*merged, strict=True)}
    assert found == counted
    assert len(distinct_rows(np.array([[0.0], [-0.0]]), np.zeros(2), np.ones(2)).x) == 1


def test_weights_of_rows_mean_one_and_keep_their_sum():
    rows = WeightedRows.of(np.zeros((3, 1)), np.zeros(3), np.array([1.0, 2.0, 6.0]), torch.float32)
    assert rows.total == 9
    assert torch.allclose(rows.weight, torch.tensor([1 / 3, 2 / 3, 2.0]))
    part = rows.take(torch.tensor([0, 1]))
    assert part.total == pytest.approx(3)
    assert torch.allclose(part.weight, torch.tensor([2 / 3, 4 / 3]))


def test_class_weights_are_sample_weights():
    X, y = table()
    y = targets(BayesClassifier, y)
    asked = {"low": 2.0, "middle": 1.0, "high": 0.5}
    by_class = BayesClassifier(**SHORT, class_weight=asked).fit(X, y)
    by_row = BayesClassifier(**SHORT).fit(X, y, sample_weight=[asked[each] for each in y])
    assert torch.equal(weights_of(by_class), weights_of(by_row))
    names, counts = np.unique(y, return_counts=True)
    share = dict(zip(names, len(y) / (3 * counts), strict=True))
    balanced = BayesClassifier(**SHORT, class_weight="balanced").fit(X, y)
    by_hand = BayesClassifier(**SHORT, class_weight=share).fit(X, y)
    assert torch.equal(weights_of(balanced), weights_of(by_hand))


@pytest.mark.parametrize("kind", KINDS)
def test_early_stopping_keeps_the_best_weights(kind):
    X, y = table(60)
    y = targets(kind, y)
    options = {"learning_rate": 0.3, "epochs": 60, "n_iter_no_change": 3, "random_state": 0}
    model = kind(early_stopping=True, validation_fraction=0.3, **options).fit(X, y)
    scores = model.validation_scores_
    assert model.n_iter_ == len(scores) == int(np.argmax(scores)) + 1 + 3 < 60
    rows = model._prepared(X, y, None, first=False)
    _, held_out = rows.split(0.3, model._fitted.seed)
    p = lb.predict(
        model.networks_[0],
        held_out.x,
        samples=10,
        seed=model._fitted.seed,
        likelihood=model.likelihood_,
    )
    with torch.no_grad():
        log_probs = held_out.weight * p.log_likelihood(held_out.y)
    assert float(log_probs.mean()) == pytest.approx(max(scores), abs=1e-6)
    assert kind(**SHORT).fit(X, y).validation_scores_ == []


def test_a_long_fit_is_validated_at_most_a_hundred_times():
    X, y = table(10)
    options = {"epochs": 150, "early_stopping": True, "n_iter_no_change": 1000}
    model = BayesRegressor(**{**SHORT, **options}, validation_fraction=0.2).fit(X, y)
    assert (model.n_iter_, len(model.validation_scores_)) == (150, 75)


def test_rows_held_out_have_the_same_share_of_every_class():
    codes = np.repeat([0, 1, 2], [40, 20, 10])
    rows = WeightedRows.of(np.arange(70.0)[:, None], codes, np.ones(70), torch.long)
    kept, held_out = rows.split(0.2, seed=1)
    assert held_out.y.bincount().tolist() == [8, 4, 2]
    assert sorted(torch.cat([kept.x, held_out.x]).flatten().tolist()) == list(range(70))
    with pytest.raises(ValueError, match="2 distinct rows cannot be split"):
        rows.take(torch.tensor([0, 1])).split(0.1, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_warm_start_goes_on_where_it_was(kind):
    X, y = table()
    y = targets(kind, y)
    model = kind(**SHORT).fit(X, y)
    before, first = answers(model, X), weights_of(model)
    model.set_params(warm_start=True, learning_rate=1e-30).fit(X, y)
    assert_same(answers(model, X), before)
    model.set_params(learning_rate=0.02).fit(X, y)
    assert not torch.equal(weights_of(model), first)
    model.set_params(warm_start=False).fit(X, y)
    assert torch.equal(weights_of(model), first)


@pytest.mark.parametrize("kind", KINDS)
def test_partial_fit_is_one_epoch(kind):
    X, y = table()
    y = targets(kind, y)
    known = {} if kind is BayesRegressor else {"classes": np.unique(y)}
    whole = kind(**{**SHORT, "epochs": 1, "kl_warmup": 0.0}).fit(X, y)
    step = kind(**SHORT).partial_fit(X, y, **known)
    assert torch.equal(weights_of(whole), weights_of(step))
    for _ in range(20):
        step.partial_fit(X, y)
    assert step.n_iter_ == 21
    assert step.loss_curve_[-1] < step.loss_curve_[0]
    assert step._fitted.rows_seen == 21 * len(X)


def test_data_size_weighs_the_kl_of_partial_fits():
    X, y = table()
    few = BayesRegressor(**SHORT, data_size=len(X)).partial_fit(X, y)
    by_default = BayesRegressor(**SHORT).partial_fit(X, y)
    many = BayesRegressor(**SHORT, data_size=10**9).partial_fit(X, y)
    assert few.loss_curve_ == by_default.loss_curve_
    assert few.loss_curve_[0] - many.loss_curve_[0] > 1  # of about 200 weights that cost some nats


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_have_feature_names(kind, library):
    frames = pytest.importorskip(library)
    X, y = table()
    y = targets(kind, y)
    frame = frames.DataFrame({name: X[:, i] for i, name in enumerate("abc")})
    model = kind(**SHORT).fit(frame, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert_same(answers(model, frame), answers(kind(**SHORT).fit(X, y), X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c"]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("posterior", [*NAMED_FAMILIES, lb.KTied(3)])
def test_pickled_estimators_answer_the_same_and_go_on(kind, posterior):
    model, X = made(kind, posterior=posterior, hidden=(6, 5))
    same = pickle.loads(pickle.dumps(model))
    assert_same(answers(same, X), answers(model, X))
    y = targets(kind, table()[1])
    assert torch.equal(weights_of(model.partial_fit(X, y)), weights_of(same.partial_fit(X, y)))
    new = clone(model)
    assert new.get_params() == model.get_params()
    assert not hasattr(new, "networks_")


def test_grid_search_chooses_among_families():
    X, y = table()
    pipe = make_pipeline(StandardScaler(), BayesRegressor(**SHORT, hidden=(5, 5)))
    grid = {"bayesregressor__posterior": [*NAMED_FAMILIES, lb.KTied(1)]}
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(X).shape == (len(X),)


@pytest.mark.parametrize("noise", ["learned", "predicted"])
def test_answers_come_in_the_units_of_the_targets(noise):
    X, y = table()
    asked = {"noise": noise, **SHORT}
    expected = answers(BayesRegressor(**asked).fit(X, y), X)
    for unit in (2.0**-60, 2.0**40):  # powers of two leave the scaled targets as they are
        found = answers(BayesRegressor(**asked).fit(X, unit * y), X)
        for name, values in expected.items():
            power = 2 if name == "uncertainty" else 1
            assert np.allclose(found[name] / unit**power, values, rtol=1e-9), name
    far = answers(BayesRegressor(**asked).fit(X, 1e6 + y), X)
    assert np.allclose(far["predict"] - 1e6, expected["predict"], atol=0.05 * y.std())
    assert np.allclose(far["std"], expected["std"], rtol=0.05)


@pytest.mark.parametrize("noise", ["learned", "predicted"])
def test_the_prediction_object_is_a_mixture_in_own_units(noise):
    model, X = made(BayesRegressor, noise=noise)
    y = table()[1]
    p = model.predict_dist(X)
    assert isinstance(p, lb.Prediction)
    mean, std = model.predict(X, return_std=True)
    assert np.allclose(p.mean, mean, rtol=1e-6)
    assert np.allclose(p.variance.sqrt(), std, rtol=1e-6)
    law = p.likelihood.distribution(p.samples)
    assert law.mean.shape == (11, len(X))
    densities = stats.norm(law.mean, law.stddev).pdf(y).mean(0)
    assert np.allclose(p.log_likelihood(torch.as_tensor(y)), np.log(densities))
    ends = model.predict_interval(X, 0.8)
    reached = stats.norm(law.mean, law.stddev).cdf(ends.T[:, None]).mean(1)
    assert np.allclose(reached, [[0.1], [0.9]], atol=1e-5)
    assert np.allclose(model.predict_quantiles(X, [0.1, 0.9]), ends)


@pytest.mark.parametrize(("noise", "bounded"), [("learned", False), ("predicted", True)])
def test_rows_that_are_believed_to_have_no_noise_pull_with_bounded_force(noise, bounded):
    X, y = table()
    y[0] += 1000.0
    model = BayesRegressor(noise=noise, epochs=1, random_state=0).fit(X, y)
    parameters = [*model.networks_.parameters(), *model.likelihood_.parameters()]
    force = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
    assert bool(force <= 1 + 1e-5) == bounded


def test_shapes_of_intervals_and_quantiles():
    model, X = made(BayesRegressor)
    assert model.predict_interval(X).shape == (37, 2)
    several = model.predict_interval(X, [0.5, 0.9, 0.99])
    assert several.shape == (37, 2, 3)
    assert np.array_equal(several[:, :, 1], model.predict_interval(X, coverage=0.9))
    assert (np.diff(several[:, 1], axis=1) > 0).all()
    assert (np.diff(several[:, 0], axis=1) < 0).all()
    assert model.predict_quantiles(X, [0.05, 0.5, 0.95]).shape == (37, 3)


def test_uncertainties_add_up():
    model, X = made(BayesRegressor)
    parts = model.predict_uncertainty(X)
    assert parts._fields == ("total", "aleatoric", "epistemic")
    assert np.allclose(parts.total, model.predict(X, return_std=True)[1] ** 2)
    assert (parts.epistemic > 0).all()
    model, X = made(BayesClassifier)
    parts = model.predict_uncertainty(X)
    assert np.allclose(parts.total, stats.entropy(model.predict_proba(X), axis=1), atol=1e-6)
    probs = model.predict_dist(X).sample_log_probs.exp().numpy()
    assert np.allclose(parts.aleatoric, stats.entropy(probs, axis=-1).mean(0), atol=1e-6)
    assert np.allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "spec", "networks", "members"),
    [
        ("mean-field", lb.MeanField, 1, 1),
        ("Mean field", lb.MeanField, 1, 1),
        ("k_tied", lb.KTied, 1, 1),
        ("matrix-normal", lb.posteriors.MatrixNormal, 1, 1),
        ("rank-1", lb.Rank1, 1, 4),
        ("low-rank", lb.posteriors.LowRank, 1, 1),
        ("ensemble", lb.posteriors.Point, 5, 1),
    ],
)
def test_families_by_name(name, spec, networks, members):
    model, _ = made(BayesRegressor, posterior=name)
    kinds = {type(layer.posterior.spec) for _, layer in lb.extend.random_maps(model.networks_)}
    assert kinds == {spec}
    assert len(model.networks_) == networks
    assert [lb.extend.members(network) for network in model.networks_] == [members] * networks


def test_members_ranks_and_specs():
    model, X = made(BayesRegressor, posterior="k-tied", rank=3, members=2)
    assert [type(n[0].posterior.spec) for n in model.networks_] == [lb.KTied] * 2
    assert model.networks_[0][0].posterior.spec.rank == 3
    assert not torch.equal(model.networks_[0][0].posterior.loc, model.networks_[1][0].posterior.loc)
    assert model.predict_dist(X).samples.shape[0] == 2 * 6  # at least the 11 asked for
    model, X = made(BayesRegressor, posterior="rank-1", members=3)
    assert lb.extend.members(model.networks_[0]) == 3
    model, X = made(BayesRegressor, posterior=lb.Rank1(members=2), prior=None)
    assert model.networks_[0][0].prior.spec == lb.priors.Normal(0.1, loc=1.0)
    model, X = made(BayesRegressor, posterior=lb.Rank1(members=2, signs=0.5), members=3)
    assert model.networks_[0][0].posterior.spec == lb.Rank1(members=3, signs=0.5)
    model, X = made(BayesRegressor, posterior="ensemble", members=3)
    assert model.predict_dist(X).samples.shape[0] == 3  # functions without noise


def test_variance_layers_stand_between_others():
    model, _ = made(BayesClassifier, posterior="variance", hidden=(6, 5, 4))
    specs = [type(layer.posterior.spec) for _, layer in lb.extend.random_maps(model.networks_[0])]
    assert specs == [
        lb.posteriors.Point,
        lb.posteriors.ZeroMean,
        lb.posteriors.ZeroMean,
        lb.posteriors.Point,
    ]


def test_a_family_is_one_line(monkeypatch):
    monkeypatch.setitem(NAMED_FAMILIES, "wide", NamedFamily(lambda s: lb.MeanField(10 * s.scale)))
    model, _ = made(BayesRegressor, posterior="wide")
    assert model.networks_[0][0].posterior.spec == lb.MeanField(0.5)


def test_a_linear_model_is_evidence_maximization():
    """One layer, correlated weights, learned noise and prior: what scikit-learn has in closed form.

    Both maximize the same evidence; that of the ELBO is found by 1000 noisy steps.
    """
    rng = np.random.RandomState(0)
    X = rng.randn(60, 4) @ rng.randn(4, 4)
    X = StandardScaler().fit_transform(X)
    y = X @ [1.0, -2.0, 0.5, 0.0] + 1.5 * rng.randn(60)
    none = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    exact = BayesianRidge(**none, max_iter=1000, tol=1e-9).fit(X, y)
    model = BayesRegressor("matrix-normal", hidden=(), epochs=1000, samples=2000, random_state=0)
    mean, std = model.fit(X, y).predict(X, return_std=True)
    expected, spread = exact.predict(X, return_std=True)
    assert np.abs(mean - expected).max() < 0.05 * y.std()
    assert np.allclose(std, spread, rtol=0.06)
    between = np.sqrt(model.predict_uncertainty(X).epistemic)
    assert np.allclose(between, np.sqrt(spread**2 - 1 / exact.alpha_), rtol=0.2)


def test_intervals_are_credible_and_mapie_makes_them_conformal():
    for kind in KINDS:
        assert "credible, not conformal" in " ".join(kind.__doc__.split())
    regression = pytest.importorskip("mapie.regression")
    X, y = table(400)
    train, calibrate, test = np.split(np.arange(400), [60, 200])
    model = BayesRegressor(epochs=3, random_state=0).fit(X[train], y[train])
    around = regression.SplitConformalRegressor(model, confidence_level=0.9, prefit=True)
    around.conformalize(X[calibrate], y[calibrate])
    _, ends = around.predict_interval(X[test])
    held = np.mean((ends[:, 0, 0] <= y[test]) & (y[test] <= ends[:, 1, 0]))
    # given 140 calibration rows the coverage is Beta(127, 14), and 200 rows are counted
    least = stats.betabinom(200, 127, 14).ppf(1e-6) / 200
    assert least <= held <= 1
    own = model.predict_interval(X[test], coverage=0.9)
    assert own.shape == ends[:, :, 0].shape


def test_scaling_of_inputs_can_be_left_out():
    X, y = table()
    scaled, raw = (BayesRegressor(**SHORT, scale_inputs=s).fit(1000 * X, y) for s in (True, False))
    assert raw.input_scaler_ is None
    assert np.allclose(scaled.input_scaler_.mean_, 1000 * X.mean(0))
    assert np.allclose(scaled.input_scaler_.scale_, 1000 * X.std(0))
    assert not np.array_equal(scaled.predict(1000 * X), raw.predict(1000 * X))


@pytest.mark.parametrize(
    ("rows", "epochs", "batches"),
    [(20, 150, 1), (200, 1200, 1), (1000, 1200, 5), (20_000, 250, 40), (10**6, 20, 1000)],
)
def test_epochs_follow_the_number_of_rows(rows, epochs, batches):
    settings = FitSettings(None, None, 0.1, 1.0, 0.0, False, 0.1, 10, False)
    assert settings.planned_epochs(rows) == epochs
    assert settings.batches(rows) == batches


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"posterior": "k-tide"}, "posterior 'k-tide' is unknown; did you mean 'k-tied'"),
        ({"posterior": 3}, "posterior is 3; give a name such as 'k-tied'"),
        ({"posterior": "variance"}, "give two hidden layers"),
        ({"activation": "rely"}, "did you mean 'relu'"),
        ({"prior": 1.0}, "prior is 1.0; give None or a spec"),
        ({"hidden": (0,)}, "hidden is 0; it must be at least 1"),
        ({"rank": 0}, "rank is 0"),
        ({"members": 0}, "members is 0"),
        ({"scale": -1.0}, "scale is -1.0; it must be positive"),
        ({"samples": 0}, "samples is 0"),
        ({"noise": "fixed"}, "noise 'fixed' is unknown"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be positive"),
        ({"kl_weight": -1.0}, "kl_weight must not be negative, got -1.0"),
        ({"kl_warmup": 2.0}, "kl_warmup must be from 0 to 1, got 2.0"),
        ({"n_iter_no_change": 0}, "n_iter_no_change is 0"),
        ({"data_size": 0}, "data_size is 0"),
        ({"early_stopping": True, "validation_fraction": 1.5}, "validation_fraction is 1.5"),
    ],
)
def test_wrong_parameters_are_told_when_fitting(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        made(BayesRegressor, **options)


def test_wrong_questions_are_told():
    model, X = made(BayesRegressor)
    with pytest.raises(ValueError, match=r"coverage is 1\.5; it must lie between 0 and 1"):
        model.predict_interval(X, 1.5)
    with pytest.raises(ValueError, match=r"quantile 1\.0 does not lie"):
        model.predict_quantiles(X, [1.0])
    with pytest.raises(NotFittedError):
        BayesRegressor().predict_dist(X)
    with pytest.raises(NonFiniteLossError, match="Lower learning_rate"):
        made(BayesRegressor, learning_rate=1e30)


def test_classes_must_be_known():
    X, y = table()
    y = targets(BayesClassifier, y)
    with pytest.raises(ValueError, match="needs classes="):
        BayesClassifier(**SHORT).partial_fit(X, y)
    model = BayesClassifier(**SHORT).partial_fit(X, y, classes=["high", "low", "middle"])
    with pytest.raises(ValueError, match="the first call gave"):
        model.partial_fit(X, y, classes=["high", "low"])
    with pytest.raises(ValueError, match=r"class \['other'\] is new"):
        model.set_params(warm_start=True).fit(X, np.where(y == "low", "other", y))
    with pytest.raises(ValueError, match="balanced"):
        model.set_params(class_weight="balanced").partial_fit(X, y)


def test_the_kl_rises_in_the_warm_up():
    cold, ramped = (made(BayesRegressor, kl_warmup=w)[0] for w in (0.0, 1.0))
    free = made(BayesRegressor, kl_weight=0.0)[0]
    assert free.loss_curve_[0] == ramped.loss_curve_[0] < cold.loss_curve_[0]


@pytest.mark.parametrize("early_stopping", [False, True])
def test_an_interrupted_fit_keeps_its_weights(early_stopping, monkeypatch):
    X, y = table()
    whole = BayesRegressor(**SHORT, early_stopping=early_stopping).fit(X, y)
    steps, real = [], torch.optim.Adam.step

    def interrupted(optimizer, closure=None):
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return real(optimizer, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = clone(whole).fit(X, y)
    assert (model.n_iter_, model.loss_curve_) == (2, whole.loss_curve_[:2])
    assert model.validation_scores_ == whole.validation_scores_[:2]
    assert np.isfinite(model.predict(X)).all()


def test_verbose_shows_the_progress(capsys):
    made(BayesRegressor)
    assert not capsys.readouterr().err
    made(BayesRegressor, verbose=True)
    assert "epoch 4/4" in capsys.readouterr().err


def test_the_loss_of_an_ensemble_is_that_of_a_network_on_average():
    asked = {"posterior": "ensemble", "kl_warmup": 0.0, "epochs": 1}
    several, _ = made(BayesClassifier, **asked, members=3)
    seed = several._fitted.seed
    each = []
    for number in range(3):
        alone = BayesClassifier(**{**SHORT, **asked}, members=1)
        alone.set_params(random_state=FixedSeed(seed + number))
        X, y = table()
        each.append(alone.fit(X, targets(BayesClassifier, y)))
    losses = [model.loss_curve_[0] for model in each]
    assert several.loss_curve_[0] == pytest.approx(np.mean(losses), rel=1e-5)
    for ours, alone in zip(several.networks_, each, strict=True):
        for a, b in zip(ours.parameters(), alone.networks_[0].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class FixedSeed(np.random.RandomState):
    """A random state that draws one number."""

    def __init__(self, number=0):
        super().__init__(0)
        self.number = number

    def randint(self, *args, **kwargs):
        return self.number


def test_rounding_is_that_of_single_precision():
    values = torch.randn(1000, dtype=torch.float64) * 10.0 ** torch.randint(-30, 30, (1000,))
    assert np.array_equal(round_off(values), values.float().double().numpy())
    tiny = torch.tensor([1e-300, 0.0, -1e300], dtype=torch.float64)
    assert np.allclose(round_off(tiny), tiny, rtol=1e-7, atol=0)


def test_without_scikit_learn_the_remedy_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("leanbayes.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'leanbayes\[sklearn\]'"):
        importlib.import_module("leanbayes.sklearn")


@pytest.mark.parametrize("kind", KINDS)
def test_a_huge_constant_column_changes_nothing(kind):
    X, y = table()
    models = [
        kind(**SHORT).fit(np.column_stack([X, np.full(len(X), value)]), targets(kind, y))
        for value in (0.0, 1e30)
    ]
    tables = [np.column_stack([X, np.full(len(X), value)]) for value in (0.0, 1e30)]
    answers = OF_REGRESSOR if kind is BayesRegressor else OF_CLASSIFIER
    plain, huge = (answers["uncertainty"](m, t) for m, t in zip(models, tables, strict=True))
    np.testing.assert_allclose(huge, plain, rtol=0.01)
