"""Every rule for a function of torch, against many draws of independent normal inputs."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes.extend import Uncertain
from leanbayes.kernels import without_native
from leanbayes.prediction.one_pass import RULES
from leanbayes.testing import assert_mean

DRAWS = 40_000


def case(name, function, *shape, variance=0.3, loose=None):
    return pytest.param(function, shape, variance, loose, id=name)


W = torch.linspace(-1, 1, 24, dtype=torch.float64)
LINEAR, CONV, UP = W.view(4, 6), W.view(2, 3, 2, 2), W[:12].view(3, 1, 2, 2)
B = W[:4]
STATS = torch.rand(3, generator=torch.Generator().manual_seed(0)).double() + 0.5

EXACT = [
    case("linear", lambda x: F.linear(x, LINEAR, B), 2, 6),
    case("conv2d", lambda x: F.conv2d(x, CONV, B[:2], padding=1), 2, 3, 3, 3),
    case("conv_transpose2d", lambda x: F.conv_transpose2d(x, UP, None, 2), 1, 3, 2, 2),
    case("relu", torch.relu, 2, 5, variance=2.0),
    case("leaky_relu", lambda x: F.leaky_relu(x, 0.2), 2, 5),
    case("prelu", lambda x: F.prelu(x, W[:5]), 2, 5),
    case("relu6", F.relu6, 2, 5, variance=9.0),
    case("hardtanh", lambda x: F.hardtanh(x, -0.5, 2.0), 2, 5),
    case("hardsigmoid", F.hardsigmoid, 2, 5, variance=9.0),
    case("clamp", lambda x: x.clamp(-0.2, 0.7), 2, 5),
    case("clamp above", lambda x: torch.clamp(x, max=0.3), 2, 5),
    case("clamp_min", lambda x: x.clamp_min(-0.1), 2, 5, variance=2.0),
    case("gelu", F.gelu, 2, 5),
    case("silu", F.silu, 2, 5),
    case("softplus", F.softplus, 2, 5),
    case("mish", F.mish, 2, 5),
    case("tanh", torch.tanh, 2, 5),
    case("sigmoid", torch.sigmoid, 2, 5),
    case("exp", torch.exp, 2, 5),
    case("glu", F.glu, 2, 6),
    case("dropout", lambda x: F.dropout(x, 0.3, training=True), 2, 5),
    case("average pool", lambda x: F.avg_pool2d(x, 2), 1, 2, 4, 4),
    case("average pool, padding", lambda x: F.avg_pool2d(x, 3, 2, 1), 1, 2, 4, 4),
    case(
        "average pool, padding not counted",
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        *(1, 2, 4, 4),
    ),
    case(
        "average pool, divisor",
        lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        *(1, 2, 4, 4),
    ),
    case("average pool 1d", lambda x: F.avg_pool1d(x, 3, 1, 1), 2, 2, 5),
    case("adaptive average pool", lambda x: F.adaptive_avg_pool2d(x, 1), 1, 2, 3, 3),
    case("uneven adaptive average", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), 1, 2, 5, 4),
    case("batch norm", lambda x: F.batch_norm(x, STATS, STATS, STATS, STATS), 2, 3, 2),
    case("instance norm", lambda x: F.instance_norm(x, STATS, STATS, None, None, False), 2, 3, 2),
    case("sum", lambda x: x.sum(1), 2, 5),
    case("mean", lambda x: x.mean((0, 1)), 2, 5),
    case("product of halves", lambda x: x[:, :2] * x[:, 2:], 2, 4),
    case("difference", lambda x: 2 - x[0] - x[1] / 3, 2, 4),
    case("doubled", lambda x: x + x, 2, 4),
    case("squared", lambda x: x * x, 2, 4),
    case("matmul", lambda x: x[:2] @ x[2:].T, 4, 3),
    case("cat", lambda x: torch.cat([x, torch.zeros_like(x)], 1), 2, 3),
    case("pad", lambda x: F.pad(x, (1, 0), value=2.0), 2, 3),
    case("masked_fill", lambda x: x.masked_fill(W[:3] > 0, 1.0), 2, 3),
    case("maximum", lambda x: torch.maximum(x[0], x[1]), 2, 4),
    case("where", lambda x: torch.where(W[:3] > 0, x, 0.5), 2, 3),
]  # fmt: skip
CLOSE = [
    case("softmax", lambda x: torch.softmax(x, -1), 2, 5, loose=(0.01, 0.1)),
    case("softmax, much noise", lambda x: x.softmax(-1), 2, 5, variance=1.5, loose=(0.03, 0.15)),
    case("log_softmax", lambda x: F.log_softmax(x, 1), 2, 5, loose=(0.02, 0.15)),
    case("layer norm", lambda x: F.layer_norm(x, (32,)), 2, 32, loose=(0.05, 0.15)),
    case("rms norm", lambda x: F.rms_norm(x, (32,)), 2, 32, loose=(0.05, 0.15)),
    case("group norm", lambda x: F.group_norm(x, 2), 2, 4, 4, 4, loose=(0.06, 0.2)),
    case("instance norm", lambda x: F.instance_norm(x), 2, 3, 6, 6, loose=(0.05, 0.15)),
    case(
        "attention",
        lambda x: F.scaled_dot_product_attention(x, x.flip(0), x, is_causal=True),
        *(2, 4, 8),
        variance=0.05,
        loose=(0.03, 0.5),
    ),
]


def moments(function, shape, variance):
    """The rule's mean and variance, and draws."""
    torch.manual_seed(0)
    loc = torch.randn(shape, dtype=torch.float64)
    spread = variance * (0.5 + torch.rand(shape, dtype=torch.float64))
    y = function(Uncertain(loc, spread))
    noise = torch.randn(DRAWS, *shape, dtype=torch.float64)
    drawn = torch.func.vmap(function, randomness="different")(loc + spread.sqrt() * noise)
    return y, drawn


@pytest.mark.parametrize(("function", "shape", "variance", "loose"), EXACT)
def test_exact_rules(function, shape, variance, loose):
    y, drawn = moments(function, shape, variance)
    assert y.shape == drawn.shape[1:]
    assert_mean(drawn, y.loc, "mean")
    assert_mean((drawn - y.loc).square(), y.variance, "variance")


@pytest.mark.parametrize(("function", "shape", "variance", "loose"), CLOSE)
def test_approximate_rules(function, shape, variance, loose):
    y, drawn = moments(function, shape, variance)
    of_mean, of_std = loose
    assert torch.allclose(y.loc, drawn.mean(0), atol=of_mean)
    assert ((y.variance.sqrt() / drawn.std(0)).log().abs() < torch.tensor(1 + of_std).log()).all()


def test_softmax_means_add_up_to_one():
    x = Uncertain(torch.randn(4, 6) * 3, torch.rand(4, 6) * 9)
    y = torch.softmax(x, -1)
    assert torch.allclose(y.loc.sum(-1), torch.ones(4))
    assert ((y.variance >= 0) & (y.variance <= y.loc * (1 - y.loc))).all()


POOLS = [
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.max_pool2d(x, 3, 2, 1),
    lambda x: F.max_pool2d(x, (2, 1), 1, dilation=2),
    lambda x: F.adaptive_max_pool2d(x, (2, 3)),
]


@pytest.mark.parametrize("pool", POOLS)
def test_numbers_of_a_window_rise_and_fall_together(pool):
    """Noise that a window shares moves its maximum, which is at the largest mean."""
    torch.manual_seed(0)
    loc, spread = torch.randn(1, 2, 6, 6), torch.rand(1, 2, 1, 1).expand(1, 2, 6, 6)
    y = pool(Uncertain(loc, spread))
    assert torch.equal(y.loc, pool(loc))
    assert torch.equal(y.variance, pool(spread))


def test_the_native_relu_is_the_formula():
    torch.manual_seed(0)
    loc = torch.cat([torch.linspace(-40, 40, 5001), torch.zeros(3), torch.tensor([1e4, -1e4])])
    variance = torch.rand(len(loc)).square()
    variance[::7], variance[::11] = 0.0, 1e-30
    x = Uncertain(loc, variance)
    exact = F.leaky_relu(Uncertain(loc.double(), variance.double()), 0.1)
    with torch.no_grad():
        fast = F.leaky_relu(x, 0.1)
        with without_native():
            formula = F.leaky_relu(x, 0.1)
    scale = variance.sqrt()
    for y in (fast, formula):
        assert ((y.loc - exact.loc).abs() <= 1e-6 * (scale + loc.abs())).all()
        assert ((y.variance - exact.variance).abs() <= 1e-6 * variance).all()


def test_the_native_relu_has_no_gradient_to_lose():
    loc = torch.randn(5, requires_grad=True)
    y = torch.relu(Uncertain(loc, torch.ones(5)))
    (y.loc.sum() + y.variance.sum()).backward()
    assert loc.grad.abs().sum() > 0


@pytest.mark.parametrize("function", [torch.cumsum, torch.sort, torch.fft.fft, torch.einsum])
def test_the_table_is_closed(function):
    assert function not in RULES
