"""Half-precision parameters and autocast keep the laws and the KLs that float32 has."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from registry import POSTERIORS, PRIORS, suitable_prior
from torch import nn
from torch_layers import LAYERS, first

import leanbayes as lb
from leanbayes.distributions import KTiedNormal, LocationScale

HALVES = [torch.float16, torch.bfloat16]
half_dtypes = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])

AFFINE = ("linear", "linear_sequence", "conv2d", "conv_transpose2d", "embedding", "bilinear")
DEEP = ("lstm", "gru", "lstm_cell", "attention_batch_first", "embedding_bag")
SOME = ("mean_field", "k_tied_2", "matrix_normal", "matrix_normal_low_rank", "zero_mean")
SOME += ("matrix_normal_plus_diagonal", "dropout_layer", "rank1_normal", "rank1_cauchy")
PAIRS = [(name, "linear") for name in POSTERIORS]
PAIRS += [(name, layer) for name in SOME for layer in AFFINE if layer != "linear"]


def floats(tensors, dtype):
    return [t.to(dtype) if t.is_floating_point() else t for t in tensors]


def twins(net, posterior, dtype, prior=None, **options):
    """A model with half parameters, and the float32 model of the same numbers."""
    model = lb.convert(net.float(), posterior, prior or suitable_prior(posterior), **options)
    half = model.to(dtype)
    return half, copy.deepcopy(half).float()


def seeded(function, *inputs):
    torch.manual_seed(0)
    return first(function(*inputs))


def assert_rounds_to(y, expected, dtype, steps=4):
    """Equal up to some roundings in a half's precision, of numbers as large as the largest."""
    assert y.dtype == dtype
    assert y.isfinite().all()
    unit = torch.finfo(dtype).eps * float(expected.detach().abs().max())
    torch.testing.assert_close(y.float(), expected.float(), rtol=0, atol=steps * unit + 1e-7)


def assert_same_gradients(half, full, loss, expected, dtype, steps=4):
    loss.backward()
    expected.backward()
    for p, q in zip(half.parameters(), full.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None and q.grad.numel():
            assert_rounds_to(p.grad, q.grad, dtype, steps)


@half_dtypes
@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.tried(
    "Half precision",
    what="the KL of float16 and bfloat16 models, every posterior against every prior",
    holds="that of float32 with the same parameters; within 1% (2%) of the unrounded model's",
)
def test_the_kl_of_halves_is_that_of_float32(name, dtype):
    posterior = POSTERIORS[name]
    for prior in PRIORS.values():
        torch.manual_seed(1)
        net = nn.Linear(20, 15)
        try:
            before = lb.convert(net, posterior, prior)
        except ValueError:  # a pair without a finite KL
            continue
        after = copy.deepcopy(before).to(dtype)
        same = copy.deepcopy(after).float()
        kls = [seeded(lambda model=model: lb.kl(model)) for model in (before, after, same)]
        assert kls[1].dtype == torch.float32
        torch.testing.assert_close(kls[1], kls[2], rtol=1e-5, atol=1e-5)
        rounding = 0.01 if dtype == torch.float16 else 0.02  # of the stored parameters
        torch.testing.assert_close(kls[1], kls[0], rtol=rounding, atol=1e-2)
        constant = isinstance(prior, lb.priors.Flat) or (
            name == "point" and isinstance(prior, lb.priors.Centered)
        )
        assert constant != kls[1].requires_grad
        if not constant:
            assert_same_gradients(after, same, kls[1], kls[2], dtype)


@half_dtypes
def test_a_large_kl_has_all_its_digits(dtype):
    model = lb.convert(
        nn.Linear(512, 256), lb.MeanField(lb.posteriors.Scale(0.01)), lb.priors.Normal(1.0)
    )
    expected = lb.kl(model).item()
    assert expected > torch.finfo(torch.float16).max
    assert lb.kl(model.to(dtype)).item() == pytest.approx(expected, rel=1e-2)


@half_dtypes
@pytest.mark.parametrize(("name", "layer"), PAIRS)
@pytest.mark.tried(
    "Half precision",
    what="`local` with float16 and bfloat16 parameters, every posterior, dense to bilinear",
    holds="the draw of float32 from the same seed, rounded; gradients too",
)
def test_local_noise_of_halves_is_that_of_float32(name, layer, dtype):
    half, full = twins(
        LAYERS[layer].module(), POSTERIORS[name], dtype, estimator=lb.estimators.local
    )
    x = floats([lb.tile(t, lb.extend.members(half)) for t in LAYERS[layer].input()], dtype)
    y, expected = seeded(half, *x), seeded(full, *floats(x, torch.float32))
    assert_rounds_to(y, expected, dtype)
    losses = y.float().square().mean(), expected.square().mean()
    assert_same_gradients(half, full, *losses, dtype, steps=16)


@half_dtypes
@pytest.mark.parametrize(("name", "layer"), PAIRS)
@pytest.mark.tried(
    "Half precision",
    what="`local` under autocast, every posterior, dense to bilinear",
    holds="the draw without autocast, rounded to the dtype of torch's own product",
)
def test_local_under_autocast_is_local_without(name, layer, dtype):
    posterior = POSTERIORS[name]
    model = lb.convert(
        LAYERS[layer].module().float(), posterior, suitable_prior(posterior), lb.estimators.local
    )
    x = floats([lb.tile(t, lb.extend.members(model)) for t in LAYERS[layer].input()], torch.float32)
    expected = seeded(model, *x)
    with torch.autocast("cpu", dtype):
        y, kl = seeded(model, *x), seeded(lambda: lb.kl(model))
    assert_rounds_to(y, expected, torch.float32 if layer == "embedding" else dtype, steps=8)
    assert torch.equal(kl, seeded(lambda: lb.kl(model)))


SCALED = {
    "mean_field": lambda std: lb.MeanField(lb.posteriors.Scale(std)),
    "signed": lambda std: lb.MeanField(lb.posteriors.Scale(std, stored="signed")),
    "k_tied": lambda std: lb.KTied(2, lb.posteriors.Scale(std)),
    "matrix_normal": lambda std: lb.posteriors.MatrixNormal(std),
    "low_rank": lambda std: lb.posteriors.MatrixNormal(std, rank=1),
    "zero_mean": lambda std: lb.posteriors.ZeroMean("uniform", lb.posteriors.Scale(std)),
}


@half_dtypes
@pytest.mark.parametrize("autocast", [False, True], ids=["parameters", "autocast"])
@pytest.mark.parametrize("std", [1e-4, 1.0, 1e2])
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.tried(
    "Half precision",
    what="standard deviations from 1e-4 to 1e2 under `local`, parameters or autocast in halves",
    holds="the spread of outputs is within 5% of the law",
)
def test_noise_has_its_size_from_small_to_large(name, std, autocast, dtype):
    net = nn.Linear(3, 4, bias=False)
    nn.init.zeros_(net.weight)
    model = lb.convert(net, SCALED[name](std), lb.priors.Normal(1.0), lb.estimators.local)
    x = torch.tensor([0.5, -1.0, 2.0]).expand(8000, 3)
    if not autocast:
        model, x = model.to(dtype), x.to(dtype)
    law = (x[0].float().square() @ model.posterior().variance.t()).sqrt()
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=autocast):
        y = model(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float().std(0), law.detach(), rtol=0.05, atol=0)


@pytest.mark.parametrize("size", [300.0, 4000.0, 6e4])
@pytest.mark.parametrize("layer", ["linear", "conv2d"])
@pytest.mark.parametrize("name", SOME)
@pytest.mark.tried(
    "Half precision",
    what="float16 inputs of 300 to 60,000 under `local`",
    holds="no infinity where the result is a float16",
)
def test_squares_of_large_inputs_do_not_overflow(name, layer, size):
    net = LAYERS[layer].module()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1e-3)
    half, full = twins(net, POSTERIORS[name], torch.float16, estimator=lb.estimators.local)
    (x,) = LAYERS[layer].input()
    x = lb.tile(size * x.sign(), lb.extend.members(half)).half()
    y, expected = seeded(half, x), seeded(full, x.float())
    representable = expected.abs() < 0.99 * torch.finfo(torch.float16).max
    assert representable.any()
    assert y[representable].isfinite().all()


def test_a_bilinear_layer_of_halves_multiplies_large_inputs():
    net = nn.Bilinear(3, 2, 4)
    with torch.no_grad():
        net.weight.mul_(0.01)
    x = torch.full((5, 3), 400.0), torch.full((5, 2), 400.0)
    for estimator in (lb.estimators.mean, lb.estimators.weights, lb.estimators.local):
        half, full = twins(net, lb.MeanField(1e-4), torch.float16, estimator=estimator)
        y = seeded(half, *floats(x, torch.float16))
        assert_rounds_to(y, seeded(full, *x), torch.float16)


@half_dtypes
@pytest.mark.parametrize("estimator", [lb.estimators.mean, lb.estimators.weights])
@pytest.mark.parametrize("layer", [*AFFINE, "embedding_padded", *DEEP])
@pytest.mark.parametrize("name", ["mean_field_published", "rank1_single"])
def test_every_layer_takes_and_gives_halves(name, layer, estimator, dtype):
    half, full = twins(LAYERS[layer].module(), POSTERIORS[name], dtype, estimator=estimator)
    x = floats(LAYERS[layer].input(), dtype)
    assert_rounds_to(seeded(half, *x), seeded(full, *floats(x, torch.float32)), dtype, steps=16)


@half_dtypes
@pytest.mark.parametrize("layer", ["linear", "conv2d", "embedding"])
def test_flipout_takes_and_gives_halves(layer, dtype):
    half, full = twins(
        LAYERS[layer].module(), lb.MeanField(0.1), dtype, estimator=lb.estimators.flipout
    )
    x = floats(LAYERS[layer].input(), dtype)
    assert_rounds_to(seeded(half, *x), seeded(full, *floats(x, torch.float32)), dtype)


@pytest.mark.parametrize("name", ["mean_field", "k_tied_2", "matrix_normal", "rank1_single"])
def test_a_held_draw_of_halves_is_one_function(name):
    half, full = twins(nn.ConvTranspose1d(2, 3, 2, stride=2), POSTERIORS[name], torch.bfloat16)
    x = torch.randn(4, 2, 5).bfloat16()
    torch.manual_seed(3)
    with lb.held(half):
        y = half(x, output_size=[11])
        assert torch.equal(y, half(x, output_size=[11]))
    torch.manual_seed(3)
    with lb.held(full):
        assert_rounds_to(y, full(x.float(), output_size=[11]), torch.bfloat16, steps=16)


@pytest.mark.parametrize("name", ["mean_field", "k_tied_2", "rank1_normal"])
@pytest.mark.parametrize("autocast", [False, True], ids=["parameters", "autocast"])
@pytest.mark.tried(
    "Half precision",
    what="twenty steps of training with bfloat16 parameters, and under autocast",
    holds="every loss is finite, and the last is within 5% of float32's",
)
def test_training_ends_near_float32(name, autocast):
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = (x[:, 0] > x[:, 1]).long()
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    posterior = POSTERIORS[name]
    start = lb.convert(net, posterior, suitable_prior(posterior))
    count = lb.extend.members(start)

    def train(model, x, **options):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16, **options):
                nll = F.cross_entropy(model(lb.tile(x, count)).float(), lb.tile(y, count))
                loss = lb.elbo(nll, lb.kl(model), data_size=1000).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert all(map(math.isfinite, losses))
        return losses[-1]

    expected = train(copy.deepcopy(start), x, enabled=False)
    if autocast:
        ends = train(start, x, enabled=True)
    else:
        ends = train(start.bfloat16(), x.bfloat16(), enabled=False)
    assert ends == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.tried(
    "Half precision",
    what="padded positions of an embedding under `local`",
    holds="exactly zero",
)
def test_padded_positions_are_exactly_zero(name):
    posterior = POSTERIORS[name]
    net = nn.Embedding(6, 4, padding_idx=2)
    model = lb.convert(net, posterior, suitable_prior(posterior), lb.estimators.local)
    indices = lb.tile(torch.tensor([[1, 2, 3], [2, 2, 5]]), lb.extend.members(model))
    for dtype in (torch.float32, *HALVES):
        y = model.to(dtype)(indices)
        assert not y[indices == 2].any()
        assert y[indices != 2].all()


def test_fixed_numbers_keep_their_digits():
    """A float16 holds no 1e-16; and a model that comes back to float32 has its prior again."""
    model = lb.convert(nn.Linear(4, 3), lb.MeanField(0.1), lb.priors.StudentT(1e-16, scale=0.1))
    prior = model.half().prior()
    assert prior.df == torch.tensor(1e-16)
    assert lb.kl(model).isfinite()
    assert model.float().prior().scale == torch.tensor(0.1)


@pytest.mark.parametrize("name", ["mean_field_published", "dropout_additive", "rank1_single"])
def test_a_network_of_halves_converts_and_comes_back(name, tmp_path):
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).half()
    with torch.no_grad():
        net[0].weight[0, 0] = 0.0
    posterior = POSTERIORS[name]
    model = lb.convert(net, posterior, suitable_prior(posterior))
    assert all(p.dtype == torch.float16 and p.isfinite().all() for p in model.parameters())
    back = lb.deterministic(model)
    assert {p.dtype for p in back.parameters()} == {torch.float16}
    lb.save(model, tmp_path / "m")
    again = lb.load(net, tmp_path / "m")
    assert torch.equal(lb.kl(again), lb.kl(model))
    assert torch.equal(again[0].mean_weight, back[0].weight)


def test_scales_start_where_they_are_asked_to():
    for stored in ("log", "log_variance", "softplus"):
        scale = lb.posteriors.Scale(1e-6, spread=1e-7, stored=stored)
        posterior = lb.MeanField(scale)(torch.zeros(50, 40).half(), lb.ops.Linear())
        std = posterior().variance.sqrt().mean().item()
        assert std == pytest.approx(1e-6, rel=0.05)


@pytest.mark.tried(
    "Half precision",
    what="a distribution made by hand of float16 tensors",
    holds="refused: the sentence says to give float32",
)
def test_distributions_of_halves_are_refused():
    half = torch.ones(2, 3).half()
    with pytest.raises(ValueError, match=r"loc of torch.float16, .* give loc\.float\(\)"):
        LocationScale(half, half)
    with pytest.raises(ValueError, match="bfloat16"):
        KTiedNormal(torch.ones(2, 3), torch.ones(1, 2).bfloat16(), torch.ones(1, 3))


@pytest.mark.usefixtures("torch_noise")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("mode", ["parameters", "autocast"])
@pytest.mark.parametrize("name", ["k_tied_2", "rank1_single"])
def test_halves_compile_to_one_graph_and_are_exported(name, mode, request):
    request.addfinalizer(torch._dynamo.reset)
    validated = torch.distributions.Distribution._validate_args
    set_default = torch.distributions.Distribution.set_default_validate_args
    request.addfinalizer(lambda: set_default(validated))
    half, full = twins(nn.Linear(3, 4), POSTERIORS[name], torch.bfloat16)
    model, x = (half, torch.randn(6, 3).bfloat16())
    if mode == "autocast":
        model, x = full, torch.randn(6, 3)
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):

        def loss(x):
            return model(x).float().square().mean() + lb.kl(model)

        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(seeded(compiled, x), seeded(loss, x), rtol=1e-2, atol=1e-3)
        for estimator in (lb.estimators.mean, lb.estimators.local):
            with lb.using(model, estimator):
                exported = torch.export.export(model, (x,)).module()
                assert_rounds_to(seeded(exported, x), seeded(model, x), torch.bfloat16)
