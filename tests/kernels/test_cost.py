"""Cost as a property: FLOPs of matrix products, forward and backward, and parameter counts."""

from itertools import pairwise

import pytest
import torch
from registry import POSTERIORS, suitable_prior
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import leanbayes as lb

pytestmark = pytest.mark.usefixtures("torch_noise")  # native kernels are not torch's to count

LAYERS = {
    "dense": (lambda: nn.Linear(784, 400, bias=False), (64, 784)),
    "convolution": (lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), (8, 64, 8, 8)),
}
K_TIED_LIMIT = {"dense": 1.06, "convolution": 1.10}


def flops(model, x):
    """FLOPs of matrix products and convolutions in a forward and in a backward pass."""
    with FlopCounterMode(display=False) as forward:
        y = model(x)
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def relative_flops(posterior, estimator, layer):
    """The same of the converted layer, as multiples of the deterministic layer's."""
    make, shape = LAYERS[layer]
    net, x = make(), torch.randn(shape, requires_grad=True)
    model = lb.convert(net, posterior, suitable_prior(posterior), estimator)
    return [ours / theirs for ours, theirs in zip(flops(model, x), flops(net, x), strict=True)]


def test_the_counter_counts_a_matrix_product_once_forward_and_twice_backward():
    make, (batch, columns) = LAYERS["dense"]
    once = 2 * batch * columns * 400
    assert flops(make(), torch.randn(batch, columns, requires_grad=True)) == (once, 2 * once)


@pytest.mark.parametrize("layer", LAYERS)
def test_local_k_tied_of_rank_two(layer):
    assert max(relative_flops(lb.KTied(rank=2), lb.estimators.local, layer)) <= K_TIED_LIMIT[layer]


@pytest.mark.checklist("KT16")
@pytest.mark.parametrize("estimator", [lb.estimators.local, lb.estimators.weights])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_tied_step_takes_no_more_arithmetic_than_a_mean_field_one(layer, estimator):
    """Products alone; ``benchmarks`` has the time."""
    tied = relative_flops(lb.KTied(rank=2), estimator, layer)
    free = relative_flops(lb.MeanField(), estimator, layer)
    if estimator is lb.estimators.local:
        assert max(tied) < 0.6 * min(free)
    else:
        assert max(tied) <= 1.06 * min(free)


@pytest.mark.checklist("MN15")
def test_a_matrix_normal_step_takes_less_than_twice_the_arithmetic_of_a_mean_field_one():
    """Of a dense layer. A convolution of few images takes more: its factors do not get smaller."""
    local = lb.estimators.local
    steps = {
        layer: [
            sum(relative_flops(posterior, local, layer))
            for posterior in (lb.posteriors.MatrixNormal(), lb.MeanField())
        ]
        for layer in LAYERS
    }
    assert steps["dense"][0] < 1.5 * steps["dense"][1]
    assert steps["convolution"][0] > 2 * steps["convolution"][1]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_local_k_tied_takes_two_skinny_products(layer, rank):
    """``k(k+1)/2`` products of the size of a row and of a column, and no dense one."""
    rows, columns = {"dense": (400, 784), "convolution": (64, 64 * 9)}[layer]
    terms = rank * (rank + 1) // 2
    expected = 1 + terms * (rows + columns) / (rows * columns)
    assert relative_flops(lb.KTied(rank), lb.estimators.local, layer) == pytest.approx(
        [expected] * 2
    )


@pytest.mark.parametrize(
    "estimator", [lb.estimators.local, lb.estimators.weights, lb.estimators.auto]
)
@pytest.mark.parametrize("factors", ["normal", "cauchy", "lognormal", "halfcauchy", "fixed"])
@pytest.mark.parametrize("layer", LAYERS)
def test_rank_one(layer, factors, estimator):
    assert max(relative_flops(lb.Rank1(4, factors), estimator, layer)) <= 1.01


@pytest.mark.parametrize(
    "estimator", [lb.estimators.local, lb.estimators.weights, lb.estimators.auto]
)
@pytest.mark.parametrize("noise", ["normal", "bernoulli", "uniform"])
@pytest.mark.parametrize("layer", LAYERS)
def test_variance_layer(layer, noise, estimator):
    assert max(relative_flops(lb.posteriors.ZeroMean(noise), estimator, layer)) <= 1.01


@pytest.mark.parametrize("posterior", ["mean_field", "dropout_layer", "dropout_weight"])
@pytest.mark.parametrize("layer", LAYERS)
def test_mean_field_takes_two_products_locally_and_one_with_weights(layer, posterior):
    recipe = POSTERIORS[posterior]
    assert max(relative_flops(recipe, lb.estimators.local, layer)) <= 2.01
    assert max(relative_flops(recipe, lb.estimators.weights, layer)) <= 1.01


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("layer", LAYERS)
def test_local_matrix_normal_of_low_rank(layer, rank):
    assert (
        max(relative_flops(lb.posteriors.MatrixNormal(rank=rank), lb.estimators.local, layer))
        <= K_TIED_LIMIT[layer]
    )


def test_a_converted_network_costs_hardly_more_than_the_network():
    sizes = (784, 400, 400, 10)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    model, x = lb.convert(net, lb.KTied(rank=2), lb.priors.Normal(0.2)), torch.randn(64, 784)
    for ours, theirs in zip(flops(model, x), flops(net, x), strict=True):
        assert ours <= 1.06 * theirs


def _factor(n):
    """A triangle with its diagonal."""
    return n * (n + 1) // 2


PARAMETERS = {
    "point": lambda m, n, c: m * n,
    "mean_field": lambda m, n, c: 2 * m * n,
    "mean_field_published": lambda m, n, c: 2 * m * n,
    "mean_field_softplus": lambda m, n, c: 2 * m * n,
    "mean_field_log_variance": lambda m, n, c: 2 * m * n,
    "mean_field_signed": lambda m, n, c: 2 * m * n,
    "k_tied_1": lambda m, n, c: m * n + (m + n),
    "k_tied_2": lambda m, n, c: m * n + 2 * (m + n),
    "k_tied_3": lambda m, n, c: m * n + 3 * (m + n),
    "matrix_normal": lambda m, n, c: m * n + _factor(m) + _factor(n),
    "matrix_normal_low_rank": lambda m, n, c: m * n + 3 * (m + n),
    "matrix_normal_diagonal_factors": lambda m, n, c: m * n + m + n,
    "matrix_normal_plus_diagonal": lambda m, n, c: 2 * m * n + _factor(m) + _factor(n),
    "zero_mean": lambda m, n, c: m * n,
    "zero_mean_bernoulli": lambda m, n, c: m * n,
    "low_rank": lambda m, n, c: 2 * 2 * (m + n),
    "low_rank_full": lambda m, n, c: 2 * min(m, n) * (m + n),
    "zero_mean_uniform": lambda m, n, c: m * n,
    "dropout_layer": lambda m, n, c: m * n + 1,
    "dropout_neuron": lambda m, n, c: m * n + n,
    "dropout_weight": lambda m, n, c: 2 * m * n,
    "dropout_additive": lambda m, n, c: 2 * m * n,
    "pruned": lambda m, n, c: 2 * m * n,
    "rank1_normal": lambda m, n, c: m * n + 3 * 2 * (c + n),
    "rank1_single": lambda m, n, c: m * n + 2 * (c + n),
    "rank1_cauchy": lambda m, n, c: m * n + 2 * 2 * (c + n),
    "rank1_lognormal": lambda m, n, c: m * n + 2 * 2 * (c + n),
    "rank1_halfcauchy": lambda m, n, c: m * n + 2 * (c + n),
    "rank1_fixed": lambda m, n, c: m * n + 2 * (c + n),
    "rank1_outputs": lambda m, n, c: m * n + 2 * 2 * n,
    "rank1_inputs": lambda m, n, c: m * n + 2 * 2 * c,
}
"""Of ``m`` inputs (a kernel times its channels), ``n`` outputs and ``c`` input channels."""

COUNTED = {
    "linear": (lambda: nn.Linear(7, 5, bias=False), (7, 5, 7)),
    "convolution": (lambda: nn.Conv2d(3, 5, (3, 2), bias=False), (18, 5, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(3, 5, 4, bias=False), (12, 5, 3)),
    "embedding": (lambda: nn.Embedding(9, 5), (9, 5, 9)),
}


def test_every_posterior_has_a_count():
    assert set(PARAMETERS) == set(POSTERIORS)


@pytest.mark.parametrize("layer", COUNTED)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_parameter_count(posterior, layer):
    make, sizes = COUNTED[layer]
    recipe = POSTERIORS[posterior]
    model = lb.convert(make(), recipe, suitable_prior(recipe))
    expected = PARAMETERS[posterior](*sizes)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert lb.count_parameters(model).total == expected


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_nothing_but_parameters_is_stored(posterior):
    """No noise, no prior and no scale is kept in the state dict, also after a forward pass; but
    which weights are pruned is."""
    recipe = POSTERIORS[posterior]
    model = lb.convert(nn.Linear(7, 5), recipe, suitable_prior(recipe))
    model(torch.randn(2 * lb.extend.members(model), 7))
    masks = {"posterior.mask"} if isinstance(recipe, lb.posteriors.Pruned) else set()
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()} | masks


@pytest.mark.parametrize(("learn", "extra"), [(None, 0), ("layer", 2), ("model", 1)])
def test_a_learned_prior_adds_one_scale_a_layer_or_one_a_model(learn, extra):
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(0.5, learn=learn))
    assert lb.count_parameters(model) == (18, 18, extra)
