"""Products by oneDNN and by MKL, and sums of logarithms by eights: the same numbers either way."""

import pytest
import torch
import torch.nn.functional as F
from k_tied_outputs import k_tied_local
from torch.utils.flop_counter import FlopCounterMode

from leanbayes.kernels import dispatch, product, scaled_local, without_native
from leanbayes.kernels.divergence import sum_of_logs

BATCH, IN, OUT = 650, 301, 257  # large enough for oneDNN, no multiples of a vector's width
EXACT = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def matrices():
    torch.manual_seed(0)
    return torch.randn(BATCH, IN), torch.randn(OUT, IN), torch.randn(OUT)


def in_double(x, weight, bias=None):
    return F.linear(*(t if t is None else t.double() for t in (x, weight, bias))).float()


@torch.no_grad()
def test_a_product_is_that_of_doubles(matrices):
    x, weight, bias = matrices
    torch.testing.assert_close(product(x, weight, bias), in_double(x, weight, bias), **EXACT)
    torch.testing.assert_close(product(x, weight), in_double(x, weight), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("of", ["inputs", "weights", "both"])
@pytest.mark.parametrize("how", ["transposed", "strided", "expanded"])
def test_it_takes_matrices_as_they_lie_in_memory(matrices, of, how):
    lay = {
        "transposed": lambda t: t.t().contiguous().t(),
        "strided": lambda t: t.repeat_interleave(2, 1)[:, ::2],
        "expanded": lambda t: t[:1].expand_as(t),
    }[how]
    x, weight, bias = matrices
    x = lay(x) if of != "weights" else x
    weight = lay(weight) if of != "inputs" else weight
    torch.testing.assert_close(product(x, weight, bias), in_double(x, weight, bias), **EXACT)


def test_a_gradient_that_is_asked_for_is_recorded(matrices):
    x, weight, bias = matrices
    product(x, weight.requires_grad_(), bias).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(OUT, IN), **EXACT)


@torch.no_grad()
def test_its_flops_are_counted(matrices):
    with FlopCounterMode(display=False) as counter:
        product(*matrices)
    assert counter.get_total_flops() == 2 * BATCH * IN * OUT


@torch.no_grad()
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays(matrices, bad):
    x, weight, _ = matrices
    x[3, 7] = bad
    assert not product(x, weight)[3].isfinite().any()
    assert product(x, weight)[4].isfinite().all()


@torch.no_grad()
def test_onednn_is_called_for_large_products_unless_it_is_switched_off(matrices, monkeypatch):
    if dispatch._onednn() is None:
        pytest.skip("torch was built without MKL or oneDNN")
    calls, linear = [], dispatch._onednn()

    def counted(*given):
        calls.append(given)
        return linear(*given)

    monkeypatch.setattr(dispatch, "_onednn", lambda: counted)
    x, weight, bias = matrices
    product(x, weight, bias)
    assert len(calls) == 1
    product(x[:8], weight)
    product(x, weight[:20])
    product(x.double(), weight.double())
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    product(x, weight)
    assert len(calls) == 1


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("bound", ["sum", "squares"])
def test_gradients_of_layers_that_are_large(matrices, bound):
    """A sum has a gradient that is expanded from one number, squares one that is not."""
    x, loc, bias = (t.requires_grad_() for t in matrices)
    u, v = (torch.zeros(2, n, requires_grad=True) for n in (OUT, IN))
    scale = torch.zeros(OUT, IN, requires_grad=True)
    layers = (k_tied_local, (x, loc, u, v, bias)), (scaled_local, (x, loc, scale, bias))
    for local, given in layers:
        found, expected = local(*given), F.linear(x.double(), loc.double(), bias.double())
        goal = (lambda y: y.sum()) if bound == "sum" else (lambda y: y.square().sum())
        mine = torch.autograd.grad(goal(found), (x, loc, bias))
        theirs = torch.autograd.grad(goal(expected), (x, loc, bias))
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1001])
@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 1e5, 1e30])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_of_logarithms(count, size, sign):
    w = sign * size * (torch.rand(count, generator=torch.Generator().manual_seed(count)) + 0.5)
    assert sum_of_logs(w) == pytest.approx(
        float(w.double().abs().log().sum()), rel=1e-12, abs=1e-12
    )


def test_a_few_numbers_that_products_could_not_hold():
    w = torch.ones(80)
    for small, large in ((1e-38, 1e38), (1e-20, 1.0), (1.0, 1e20), (1e-6, 1e6)):
        w[::3], w[1::3] = small, large
        assert sum_of_logs(w) == pytest.approx(float(w.double().log().sum()), rel=1e-12)


def test_the_variance_of_no_noise_has_no_slope():
    """Outputs without a standard deviation have a gradient of zero by it, not one of infinity."""
    x, scale = torch.ones(4, 3), torch.tensor([[1.0, 1, 1], [0, 0, 0]]).requires_grad_()
    with without_native():
        scaled_local(x, None, scale, None).sum().backward()
    assert scale.grad[0].abs().min() > 0
    assert scale.grad[1].tolist() == [0.0, 0.0, 0.0]
