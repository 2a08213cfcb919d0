"""Packed lower-triangular matrices against the plain formulas in float64, in both branches."""

import sys
from contextlib import nullcontext

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import leanbayes as lb
from leanbayes.distributions import Triangular
from leanbayes.kernels import (
    PackedTriangular,
    from_packed,
    lower_product,
    lower_quadratic,
    row_squares,
    to_packed,
    without_native,
)

BRANCHES = [
    pytest.param(
        nullcontext,
        marks=pytest.mark.skipif(not lb.kernels().native, reason=lb.kernels().reason),
        id="native",
    ),
    pytest.param(without_native, id="torch"),
]
SIZES = [1, 2, 7, 40]
LARGE = 321  # two blocks of unequal size


def packed(n, dtype=torch.float32):
    diagonal = (0.5 + torch.rand(n, dtype=dtype)).requires_grad_()
    return diagonal, torch.randn(n * (n - 1) // 2, dtype=dtype).requires_grad_()


def written_out(diagonal, below):
    """The matrix, filled number by number."""
    n, lower = len(diagonal), torch.diag(diagonal.detach())
    entries = iter(below.detach())
    for i in range(n):
        for j in range(i):
            lower[i, j] = next(entries)
    return lower


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("n", SIZES)
def test_the_matrix_is_filled_row_by_row(branch, n):
    diagonal, below = packed(n)
    with branch():
        assert torch.equal(from_packed(diagonal, below), written_out(diagonal, below))
        squares = row_squares(diagonal, below)
    assert torch.allclose(squares, written_out(diagonal, below).square().sum(1))


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("n", SIZES)
def test_gradients_are_those_of_the_matrix(branch, n):
    diagonal, below = packed(n)
    weight, force = torch.randn(n, n), torch.randn(n)
    with branch():
        value = (from_packed(diagonal, below) * weight).sum()
        value = value + row_squares(diagonal, below) @ force
    found = torch.autograd.grad(value, (diagonal, below))
    lower = written_out(diagonal, below)
    slope = weight + 2 * lower * force.unsqueeze(1)
    row, column = torch.tril_indices(n, n, -1)
    assert torch.allclose(found[0], slope.diagonal(), atol=1e-5)
    assert torch.allclose(found[1], slope[row, column], atol=1e-5)


@pytest.mark.parametrize("branch", BRANCHES)
def test_second_derivatives(branch):
    diagonal, below = packed(5)
    with branch():
        value = (
            from_packed(diagonal, below).pow(3).sum() + row_squares(diagonal, below).pow(2).sum()
        )
        slopes = torch.autograd.grad(value, (diagonal, below), create_graph=True)
        found = torch.autograd.grad(sum(s.square().sum() for s in slopes), (diagonal, below))
    doubles = tuple(t.detach().double().requires_grad_() for t in (diagonal, below))
    lower = torch.diag(doubles[0]).index_put(tuple(torch.tril_indices(5, 5, -1)), doubles[1])
    value = lower.pow(3).sum() + lower.square().sum(1).pow(2).sum()
    slopes = torch.autograd.grad(value, doubles, create_graph=True)
    expected = torch.autograd.grad(sum(s.square().sum() for s in slopes), doubles)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-4)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("n", [*SIZES, LARGE])
def test_a_triangle_is_packed(branch, n):
    a = torch.randn(n, n, dtype=torch.float64).tril()
    with branch(), torch.no_grad():
        diagonal, below = to_packed(a.float())
    assert torch.equal(written_out(diagonal, below), a.float())


def products(lower, x):
    return {
        "product": (lower_product(x, lower), x @ lower.mT),
        "quadratic": (lower_quadratic(x, lower), (x @ lower).square().sum(-1, keepdim=True)),
    }


@pytest.mark.parametrize("n", [3, LARGE, 640])
@pytest.mark.parametrize("shape", [(40,), (2, 20), ()])
@pytest.mark.parametrize("name", ["product", "quadratic"])
def test_products_skip_zeros_and_nothing_else(n, shape, name):
    x = torch.randn(*shape, n, dtype=torch.float64, requires_grad=True)
    lower = torch.randn(n, n, dtype=torch.float64).tril().requires_grad_()
    found, expected = products(lower, x)[name]
    assert found.shape == expected.shape
    assert torch.allclose(found, expected)
    force = torch.randn_like(expected)
    of_x, of_lower = torch.autograd.grad((expected * force).sum(), (x, lower))
    for_x, for_lower = torch.autograd.grad((found * force).sum(), (x, lower))
    assert torch.allclose(for_x, of_x)
    assert torch.allclose(for_lower.tril(), of_lower.tril())


def test_products_can_be_differentiated_twice(monkeypatch):
    monkeypatch.setattr(sys.modules["leanbayes.kernels.triangular"], "_BLOCK", 2)
    x = torch.randn(16, 5, dtype=torch.float64, requires_grad=True)
    below = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    for function in (lower_product, lower_quadratic):
        assert gradcheck(lambda x, a, f=function: f(x, a.tril()), (x, below))
        assert gradgradcheck(lambda x, a, f=function: f(x, a.tril()), (x, below))


@pytest.mark.parametrize("op", [lb.ops.Linear(), lb.ops.Conv(kernel_size=(2, 2))], ids=repr)
def test_a_packed_factor_is_a_triangular_one(op):
    n = 8
    diagonal, below = packed(n)
    factor = PackedTriangular(diagonal, below)
    plain = Triangular(factor.lower)
    x = torch.randn(6, n) if isinstance(op, lb.ops.Linear) else torch.randn(3, 2, 4, 4)
    assert torch.equal(factor.quadratic(x, op), plain.quadratic(x, op))
    e = torch.randn(4, n)
    assert torch.equal(factor.color(e), plain.color(e))
    for name in ("variance", "logdet", "log_pivots", "dense"):
        assert torch.allclose(getattr(factor, name), getattr(plain, name)), name
    assert (factor.size, factor.width) == (plain.size, plain.width) == (n, n)


@pytest.mark.parametrize("shapes", [((3,), (2,)), ((3,), (4,)), ((3, 1), (3,)), ((3,), (3, 1))])
def test_numbers_that_make_no_triangle_are_refused(shapes):
    tensors = [torch.ones(shape) for shape in shapes]
    with pytest.raises(ValueError, match="make no triangle"):
        PackedTriangular(*tensors)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("function", [from_packed, row_squares])
def test_kernels_read_no_further_than_there_are_numbers(branch, function):
    with branch(), pytest.raises((RuntimeError, IndexError)):
        function(torch.ones(50), torch.ones(7))


def test_under_vmap_the_plain_formulas_are_used():
    lower = torch.randn(LARGE, LARGE).tril()
    x = torch.randn(32, LARGE)
    mapped = torch.func.vmap(lambda x: lower_quadratic(x, lower))(x.unsqueeze(1))
    assert torch.allclose(mapped.flatten(), lower_quadratic(x, lower).flatten(), rtol=1e-4)
