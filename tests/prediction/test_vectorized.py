"""Samples folded into one pass: every example keeps its law, and rows that mix are found out."""

import sys
import threading
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import leanbayes as lb
from leanbayes.kernels import (
    Sharing,
    k_tied_samples,
    scaled_samples,
    shared_noise,
    windows,
    without_native,
)
from leanbayes.ops import Conv, Linear
from leanbayes.prediction import sampling
from leanbayes.prediction.sampling import Passes
from leanbayes.prediction.vectorized import samples as vectorized_samples
from leanbayes.prediction.vectorized.batch_rules import ROW_WISE, UnprovenError, elementwise
from leanbayes.prediction.vectorized.samples import RowsApart
from leanbayes.testing import assert_mean
from leanbayes.testing.assertions import FAILURE_RATE, threshold

PRIOR = lb.priors.Normal(1.0)
FAMILIES = {
    "mean_field": (lb.MeanField(0.3), PRIOR),
    "k_tied": (lb.KTied(2, 0.3), PRIOR),
    "low_rank": (lb.posteriors.LowRank(3, 0.3), PRIOR),
    "zero_mean": (lb.posteriors.ZeroMean(), lb.priors.LogUniform()),
    "matrix_normal": (lb.posteriors.MatrixNormal(), PRIOR),
    "dropout": (lb.posteriors.VariationalDropout(), lb.priors.LogUniform()),
    "rank1": (lb.Rank1(1), lb.priors.Normal(0.3, loc=1.0)),
    "members": (lb.Rank1(3), lb.priors.Normal(0.3, loc=1.0)),
}


def mlp():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


class Residual(nn.Module):
    """An early branch, before any noise, joins a late one; and features are concatenated."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(6, 2)
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        h = x + self.first(x).relu()
        h = h + F.gelu(self.second(self.norm(h)))
        return self.last(torch.cat([h, x], -1))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x, y):
        return self.out(torch.sigmoid(self.a(x)) * self.b(y))


class Block(nn.Module):
    """Attention written out, with a class token that is expanded to the batch."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))
        self.token = nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, x):
        h = torch.cat([self.token.expand(len(x), -1, -1), x.unflatten(1, (3, 4))], 1)
        q, k, v = (f(h).unflatten(-1, (2, 2)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.mT / 2**0.5, -1)
        h = h + self.out((weights @ v).transpose(1, 2).flatten(2))
        return F.layer_norm(h, (4,))[:, 0, :2]


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 2)),
    )


NETWORKS = {
    "mlp": (mlp, lb.estimators.auto, [(3,)]),
    "residual": (Residual, lb.estimators.auto, [(3,)]),
    "two_inputs": (TwoInputs, lb.estimators.auto, [(3,), (2,)]),
    "cnn": (cnn, lb.estimators.local, [(1, 6, 6)]),
    "attention": (Block, lb.estimators.local, [(12,)]),
}


@pytest.fixture
def looped(monkeypatch):
    """Predict in a loop over samples, as where nothing can be folded."""

    def predict(*args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(Passes, "_why_looped", lambda self, samples, coherent: "a test")
            return lb.predict(*args, **options)

    return predict


@pytest.fixture
def folded():
    """Predict, and assert how samples were drawn."""

    def predict(*args, expected=True, **options):
        prediction = lb.predict(*args, **options)
        assert prediction.method == ("vectorized" if expected else "looped"), prediction.reason
        assert (prediction.reason is None) == expected
        return prediction

    return predict


def spread_out(model):
    """Noise that is neither small nor the same everywhere."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def features(y, center):
    """What laws are compared by: moments of single outputs to the fourth, and all products."""
    z = (y - center).flatten(2)
    products = (z.unsqueeze(-1) * z.unsqueeze(-2)).flatten(2)
    return torch.cat([z, z**3, z**4, products], -1)


def assert_same_law(a, b):
    """Assert that two sets of samples ``[samples, examples, …]`` have one law for each example."""
    center = a.mean(0)
    first, second = (features(y.double(), center.double()) for y in (a, b))
    error = (first.var(0) / len(first) + second.var(0) / len(second)).sqrt()
    off = (first.mean(0) - second.mean(0)).abs() / (error + 1e-12)
    assert off.max() < threshold(off.numel()), f"moments are off by {off.max():.1f} errors"
    pairs = list(zip(a.flatten(1).unbind(1), b.flatten(1).unbind(1), strict=True))
    for one, other in pairs:
        p = stats.ks_2samp(one.numpy(), other.numpy()).pvalue
        assert p > FAILURE_RATE / len(pairs), "distribution functions differ"


EXAMPLES, DRAWS = 12, 4000


def both(model, shapes, folded, looped, draws=DRAWS):
    """Samples of a few examples: folded, and independent ones, members apart."""
    x = tuple(torch.randn(EXAMPLES, *shape) for shape in shapes)
    count = lb.extend.members(model)
    many = folded(model, x, samples=draws).samples
    each = tuple(t.repeat(draws // 10, *(1,) * (t.ndim - 1)) for t in x)
    alone = looped(model, each, samples=10).samples
    alone = alone.unflatten(0, (10, count)).unflatten(2, (-1, EXAMPLES)).transpose(1, 2)
    alone = alone.flatten(0, 1)
    many = many.unflatten(0, (draws, count))
    return (y.transpose(1, 2).flatten(1, 2) for y in (many, alone))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_example_keeps_its_law(family, folded, looped):
    model = spread_out(lb.convert(mlp(), *FAMILIES[family]))
    assert_same_law(*both(model, [(3,)], folded, looped))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("family", ["k_tied", "matrix_normal"])
def test_networks_of_many_kinds_keep_the_law(family, name, folded, looped):
    make, estimator, shapes = NETWORKS[name]
    model = spread_out(lb.convert(make(), *FAMILIES[family], estimator))
    assert_same_law(*both(model, shapes, folded, looped, 2000))


@pytest.mark.parametrize("family", ["k_tied", "mean_field", "zero_mean"])
def test_every_example_keeps_its_law_without_kernels(family, folded, looped):
    with without_native():
        test_every_example_keeps_its_law(family, folded, looped)


def test_a_wrong_law_is_noticed(folded, looped, monkeypatch):
    model = spread_out(lb.convert(mlp(), *FAMILIES["k_tied"]))
    module = sys.modules[windows.__module__]
    exact = module.windows
    monkeypatch.setattr(module, "windows", lambda *sizes: 1.1 * exact(*sizes))
    with without_native(), pytest.raises(AssertionError, match="moments are off"):
        assert_same_law(*both(model, [(3,)], folded, looped))


@pytest.mark.parametrize("given", [1, 4])
@pytest.mark.parametrize("shape", [(7,), (70,), (3, 5)])
def test_noise_surrounds_the_law_of_every_row(given, shape, branch):
    fold = Sharing(samples=4, examples=23, each=10)
    mean, variance = torch.randn(given * 23, *shape), torch.rand(given * 23, *shape)
    bias = torch.randn(shape)
    torch.manual_seed(0)
    e = shared_noise(None, None, torch.ones_like(variance), fold).unflatten(0, (4, 23))
    width = variance[0].numel()
    flat, step = e.flatten(2), -(-width // 10)
    assert torch.equal(flat[:, 1, : width - step], flat[:, 0, step:])
    rows = (10, 10, 3) if branch == "native" else (23,)  # examples that one row of numbers serves
    assert len(flat.unique()) == 4 * sum(width + (examples - 1) * step for examples in rows)
    for m, b in ((mean, None), (None, bias), (mean, bias)):
        torch.manual_seed(0)
        y = shared_noise(m, b, variance.clone(), fold).unflatten(0, (4, 23))
        laws = [
            t.unflatten(0, (given, 23)) for t in (mean if m is not None else 0 * mean, variance)
        ]
        expected = laws[0] + (0 if b is None else b) + laws[1].sqrt() * e
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("given", [1, 4])
@pytest.mark.parametrize("inputs", [5, 32, 37])
@pytest.mark.parametrize("outputs", [1, 2, 7, 15, 16, 41])
def test_noise_of_free_weights_is_that_of_their_variances(outputs, inputs, given, branch):
    fold = Sharing(samples=4, examples=23, each=10)
    x, loc = torch.randn(given * 23, inputs), torch.randn(outputs, inputs)
    variance, bias = torch.rand(outputs, inputs), torch.randn(outputs)
    for m, b in ((loc, None), (None, bias), (loc, bias), (None, None)):
        torch.manual_seed(0)
        y = scaled_samples(x, m, variance, b, fold)
        torch.manual_seed(0)
        mean = None if m is None else x @ loc.t()
        expected = shared_noise(mean, b, x.square() @ variance.t(), fold)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("given", [1, 4])
@pytest.mark.parametrize("outputs", [7, 41])
def test_k_tied_noise_is_that_of_its_variances(outputs, given, rank, branch):
    fold = Sharing(samples=4, examples=23, each=10)
    x, loc, bias = torch.randn(given * 23, 37), torch.randn(outputs, 37), torch.randn(outputs)
    u, v = torch.rand(rank, outputs), torch.rand(rank, 37)
    torch.manual_seed(0)
    y = k_tied_samples(x, loc, u, v, bias, fold)
    torch.manual_seed(0)
    variance = x.square() @ (u.t() @ v).square().t()
    expected = shared_noise(F.linear(x, loc), bias, variance, fold)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_folded_noise_of_other_types_is_that_of_torch():
    fold = Sharing(samples=4, examples=23, each=10)
    x, loc = torch.randn(23, 7, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    u, v = torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 7, dtype=torch.float64)
    torch.manual_seed(0)
    y = k_tied_samples(x, loc, u, v, None, fold)
    torch.manual_seed(0)
    e = windows(fold, 3, y)
    std = (x.square() @ (u.t() @ v).square().t()).sqrt()
    torch.testing.assert_close(y.unflatten(0, (4, 23)), x @ loc.t() + std * e)


def test_a_random_bias_and_a_layer_without_noise(folded, looped):
    overrides = {"4": {"posterior": lb.posteriors.Point()}, "2": {"bias": lb.MeanField(0.5)}}
    model = lb.convert(mlp(), *FAMILIES["mean_field"], overrides=overrides)
    assert_same_law(*both(model, [(3,)], folded, looped, 2000))


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_of_an_example_are_independent(family, folded):
    model = spread_out(lb.convert(mlp(), *FAMILIES[family]))
    y = folded(model, torch.randn(5, 3), samples=3000).samples
    y = y.unflatten(0, (3000, lb.extend.members(model))).double()
    y = (y - y.mean(0)) / y.std(0)
    for lag in (1, 2, 7, 31, 32):
        correlation = (y[lag:] * y[:-lag]).mean(0)
        assert correlation.abs().max() * len(y) ** 0.5 < threshold(correlation.numel())


def test_windows_are_white_noise_that_few_examples_share():
    e = windows(Sharing(2, 30, vectorized_samples.SHARED_BY), 40, torch.zeros(()))
    assert e.shape == (2, 30, 40)
    numbers = torch.cat([e[0, :, :].flatten()]).unique(return_counts=True)[1]
    assert numbers.max() == vectorized_samples.SHARED_BY
    assert not (e[:, 1:] == e[:, :-1]).any()  # never the same number in the same place
    assert not (e[0] == e[1]).any()
    assert len(e[0, 3].unique()) == 40
    narrow = windows(Sharing(1, 30, vectorized_samples.SHARED_BY), 1, torch.zeros(()))
    assert len(narrow.unique()) == 30


def test_a_mean_over_examples_scatters_little_more(looped):
    model = spread_out(lb.convert(mlp(), *FAMILIES["k_tied"]))
    x, y = torch.randn(100, 3), torch.randint(2, (100,))

    def scatter(predict):
        means = [predict(model, x, samples=4, seed=s).log_likelihood(y).mean() for s in range(300)]
        return float(torch.stack(means).std())

    assert scatter(lb.predict) < 1.25 * scatter(looped)


def test_a_seed_repeats_the_samples_in_threads_too(folded):
    model = lb.convert(mlp(), *FAMILIES["k_tied"])
    x = torch.randn(700, 3)
    alone = {s: folded(model, x, samples=20, seed=s).samples for s in (1, 2)}
    assert not torch.equal(alone[1], alone[2])
    found = {}

    def run(thread):
        found[thread] = lb.predict(model, x, samples=20, seed=1 + thread % 2).samples

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[i], alone[1 + i % 2]) for i in range(4))


@pytest.mark.parametrize("examples", [1, 2, 5, 149, 151, 1000])
@pytest.mark.parametrize("samples", [2, 31, 33, 100])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_shapes(examples, samples, batch_size, folded):
    model = lb.convert(nn.Linear(3, 2), *FAMILIES["members"])
    x = torch.randn(examples, 3)
    p = folded(model, x, samples=samples, batch_size=batch_size)
    assert p.samples.shape == (3 * samples, examples, 2)
    assert len(p.samples[:, 0, 0].unique()) == 3 * samples


def test_one_sample_no_example_and_few_at_once_run_in_the_loop(folded):
    model = lb.convert(mlp(), *FAMILIES["k_tied"])
    assert folded(model, torch.randn(9, 3), samples=1, expected=False).samples.shape == (1, 9, 2)
    assert folded(model, torch.randn(0, 3), samples=3, expected=False).samples.shape == (3, 0, 2)
    x = torch.randn(9, 3)
    assert folded(model, x, samples=3, batch_size=2, expected=False).samples.shape == (3, 9, 2)


@torch.no_grad()
@pytest.mark.parametrize(
    "posterior", [lb.MeanField(0.3), lb.posteriors.MatrixNormal(), lb.posteriors.Point()], ids=repr
)
@pytest.mark.parametrize("op", [Linear(), Linear(batch_dim=1), Conv((2, 2))], ids=repr)
def test_a_bias_is_added_to_every_sample(op, posterior):
    sizes = {0: (5, 4, 3, 3), 1: (2, 5, 3)} if isinstance(op, Conv) else {0: (5, 3), 1: (2, 5, 3)}
    x, bias = torch.randn(sizes[op.batch_dim]), torch.randn(3)
    columns = 16 if isinstance(op, Conv) else 3
    q = posterior(op.unmatrix(torch.randn(3, columns)), op)()

    def run(index, x, bias):
        return vectorized_samples.SharedNoise(index, RowsApart([])).outputs(q, x, op, bias)

    for given in (x, torch.randn(7, *x.shape)):
        dims = (0, None if given is x else 0, None)
        drawn = []
        for b in (None, bias):
            torch.manual_seed(0)
            drawn.append(torch.func.vmap(run, dims)(torch.arange(7), given, b))
        assert drawn[0].shape[:1] == (7,)
        shift = op.spread(bias[None], drawn[0].ndim - 1)
        torch.testing.assert_close(drawn[1], drawn[0] + shift)


class Then(nn.Module):
    """Something that is done to a batch, between two random layers."""

    def __init__(self, act):
        super().__init__()
        self.first, self.last, self.act = nn.Linear(3, 4), nn.Linear(4, 2), act
        self.register_buffer("past", torch.zeros(4))

    def forward(self, x):
        return self.last(self.act(self.first(x)))


ELSEWHERE = torch.ones(4)


def only_if_positive(h):
    return h if h.sum() > 0 else -h


def in_place(h):
    h[1:] += h[:-1].clone()
    return h


MIXED = {
    "mean": lambda h: h - h.mean(0),
    "mean of all": lambda h: h - h.mean(),
    "softmax": lambda h: torch.softmax(h, 0),
    "softmax of a module": nn.Softmax(0),
    "sort": lambda h: h.sort(0).values,
    "flip": lambda h: h.flip(0),
    "first row": lambda h: h - h[:1],
    "one row": lambda h: h - h[0],
    "picked rows": lambda h: h[torch.randperm(len(h))],
    "shuffle": lambda h: h.roll(1, 0),
    "cumsum": lambda h: h.cumsum(0),
    "product of rows": lambda h: h @ (h.t() @ h),
    "neighbors": lambda h: h.reshape(-1).roll(1).reshape(h.shape),
    "transpose": lambda h: torch.softmax(h.t(), -1).t(),
    "statistics": lambda h: F.batch_norm(h, None, None, training=True),
    "dropout": lambda h: F.dropout(h, 0.5, training=True),
    "places": lambda h: h + torch.arange(len(h))[:, None],
    "number": lambda h: h * len(h),
    "number as a tensor": lambda h: h * torch.tensor(float(len(h))),
    "noise": lambda h: h + torch.randn_like(h),
    "condition": only_if_positive,
    "in place": in_place,
    "past torch": lambda h: torch.tensor(h.tolist()).cumsum(0),
    "attribute": lambda h: h * ELSEWHERE,
    "einsum": lambda h: torch.einsum("bi,ci->bi", h, h),
    "convolution": lambda h: F.conv1d(h.t()[None], torch.ones(4, 4, 3), padding=1)[0].t(),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("place", ["between", "before", "after"])
def test_rows_that_mix_are_found_out(name, place, folded, looped):
    act = MIXED[name]
    net = Then(act if place == "between" else nn.Identity())
    model = lb.convert(net, *FAMILIES["k_tied"])
    if place != "between":
        inner = model
        wide = nn.Linear(2, 4) if place == "after" else nn.Linear(4, 3)
        model = nn.Sequential(*((inner, wide) if place == "after" else ()), Act(act))
        model = nn.Sequential(model, *((wide, inner) if place == "before" else ()))
    x = torch.randn(1000, 4 if place == "before" else 3)
    expected = looped(model, x, samples=6, seed=3).samples
    assert torch.equal(folded(model, x, samples=6, seed=3, expected=False).samples, expected)


class Act(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(x)


def test_what_a_model_remembers_is_not_taken_for_a_constant(folded):
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(3, 2), torch.zeros(1, 2)

        def forward(self, x):
            self.last = self.layer(x) + self.last[:1]
            return self.last

    model = lb.convert(Remembers(), *FAMILIES["k_tied"])
    folded(model, torch.randn(6, 3), samples=3, expected=False)


LOOPS = {
    "weights": lambda: lb.convert(mlp(), *FAMILIES["k_tied"], lb.estimators.weights),
    "flipout": lambda: lb.convert(mlp(), *FAMILIES["k_tied"], lb.estimators.flipout),
    "convolution": lambda: lb.convert(nn.Conv1d(3, 2, 1), *FAMILIES["k_tied"]),
    "shared": lambda: lb.convert(nn.Sequential(*[nn.Linear(3, 3)] * 2), *FAMILIES["k_tied"]),
    "recurrent": lambda: Last(lb.convert(nn.LSTM(3, 2, batch_first=True), *FAMILIES["k_tied"])),
    "transformer": lambda: lb.convert(
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), *FAMILIES["k_tied"]
    ),
}


class Last(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0][:, -1]


@pytest.mark.parametrize("name", LOOPS)
def test_draws_that_a_batch_shares_stay_in_the_loop(name, looped):
    model = LOOPS[name]()
    sizes = {"convolution": (3, 5), "recurrent": (5, 3), "transformer": (5, 4)}
    x = torch.randn(8, *sizes.get(name, (3,)))
    expected = looped(model, x, samples=3, seed=1).samples
    assert torch.equal(lb.predict(model, x, samples=3, seed=1).samples, expected)


def test_coherent_held_and_switched_predictions_are_what_they_were(looped):
    model, x = lb.convert(mlp(), *FAMILIES["k_tied"]), torch.randn(8, 3)
    options = {"samples": 3, "seed": 1, "coherent": True}
    expected = looped(model, x, **options).samples
    assert torch.equal(lb.predict(model, x, **options).samples, expected)
    with lb.held(model):
        assert torch.equal(lb.predict(model, x, samples=2).samples, model(x).expand(2, -1, -1))
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(lb.predict(model, x, samples=2).samples[1], model(x))
    with lb.using(model, lb.estimators.weights):
        expected = looped(model, x, samples=3, seed=1).samples
        assert torch.equal(lb.predict(model, x, samples=3, seed=1).samples, expected)


def test_hooks_see_the_passes_of_the_loop(folded):
    model, seen = lb.convert(mlp(), *FAMILIES["k_tied"]), []
    model[2].register_forward_hook(lambda layer, given, y: seen.append(y))
    folded(model, torch.randn(8, 3), samples=3, expected=False)
    assert [y.shape for y in seen] == [(8, 8)] * 3


def test_inputs_are_left_as_they_were(folded):
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2))
    model, x = lb.convert(net, *FAMILIES["k_tied"]), torch.randn(8, 3)
    before = x.clone()
    folded(model, x, samples=3)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype, folded):
    model = lb.convert(mlp().to(dtype), *FAMILIES["k_tied"])
    samples = folded(model, torch.randn(8, 3, dtype=dtype), samples=3).samples
    assert samples.dtype == dtype
    assert samples.isfinite().all()


def test_sizes_are_bounded_and_not_all_equal(monkeypatch):
    seen = []
    call = sampling._Vectorized.__call__

    def spy(self, batch, samples):
        seen.append((len(batch[0]), samples, samples * sum(t.numel() for t in batch)))
        return call(self, batch, samples)

    monkeypatch.setattr(sampling._Vectorized, "__call__", spy)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    for model, x in ((mlp(), torch.randn(3000, 3)), (net, torch.randn(300, 3, 32, 32))):
        for samples in (20, 100):
            seen.clear()
            lb.predict(lb.convert(model, *FAMILIES["k_tied"]), x, samples=samples)
            assert sum(rows * count for rows, count, _ in seen) == len(x) * samples
            assert max(rows * count for rows, count, _ in seen) <= sampling._ROWS
            assert max(numbers for *_, numbers in seen) <= sampling._NUMBERS
            assert len({rows for rows, *_ in seen}) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_folding_saves_products(family, folded, looped):
    net = nn.Sequential(nn.Linear(60, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU())
    model, x = lb.convert(net, *FAMILIES[family]), torch.randn(150, 60)
    flops = []
    for predict in (folded, looped):
        with FlopCounterMode(display=False) as counter:
            predict(model, x, samples=20)
        flops.append(counter.get_total_flops())
    if family in ("rank1", "members"):
        assert flops[0] == flops[1]  # factors on the inputs: every sample has a product of its own
    elif family == "low_rank":
        assert flops[0] < 0.55 * flops[1]  # the right factor of the first layer is half of all
    else:
        assert flops[0] < 0.4 * flops[1]  # of 80 parts of a sample's products 60 are done once


@pytest.mark.parametrize("family", ["k_tied", "mean_field", "zero_mean"])
def test_folding_saves_products_without_kernels(family, folded, looped):
    with without_native():
        test_folding_saves_products(family, folded, looped)


ROWS = torch.randn(5, 4, 6, 6)
CALLS = {
    "elementwise": lambda x: F.gelu(x.relu() + 1).mul_(2).clamp_min(0.1),
    "mask": lambda x: torch.where(x > 0, x, -x).masked_fill(x < -1, 0.0),
    "reduce": lambda x: x.mean((2, 3)).softmax(-1),
    "max": lambda x: x.max(1).values.amax(-1),
    "permute": lambda x: x.permute(2, 3, 0, 1).transpose(0, 2),
    "mT": lambda x: x.mT.flatten(2).mT,
    "rows last": lambda x: (torch.ones(3, 4) @ x[:, :, 0, 0].t()).t(),
    "index": lambda x: x[:, None, ..., 1:3, 0],
    "split": lambda x: torch.stack(x.chunk(2, 1), 1) + x.split(2, dim=1)[0].unsqueeze(1),
    "unbind": lambda x: torch.cat([*x.unbind(2)], 1),
    "select": lambda x: x.select(1, 0).narrow(1, 0, 3).squeeze(-1),
    "reshape": lambda x: x.view(len(x), 2, -1).unflatten(1, (1, 2)).reshape(x.shape[0], -1),
    "convolution": lambda x: F.conv2d(x, torch.ones(2, 4, 3, 3)),
    "transposed convolution": lambda x: F.conv_transpose2d(x, torch.ones(4, 2, 3, 3)),
    "pooling": lambda x: F.avg_pool2d(F.max_pool2d(x, 2), 2) + F.adaptive_avg_pool2d(x, 1),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "pixels": lambda x: F.pixel_shuffle(x, 2),
    "norms": lambda x: F.group_norm(F.layer_norm(x, (6, 6)), 2) + F.rms_norm(x, (6,)),
    "batch norm": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "prelu": lambda x: F.prelu(x, torch.full((4,), 0.2)),
    "pad": lambda x: F.pad(x, (1, 1, 2, 0)),
    "linear": lambda x: F.linear(x, torch.ones(2, 6)),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "matmul": lambda x: x @ x.mT @ torch.ones(6, 2),
    "glu": lambda x: F.glu(x, 1).sort(-1).values.topk(2, -1).values,
    "normalize": lambda x: F.normalize(x, dim=1).cumsum(2),
    "equal parts": lambda x: torch.cat([x, x.new_zeros(len(x), 1, 6, 6)], 1) + torch.ones(1, 6),
    "repeat": lambda x: x + torch.ones(1, 4, 1, 1).repeat(len(x), 1, 1, 1),
    "embedding": lambda x: F.embedding((x > 0).long(), torch.ones(2, 3)),
    "movedim": lambda x: x.movedim(1, -1).swapaxes(1, 2),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1, -1),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_table_says_where_rows_are_and_that_they_are_apart(name):
    call, order = CALLS[name], torch.randperm(5)
    apart = RowsApart([])
    with apart.batch([ROWS.clone()], [0]) as (x,):
        y = call(x)
        dim = apart.dim(y)
    assert y.shape[dim] == 5
    torch.testing.assert_close(call(ROWS[order]), y.index_select(dim, order))
    several = torch.randn(3, *ROWS.shape)
    expected = torch.stack([call(x.clone()) for x in several])
    torch.testing.assert_close(torch.func.vmap(call)(several.clone()), expected)


ATTENTION = {
    "masked": lambda x: F.scaled_dot_product_attention(x, x + 1, x.exp(), (x > 0)[:, :1]),
    "grouped": lambda x: F.scaled_dot_product_attention(
        x, x[:, :2], x[:, 2:], is_causal=True, enable_gqa=True
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_keeps_rows_apart_and_is_not_run_behind_noise(name):
    call, order = ATTENTION[name], torch.randperm(5)
    apart = RowsApart([])
    with apart.batch([ROWS.clone()], [0]) as (x,):
        y = call(x)
        assert apart.dim(y) == 0
    torch.testing.assert_close(call(ROWS[order]), y[order])

    def behind(noise):
        with RowsApart([noise]).batch([ROWS.clone()], [0]) as (x,):
            return call(x + noise)

    with pytest.raises(UnprovenError, match="behind noise"):
        torch.func.vmap(behind)(torch.randn(3))


def test_a_head_behind_attention_runs_folded(folded):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            h = x.unflatten(1, (3, 1, 4)).transpose(1, 2)
            return self.head(F.scaled_dot_product_attention(h, h, h)[:, 0, 0])

    model = lb.convert(Head(), *FAMILIES["k_tied"])
    folded(model, torch.randn(8, 12), samples=5)


REFUSED = {
    "linear along rows": lambda x: F.linear(x.t(), torch.ones(2, 5)),
    "normalized rows": lambda x: F.layer_norm(x.t(), (5,)),
    "padded rows": lambda x: F.pad(x, (0, 0, 1, 1)),
    "joined rows": lambda x: torch.cat([x, x]),
    "stacked in other places": lambda x: x[:, :5] + x[:, :5].t(),
    "a constant for rows": lambda x: torch.cat([x, torch.randn(5, 1)], 1),
    "rows into out": lambda x: torch.add(x, x, out=torch.empty(5, 6)),
    "channels that are rows": lambda x: F.batch_norm(x.t(), torch.zeros(5), torch.ones(5)),
    "images that are rows": lambda x: F.conv2d(x.view(1, 1, 5, 6), torch.ones(1, 1, 3, 3)),
    "an image that is the batch": lambda x: F.max_pool1d(x, 2),
    "unknown": torch.special.erfcx,
    "attention over rows": lambda x: F.scaled_dot_product_attention(x, x, x),
    "heads that are rows": lambda x: F.scaled_dot_product_attention(
        *(x.view(5, 2, 3).expand(1, 5, 2, 3),) * 3, enable_gqa=True
    ),
    "attention that drops": lambda x: F.scaled_dot_product_attention(
        *(x.view(5, 1, 2, 3),) * 3, dropout_p=0.5
    ),
    "numbers": lambda x: x.tolist(),
    "a vector": lambda x: x[:, 0] @ torch.ones(5),
    "truth": lambda x: bool(x[0, 0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_table_refuses(name):
    apart = RowsApart([])
    with pytest.raises(UnprovenError), apart.batch([torch.randn(5, 6)], [0]) as (x,):
        REFUSED[name](x)


def test_a_function_is_added_in_one_line(monkeypatch):
    monkeypatch.setitem(ROW_WISE, torch.special.erfcx, elementwise)
    apart = RowsApart([])
    with apart.batch([torch.randn(5, 6)], [0]) as (x,):
        assert apart.dim(torch.special.erfcx(x)) == 0


@pytest.mark.parametrize("total", [1, 2, 5, 8, 9, 32, 33, 100, 150, 300, 301])
@pytest.mark.parametrize("most", [4, 10, 150])
def test_slices_differ_and_fit(total, most):
    sizes = sampling._slices(total, most)
    assert sum(sizes) == total
    assert min(sizes) > 0
    assert max(sizes) <= most
    assert len(sizes) == 1 or len(set(sizes)) > 1


@pytest.mark.parametrize("dim", [0, 1])
def test_colored_noise_of_examples_that_share_it_is_uncorrelated(dim):
    """Signs are those of examples: the noise of one of them keeps its correlations."""
    factor = lb.posteriors.MatrixNormal(rank=2)(torch.randn(4, 3), Linear())().rows
    std = torch.ones(*(2,) * dim, 1, 5, *(2,) * (1 - dim), 4)
    e = vectorized_samples._colored(std, factor, dim, DRAWS).movedim((dim, dim + 1), (0, 1))
    flat = e.flatten(2).double()
    others = flat[:, 1:].unsqueeze(-1) * flat[:, :1].unsqueeze(-2)
    assert_mean(others.flatten(1), 0.0, "noise of two examples")
    rows = e.double()[:, :, 0]
    inner = (rows.unsqueeze(-1) * rows.unsqueeze(-2)).flatten(1)
    unit = factor.color(torch.eye(factor.width)).double()
    assert_mean(inner, (unit.T @ unit).repeat(5, 1, 1).flatten(), "noise of one example")


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("family", ["mean_field", "k_tied", "matrix_normal", "zero_mean"])
def test_padding_stays_zero_in_every_sample(family, kernels, folded):
    posterior, prior = FAMILIES[family]
    net = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Tanh())
    model = spread_out(lb.convert(net, posterior, prior, estimator=lb.estimators.local))
    x = torch.tensor([[0, 2], [6, 2], [2, 1], [2, 2], [3, 3]])
    with nullcontext() if kernels else without_native():
        samples = folded(model, x, samples=20).samples
    assert bool((samples[:, x == 2] == 0).all())
    assert bool((samples[:, x != 2] != 0).all())
