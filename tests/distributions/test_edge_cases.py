"""Awkward inputs and extreme scales through converted layers: no NaN in a value or a gradient."""

import math

import pytest
import torch
from registry import ESTIMATORS, POSTERIORS, suitable_prior
from torch import nn

import leanbayes as lb

LAYERS = {
    "linear": (lambda: nn.Linear(3, 4), (3,)),
    "sequence": (lambda: nn.Linear(3, 4), (5, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, padding=1), (2, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, padding=1), (2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(1, 4, 2), (1, 3, 3, 3)),
    "dilated": (lambda: nn.Conv2d(2, 4, 3, dilation=2, padding="same"), (2, 6, 6)),
    "reflected": (lambda: nn.Conv2d(2, 4, (3, 2), 2, (1, 0), padding_mode="reflect"), (2, 5, 5)),
    "grouped": (lambda: nn.Conv2d(4, 4, 3, groups=2), (4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, dilation=2), (4, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 4, 3, 2, dilation=2), (2, 3, 3)),
    "transposed_grouped": (lambda: nn.ConvTranspose1d(4, 4, 3, groups=2), (4, 5)),
    "embedding": (lambda: nn.Embedding(5, 4, padding_idx=0), (3,)),
    "lstm": (lambda: nn.LSTM(3, 4, batch_first=True), (5, 3)),
    "gru": (lambda: nn.GRU(3, 4, batch_first=True, bidirectional=True), (5, 3)),
}
GROUPED = ("grouped", "depthwise", "transposed_grouped")
FEW = ("linear", "conv2d", "grouped")
SOME = ("linear", "conv2d", "transposed", "embedding", "lstm", "gru")
LOW_RANK = ("low_rank", "low_rank_full")
CORRELATED = ("matrix_normal", "matrix_normal_low_rank", "matrix_normal_plus_diagonal", *LOW_RANK)
RANK1 = tuple(name for name in POSTERIORS if name.startswith("rank1"))
KEEPS_THE_WEIGHT = tuple(
    name
    for name in POSTERIORS
    if name not in (*RANK1, "low_rank") and not name.startswith("zero_mean")
)


def is_possible(posterior, layer, estimator):
    """Whether such noise exists; otherwise a sentence says so, which is tested elsewhere."""
    if estimator == "flipout":
        return posterior not in CORRELATED + RANK1
    return estimator != "local" or posterior not in CORRELATED or layer not in GROUPED


def converted(layer, recipe, prior=None):
    return lb.convert(LAYERS[layer][0](), recipe, prior or suitable_prior(recipe))


def every_estimator(model, posterior, layer):
    """Switch the model from one estimator to the next."""
    for name, estimator in ESTIMATORS.items():
        if is_possible(posterior, layer, name):
            with lb.using(model, estimator):
                yield


def inputs(layer, batch):
    shape = (batch, *LAYERS[layer][1])
    return torch.randint(5, shape) if layer == "embedding" else torch.randn(shape)


def tensor(output):
    return output[0] if isinstance(output, tuple) else output


def assert_finite(model, x):
    """The output, the loss and every gradient are finite; gives the output."""
    if x.is_floating_point():
        x = x.detach().requires_grad_()
    y = tensor(model(x))
    assert y.isfinite().all(), f"outputs are not finite: {model}"
    loss = y.float().square().sum() + lb.kl(model)
    assert loss.isfinite(), f"the loss is {loss}: {model}"
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    gradients["x"] = torch.zeros(()) if x.grad is None else x.grad
    assert len(gradients) > 1
    bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    assert not bad, f"gradients of {bad} are not finite: {model}"
    return y


@pytest.mark.parametrize("layer", FEW)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_zero_input(posterior, layer):
    model = converted(layer, POSTERIORS[posterior])
    for _ in every_estimator(model, posterior, layer):
        assert_finite(model, torch.zeros_like(inputs(layer, 2 * lb.extend.members(model))))


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_dead_units(posterior):
    """A layer whose inputs are all exactly zero, behind a ReLU that lets nothing pass."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(net[0].bias, -1e4)
    recipe = POSTERIORS[posterior]
    model = lb.convert(net, recipe, suitable_prior(recipe))
    x = torch.randn(2 * lb.extend.members(model), 3)
    for _ in every_estimator(model, posterior, "linear"):
        assert not model[:2](x).any()
        assert_finite(model, x)


def extreme(scale):
    """Every family at one standard deviation."""
    stored = ("log", "log_variance", "softplus", "signed")
    rate = scale**2 / (1 + scale**2)
    return {
        **{f"mean_field_{s}": lb.MeanField(lb.posteriors.Scale(scale, stored=s)) for s in stored},
        **{f"k_tied_{k}": lb.KTied(k, scale) for k in (1, 2)},
        "matrix_normal": lb.posteriors.MatrixNormal(scale),
        "matrix_normal_low_rank": lb.posteriors.MatrixNormal(scale, rank=2),
        "matrix_normal_diagonal_factors": lb.posteriors.MatrixNormal(scale, rank=0),
        "matrix_normal_plus_diagonal": lb.posteriors.MatrixNormal(scale, diagonal=True),
        **{
            f"zero_mean_{n}": lb.posteriors.ZeroMean(n, scale)
            for n in ("normal", "uniform", "bernoulli")
        },
        **{
            f"dropout_{a}": lb.posteriors.VariationalDropout(
                a, log_alpha=2 * math.log(scale), limit=40.0
            )
            for a in ("layer", "neuron", "weight", "additive")
        },
        "low_rank": lb.posteriors.LowRank(2, scale),
        "rank1_normal": lb.Rank1(2, rate=rate),
        "rank1_cauchy": lb.Rank1(2, "cauchy", rate=rate),
    }


def extreme_prior(recipe, prior):
    """That prior of weights; rank-one factors and random signs have their own."""
    if isinstance(recipe, lb.Rank1):
        return (
            lb.priors.Cauchy(0.1, loc=1.0)
            if recipe.factors == "cauchy"
            else lb.priors.Normal(0.1, loc=1.0)
        )
    return lb.priors.Flat() if getattr(recipe, "noise", "") == "bernoulli" else prior


WEIGHT_PRIORS = [
    lb.priors.Normal(0.2),
    lb.priors.He(),
    lb.priors.Centered(0.2),
    lb.priors.ARD(),
    lb.priors.GroupARD(),
    lb.priors.LogUniform(),
    lb.priors.LogUniform(exact=True),
    lb.priors.StudentT(3.0),
    lb.priors.Laplace(0.2),
    lb.priors.ScaleMixture(),
]


@pytest.mark.parametrize("layer", ["linear", "conv2d"])
@pytest.mark.parametrize("scale", [1e-8, 1e4])
@pytest.mark.parametrize("family", extreme(1.0))
def test_extreme_scales(family, scale, layer):
    recipe = extreme(scale)[family]
    model = converted(layer, recipe, prior=extreme_prior(recipe, lb.priors.Normal(0.2)))
    for _ in every_estimator(model, family, layer):
        assert_finite(model, inputs(layer, 4))


@pytest.mark.parametrize("prior", WEIGHT_PRIORS, ids=repr)
@pytest.mark.parametrize("scale", [1e-8, 1e4])
@pytest.mark.parametrize(
    "family", [name for name in extreme(1.0) if not name.startswith(("rank1", "low_rank"))]
)
def test_extreme_scales_against_every_prior(family, scale, prior):
    recipe = extreme(scale)[family]
    model = converted("linear", recipe, prior=extreme_prior(recipe, prior))
    assert_finite(model, inputs("linear", 4))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_batch_of_none_or_one(posterior, layer):
    model = converted(layer, POSTERIORS[posterior])
    for batch in (0, lb.extend.members(model)):
        assert len(assert_finite(model, inputs(layer, batch))) == batch


@pytest.mark.parametrize("layer", FEW)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_batch_of_none_or_one_with_every_estimator(posterior, layer):
    model = converted(layer, POSTERIORS[posterior])
    for _ in every_estimator(model, posterior, layer):
        for batch in (0, lb.extend.members(model)):
            assert len(assert_finite(model, inputs(layer, batch))) == batch


def awkward(layer, batch):
    """The same numbers in other orders of memory."""
    x = inputs(layer, batch)
    views = {
        "transposed": x.transpose(0, -1).contiguous().transpose(0, -1),
        "strided": torch.stack([x, x], -1).flatten(-2)[..., ::2],
    }
    if x.ndim == 4:
        views["channels_last"] = x.to(memory_format=torch.channels_last)
    assert not any(view.is_contiguous() for view in views.values())
    return x, views


@pytest.mark.parametrize("layer", ["linear", "sequence", "conv2d", "grouped"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_order_of_memory_does_not_matter(posterior, layer):
    model = converted(layer, POSTERIORS[posterior])
    x, views = awkward(layer, 2 * lb.extend.members(model))
    for view in views.values():
        with lb.held(model):
            torch.testing.assert_close(model(view), model(x))
        local = is_possible(posterior, layer, "local")
        with lb.using(model, lb.estimators.local if local else lb.estimators.weights):
            assert_finite(model, view)


@pytest.mark.parametrize("layer", ["conv2d", "grouped", "transposed"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_a_channels_last_model_is_the_same_model(posterior, layer):
    model = converted(layer, POSTERIORS[posterior])
    x = inputs(layer, lb.extend.members(model))
    with lb.using(model, lb.estimators.mean):
        before = model(x)
        model = model.to(memory_format=torch.channels_last)
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), before)
    assert_finite(model, x.to(memory_format=torch.channels_last))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("posterior", KEEPS_THE_WEIGHT)
def test_mean_is_the_layer_that_was_converted(posterior, layer):
    """Groups, dilation, strides and padding modes are those of the torch layer."""
    net = LAYERS[layer][0]()
    recipe, x = POSTERIORS[posterior], inputs(layer, 4)
    model = lb.convert(net, recipe, suitable_prior(recipe), lb.estimators.mean)
    torch.testing.assert_close(tensor(model(x)), tensor(net(x)))


@pytest.mark.parametrize("layer", SOME)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_unbatched_input(posterior, layer):
    net, x = LAYERS[layer][0](), inputs(layer, 1)[0]
    recipe = POSTERIORS[posterior]
    model = lb.convert(net, recipe, suitable_prior(recipe))
    if layer == "embedding":
        x = x[0]
    if lb.extend.members(model) > 1:
        with pytest.raises(ValueError, match=r"call tile\(x, members\)"):
            model(x)
        return
    assert tensor(model(x)).shape == tensor(net(x)).shape
    assert_finite(model, x)


def runs_in_bfloat16(layer):
    """Whether torch itself has the kernel on this machine: a fused LSTM needs a recent CPU."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            LAYERS[layer][0]()(inputs(layer, 1))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    "layer", [layer for layer in (*SOME, "grouped") if runs_in_bfloat16(layer)]
)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_bfloat16_autocast(posterior, layer):
    model = converted(layer, POSTERIORS[posterior])
    x = inputs(layer, 2 * lb.extend.members(model))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_finite(model, x)
        if layer in FEW:
            for _ in every_estimator(model, posterior, layer):
                assert_finite(model, x)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_bfloat16_autocast_of_a_dense_layer_computes_in_bfloat16():
    model = converted("linear", lb.KTied())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for estimator in (lb.estimators.mean, lb.estimators.weights, lb.estimators.local):
            with lb.using(model, estimator):
                assert model(inputs("linear", 2)).dtype == torch.bfloat16
