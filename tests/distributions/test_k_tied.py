"""The k-tied Normal [k-tied]."""

import math
from collections import OrderedDict
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dense import absolute
from scipy import special
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.func import functional_call

import leanbayes as lb
from leanbayes.distributions import DiagonalLowRank, KroneckerNormal, KTiedNormal
from leanbayes.ops import Conv, Linear
from leanbayes.testing import assert_mean

UNEVEN = lb.posteriors.Scale(0.3, raw_spread=0.5)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def tied(rank, rows=9, columns=8):
    return lb.KTied(rank, UNEVEN)(randn(rows, columns), Linear())


def dense_scale(posterior):
    """σ_ij = Σ_κ exp(lu_κi + lv_κj), straight from the stored logs."""
    u, v = (absolute(posterior)[name] for name in ("u", "v"))
    return (u.unsqueeze(-1) + v.unsqueeze(-2)).exp().sum(0)


def assert_same_gradients(value, expected, parameters):
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    parameters = list(parameters)
    ours = torch.autograd.grad(value, parameters, retain_graph=True)
    theirs = torch.autograd.grad(expected, parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


# the standard deviations are a positive low-rank product of exponentiated logs


@pytest.mark.checklist("KT1")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_scale_is_a_positive_low_rank_product(rank):
    posterior = tied(rank)
    q = posterior()
    assert (q.scale > 0).all()
    assert torch.linalg.matrix_rank(q.scale) == rank
    assert torch.linalg.matrix_rank(q.variance) == rank * (rank + 1) // 2
    torch.testing.assert_close(q.scale, dense_scale(posterior), rtol=1e-12, atol=0)


@pytest.mark.checklist("KT1")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_no_stored_value_makes_a_scale_that_is_not_positive(rank):
    posterior = tied(rank)
    with torch.no_grad():
        for factor in (posterior.u, posterior.v):
            factor.normal_(std=50.0)
    scale = posterior().scale
    assert (scale > 0).all()
    assert scale.isfinite().all()


@pytest.mark.checklist("KT1")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradient_of_a_log_factor_sums_over_its_row(rank):
    posterior = tied(rank)
    upstream = randn(9, 8)
    u, v = (absolute(posterior)[name].detach().exp() for name in ("u", "v"))
    (posterior().scale * upstream).sum().backward()
    torch.testing.assert_close(posterior.u.grad, u * (v @ upstream.T), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(posterior.v.grad, v * (u @ upstream), rtol=1e-12, atol=1e-12)


@pytest.mark.checklist("KT1")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_local_variance_is_that_of_the_dense_scale(rank):
    posterior, x, upstream = tied(rank), randn(6, 8), randn(6, 9)
    variance = posterior().moments(x, Linear()).variance
    dense = x.square() @ dense_scale(posterior).square().T
    torch.testing.assert_close(variance, dense, rtol=1e-12, atol=0)
    factors = (posterior.u, posterior.v)
    assert_same_gradients((variance * upstream).sum(), (dense * upstream).sum(), factors)


# the scale starts at 0.01 whatever the rank


@pytest.mark.checklist("KT2")
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_scale_starts_at_one_hundredth_for_any_rank(rank):
    starts = [lb.KTied(rank)(torch.zeros(100, 100).double(), Linear()) for _ in range(200)]
    mean_of_log_normal = 0.01 * math.exp((0.1**2 + 0.1**2) / 2)
    means = torch.stack([posterior().scale.detach().mean() for posterior in starts])
    assert_mean(means, mean_of_log_normal, "first scale")
    for name in ("u", "v"):
        logs = torch.cat([absolute(each)[name].detach().flatten() for each in starts])
        center = 0.5 * (math.log(0.01) - math.log(rank))
        assert_mean(logs, center, f"first log {name}")
        assert_mean((logs - center).square(), 0.1**2, f"jitter of log {name}")


@pytest.mark.checklist("KT2")
def test_mean_field_scale_starts_normal_around_one_hundredth():
    scale = lb.MeanField()(torch.zeros(200, 200).double(), Linear())().scale.detach().flatten()
    assert_mean(scale, 0.01, "first scale")
    assert_mean((scale - 0.01).square(), 0.001**2, "spread of the first scale")


# KL from N(0, σ_p²) and from the He prior N(0, 2 / fan_in)

LAYERS = {"dense": (lambda: nn.Linear(6, 5), 6), "conv": (lambda: nn.Conv2d(3, 5, (2, 3)), 18)}


@pytest.mark.checklist("KT3")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "prior", [lb.priors.Normal(0.2), lb.priors.Normal(0.3), lb.priors.He()], ids=repr
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_kl_is_that_of_independent_normals(rank, prior, layer):
    make, fan_in = LAYERS[layer]
    std = math.sqrt(2 / fan_in) if isinstance(prior, lb.priors.He) else prior.scale
    model = lb.convert(make().double(), lb.KTied(rank, UNEVEN), prior)
    posterior = model.posterior
    loc, scale = posterior.loc.flatten(1), dense_scale(posterior)
    expected = kl_divergence(Normal(loc, scale), Normal(torch.zeros_like(loc), std)).sum()
    assert_same_gradients(lb.kl(model), expected, posterior.parameters())
    dense = kl_divergence(
        MultivariateNormal(loc.flatten(), torch.diag(scale.square().flatten())),
        MultivariateNormal(loc.new_zeros(loc.numel()), std**2 * torch.eye(loc.numel()).double()),
    )
    torch.testing.assert_close(lb.kl(model), dense, rtol=1e-10, atol=1e-10)


@pytest.mark.checklist("KT3")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_kl_vanishes_with_its_gradient_where_posterior_and_prior_agree(rank):
    net = nn.Linear(4, 3).double()
    nn.init.zeros_(net.weight)
    model = lb.convert(net, lb.KTied(rank, scale=0.3), lb.priors.Normal(0.3))
    value = lb.kl(model)
    assert abs(value.item()) < 1e-10
    for gradient in torch.autograd.grad(value, list(model.posterior.parameters())):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


# the published parameter counts


def mlp():
    return nn.Sequential(
        nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)
    )


def lenet():
    parts = {
        "conv1": nn.Conv2d(3, 32, 5, padding="same"),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(32, 64, 5, padding="same"),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "dense1": nn.Linear(4096, 512),
        "relu": nn.ReLU(),
        "dense2": nn.Linear(512, 100),
    }
    return nn.Sequential(OrderedDict(parts))


def imdb_lstm():
    """Keras has one bias where torch has two; the published count leaves the dense layer out."""
    parts = {"embedding": nn.Embedding(20_000, 128), "lstm": nn.LSTM(128, 128)}
    net = nn.ModuleDict({**parts, "dense": nn.Linear(128, 1)})
    net["lstm"].bias_hh_l0.requires_grad_(False)
    net["dense"].requires_grad_(False)
    return net


NETWORKS = {
    "mlp": (mlp, {"bias": lb.MeanField()}),
    "lenet": (
        lenet,
        {"bias": lb.MeanField(), "overrides": {"conv*": {"posterior": lb.MeanField()}}},
    ),
    "lstm": (imdb_lstm, {"include": ("lstm",)}),
}
COUNTS = {
    "mlp": (956_820, 481_614, 484_008, 486_402),
    "lenet": (4_405_320, 2_262_188, 2_267_408, 2_272_628),
    "lstm": (2_822_656, 2_692_864, 2_694_144, 2_695_424),
}


@pytest.mark.checklist("KT4")
@pytest.mark.parametrize("rank", [None, 1, 2, 3])
@pytest.mark.parametrize("network", NETWORKS)
def test_parameters_are_as_many_as_published(network, rank):
    make, options = NETWORKS[network]
    posterior = lb.MeanField() if rank is None else lb.KTied(rank)
    model = lb.convert(make(), posterior, lb.priors.Normal(0.3), **options)
    assert lb.count_parameters(model).total == COUNTS[network][rank or 0]


@pytest.mark.checklist("KT4")
def test_lenet_takes_an_image_to_a_hundred_classes():
    make, options = NETWORKS["lenet"]
    model = lb.convert(make(), lb.KTied(2), lb.priors.Normal(0.3), **options)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 100)


@pytest.mark.checklist("KT4")
@pytest.mark.parametrize(
    ("posterior", "scales"),
    [
        (lb.MeanField(), lambda m, n: m * n),
        (lb.posteriors.MatrixNormal(), lambda m, n: m * (m + 1) // 2 + n * (n + 1) // 2),
        (lb.posteriors.MatrixNormal(rank=0), lambda m, n: m + n),
        *((lb.KTied(k), lambda m, n, k=k: k * (m + n)) for k in (1, 2, 3)),
    ],
    ids=["mean_field", "matrix_normal", "diagonal_factors", "1_tied", "2_tied", "3_tied"],
)
def test_scales_of_every_family_are_as_many_as_published(posterior, scales):
    m, n = 30, 20
    model = lb.convert(nn.Linear(m, n), posterior, lb.priors.Normal(0.3))
    assert lb.count_parameters(model) == (m * n, scales(m, n), n)


# one tied factor is a matrix normal with diagonal factors; more are no matrix normal


def random_tied(rank, rows=5, columns=4):
    return KTiedNormal(randn(rows, columns), randn(rank, rows).exp(), randn(rank, columns).exp())


def kronecker_values(q):
    """Singular values of the rearranged covariance; one of them for a Kronecker product."""
    rows, columns = q.event_shape
    blocks = q.covariance().reshape(rows, columns, rows, columns).transpose(1, 2)
    return torch.linalg.svdvals(blocks.reshape(rows**2, columns**2))


@pytest.mark.checklist("KT5")
def test_rank_one_is_the_diagonal_matrix_normal():
    q = random_tied(1)
    twin = KroneckerNormal(q.loc, DiagonalLowRank(q.u[0]), DiagonalLowRank(q.v[0]))
    kronecker = torch.kron(torch.diag(q.u[0].square()), torch.diag(q.v[0].square()))
    torch.testing.assert_close(q.covariance(), kronecker)
    torch.testing.assert_close(twin.covariance(), kronecker)
    dense = MultivariateNormal(q.loc.flatten(), kronecker)
    w, prior = randn(3, 5, 4), Normal(torch.zeros(()).double(), torch.full((), 0.3).double())
    for one in (q, twin):
        torch.testing.assert_close(one.log_prob(w), dense.log_prob(w.flatten(1)))
        torch.testing.assert_close(one.entropy(), dense.entropy())
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(twin, prior))


@pytest.mark.checklist("KT5")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_kronecker_rank_is_that_of_the_variance(rank):
    values = kronecker_values(random_tied(rank, rows=9, columns=8))
    terms = rank * (rank + 1) // 2
    assert int((values > 1e-12 * values[0]).sum()) == terms


@pytest.mark.checklist("KT5")
@pytest.mark.parametrize("rank", [2, 3])
def test_no_matrix_normal_equals_a_higher_rank(rank):
    q = random_tied(rank)
    values = kronecker_values(q)
    distance_to_nearest_kronecker_product = values[1:].square().sum().sqrt()
    assert distance_to_nearest_kronecker_product > 1e-4 * values[0]


# a convolution's kernel as a matrix with one row a filter, and back


@pytest.mark.checklist("KT8")
@pytest.mark.parametrize("kernel", [(3, 3), (5, 2), (1, 1)], ids=str)
def test_kernel_and_matrix_are_the_same_numbers(kernel):
    height, width, cin, cout = *kernel, 3, 4
    hwio = randn(height, width, cin, cout)
    oihw, op = hwio.permute(3, 2, 0, 1), Conv(kernel)
    ours, papers = op.matrix(oihw), hwio.reshape(-1, cout)
    assert ours.shape == (cout, cin * height * width)
    assert torch.equal(op.unmatrix(ours), oihw)
    assert torch.equal(op.unmatrix(ours).permute(2, 3, 1, 0), hwio)
    for o, c, h, w in np.ndindex(cout, cin, height, width):
        assert ours[o, (c * height + h) * width + w] == papers[(h * width + w) * cin + c, o]
    torch.testing.assert_close(torch.linalg.svdvals(ours), torch.linalg.svdvals(papers))


def truncated(matrix, rank):
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


@pytest.mark.checklist("KT8")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_truncation_is_the_same_in_both_layouts_and_not_without_the_permutation(rank):
    hwio = randn(3, 2, 5, 6).exp()
    oihw, op = hwio.permute(3, 2, 0, 1).contiguous(), Conv((3, 2))
    ours = op.unmatrix(truncated(op.matrix(oihw), rank)).permute(2, 3, 1, 0)
    papers = truncated(hwio.reshape(-1, 6), rank).reshape(hwio.shape)
    torch.testing.assert_close(ours, papers)
    unpermuted = truncated(oihw.reshape(-1, 6), rank).reshape(oihw.shape).permute(2, 3, 1, 0)
    assert not torch.allclose(unpermuted, papers, rtol=1e-3)


@pytest.mark.checklist("KT8")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_tied_convolution_has_the_moments_of_its_dense_kernel(rank):
    op = Conv((3, 2), stride=(2, 1), padding=(1, 0))
    posterior, x = lb.KTied(rank, UNEVEN)(randn(4, 3, 3, 2), op), randn(2, 3, 6, 5)
    logs = absolute(posterior)
    u, v = logs["u"], logs["v"].unflatten(-1, (3, 3, 2))
    kernel = torch.einsum("ko,kchw->ochw", u.exp(), v.exp())
    moments = posterior().moments(x, op)
    options = {"stride": (2, 1), "padding": (1, 0)}
    torch.testing.assert_close(moments.mean, F.conv2d(x, posterior.loc, **options))
    dense, upstream = F.conv2d(x.square(), kernel.square(), **options), randn(2, 4, 3, 4)
    torch.testing.assert_close(moments.variance, dense)
    factors = (posterior.u, posterior.v)
    assert_same_gradients((moments.variance * upstream).sum(), (dense * upstream).sum(), factors)


# the KL's weight rises every hundred batches


@pytest.mark.checklist("KT11")
@pytest.mark.parametrize(("rate", "full"), [(5e-5, 20_000), (5e-6, 200_000)])
def test_annealing_rises_every_hundred_batches(rate, full):
    schedule, weight = lb.training.schedules.Stepwise(rate=rate, every=100), Fraction(0)
    for step in range(0, full + 200, 100):
        for offset in (0, 1, 99):
            assert schedule(step + offset) == pytest.approx(float(weight), abs=1e-12)
        weight = min(weight + 100 * Fraction(str(rate)), Fraction(1))
    assert schedule(full - 1) < 1 == schedule(full)


@pytest.mark.checklist("KT11")
def test_three_hundred_epochs_of_the_mlp_end_before_the_full_weight():
    batches = 300 * math.ceil(50_000 / 1024)
    assert lb.training.schedules.Stepwise()(batches) == pytest.approx(0.735)


@pytest.mark.checklist("KT11")
def test_annealing_may_start_from_a_fraction_and_weighs_only_the_kl():
    schedule = lb.training.schedules.Stepwise(rate=5e-5, every=100, start=0.1)
    assert [schedule(t) for t in (0, 99, 18_000, 10**6)] == pytest.approx([0.1, 0.1, 1.0, 1.0])
    parts = lb.elbo(torch.tensor(2.0), torch.tensor(500.0), data_size=100, weight=schedule(0))
    assert parts.loss.item() == pytest.approx(2.5)
    assert parts.kl.item() == pytest.approx(5.0)


# the LSTM ties its kernel and its recurrent kernel and keeps them over time


def recording(drawn):
    def estimator(q, op, usage):
        drawn.append(lb.estimators.auto(q, op, usage))
        return drawn[-1]

    return estimator


@pytest.mark.checklist("KT12")
def test_one_draw_of_both_kernels_serves_all_steps_and_examples():
    net, drawn, x = nn.LSTM(3, 4, batch_first=True).double(), [], randn(5, 7, 3)
    model = lb.convert(net, lb.KTied(2, UNEVEN), lb.priors.Normal(0.3), recording(drawn))
    y, (h, c) = model(x)
    kernels = dict(zip(("weight_ih_l0", "weight_hh_l0"), (m.weight for m in drawn), strict=True))
    assert not torch.allclose(kernels["weight_ih_l0"], net.weight_ih_l0)
    biases = {name: getattr(net, name) for name in ("bias_ih_l0", "bias_hh_l0")}
    expected, (expected_h, expected_c) = functional_call(net, {**kernels, **biases}, (x,))
    for ours, theirs in ((y, expected), (h, expected_h), (c, expected_c)):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(model(x)[0], y)


@pytest.mark.checklist("KT12")
def test_both_kernels_are_tied_and_biases_are_points():
    model = lb.convert(nn.LSTM(3, 4), lb.KTied(2), lb.priors.Normal(0.3))
    maps = dict(lb.extend.random_maps(model))
    assert set(maps) == {"maps.weight_ih_l0", "maps.weight_hh_l0"}
    assert all(isinstance(m.posterior(), KTiedNormal) for m in maps.values())
    assert lb.count_parameters(model) == (16 * 3 + 16 * 4, 2 * (16 + 3) + 2 * (16 + 4), 2 * 16)


@pytest.mark.checklist("KT12")
def test_tied_lstm_learns_to_remember_the_first_step():
    x = torch.randn(512, 6, 1).sign()
    labels = (x[:, 0, 0] > 0).long()
    lstm = lb.convert(nn.LSTM(1, 16, batch_first=True), lb.KTied(2), lb.priors.Normal(0.3))
    head = nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=0.02)
    for step in range(100):
        logits = head(lstm(x)[0][:, -1])
        weight = lb.training.schedules.LinearRamp(1000)(step)
        loss = lb.elbo(F.cross_entropy(logits, labels), lb.kl(lstm), data_size=512, weight=weight)
        optimizer.zero_grad()
        loss.loss.backward()
        optimizer.step()
    assert (head(lstm(x)[0][:, -1]).argmax(-1) == labels).double().mean() > 0.9


# predictions average the probabilities of a hundred weight samples


def tied_classifier(classes=3):
    net = nn.Linear(4, classes, bias=False).double()
    return lb.convert(
        net, lb.KTied(2, lb.posteriors.Scale(1.0, raw_spread=0.3)), lb.priors.Normal(1.0)
    )


@pytest.mark.checklist("KT17")
@pytest.mark.parametrize("coherent", [False, True])
def test_ensemble_averages_probabilities_not_logits(coherent):
    model, x, y = tied_classifier(), randn(10, 4), torch.arange(10) % 3
    prediction = lb.predict(model, x, samples=100, coherent=coherent)
    assert prediction.samples.shape == (100, 10, 3)
    logits = prediction.samples.numpy()
    probabilities = special.softmax(logits, -1).mean(0)
    np.testing.assert_allclose(prediction.probs, probabilities, rtol=1e-12)
    np.testing.assert_array_equal(prediction.labels, probabilities.argmax(-1))
    ours = prediction.log_likelihood(y)
    np.testing.assert_allclose(ours, np.log(probabilities[np.arange(10), y]), rtol=1e-12)
    assert not np.allclose(probabilities, special.softmax(logits.mean(0), -1), rtol=0.01)


@pytest.mark.checklist("KT17")
def test_every_coherent_sample_is_one_weight_for_the_whole_data_set():
    model, x = tied_classifier(), randn(20, 4)
    samples = lb.predict(model, x, samples=100, coherent=True, batch_size=7).samples
    weights = torch.linalg.lstsq(x.expand(100, 20, 4), samples).solution
    torch.testing.assert_close(x @ weights, samples)
    assert torch.pdist(weights.flatten(1)).min() > 1e-6


@pytest.mark.checklist("KT17")
def test_ensemble_converges_to_the_expected_probability():
    model, x = tied_classifier(classes=2), randn(5, 4)
    prediction = lb.predict(model, x, samples=2000)
    q = model.posterior()
    mean = (x @ (q.loc[1] - q.loc[0])).detach().numpy()
    std = (x.square() @ dense_scale(model.posterior).square().sum(0)).sqrt().detach().numpy()
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    expected = special.expit(mean[:, None] + std[:, None] * nodes) @ weights / weights.sum()
    probabilities = prediction.sample_log_probs.exp()[..., 1]
    assert_mean(probabilities, torch.from_numpy(expected), "expected probability")
