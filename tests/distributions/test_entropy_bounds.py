"""The bounds of a matrix normal plus a diagonal against exact log determinants."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import leanbayes as lb
from leanbayes.distributions import DiagonalLowRank, KroneckerNormal, Triangular
from leanbayes.ops import Linear

SHAPES = ((4, 3), (2, 5), (1, 4), (4, 1), (1, 1), (7, 6))
KINDS = ("triangular", "low_rank", "diagonal")
BOUNDS = ("minkowski", "pivots")

over_kinds = pytest.mark.parametrize("kind", KINDS)
over_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def factor(kind, n):
    scale = 0.3 + torch.rand(n)
    if kind == "triangular":
        return Triangular(torch.diag(scale) + 0.5 * torch.randn(n, n).tril(-1))
    return DiagonalLowRank(scale, torch.randn(n, 2) if kind == "low_rank" else None)


def both(kind, shape, spread=1.0):
    """The same law with either bound, and its exact entropy."""
    rows, columns = (factor(kind, n) for n in shape)
    scale = 0.5 * (spread * torch.randn(shape)).exp()
    laws = [
        KroneckerNormal(torch.zeros(shape), rows, columns, scale, bound=bound) for bound in BOUNDS
    ]
    zeros = torch.zeros(math.prod(shape))
    return *laws, MultivariateNormal(zeros, laws[0].covariance()).entropy()


@pytest.mark.checklist("MN7")
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
@over_shapes
@over_kinds
def test_pivots_lie_between_minkowski_and_the_exact_entropy(kind, shape, spread):
    for _ in range(20):
        minkowski, pivots, exact = both(kind, shape, spread)
        assert minkowski.entropy() <= pivots.entropy() + 1e-9
        assert pivots.entropy() <= exact + 1e-9


@pytest.mark.checklist("MN7")
@over_shapes
def test_pivots_are_those_of_the_dense_factor(shape):
    for kind in KINDS:
        _, pivots, _ = both(kind, shape)
        kronecker = torch.kron(pivots.rows.dense, pivots.columns.dense)
        squares = torch.linalg.cholesky(kronecker).diagonal().square()
        expected = (squares + pivots.diagonal.square().flatten()).log().sum()
        entropy = 0.5 * (expected + math.prod(shape) * math.log(2 * math.pi * math.e))
        torch.testing.assert_close(pivots.entropy(), entropy, rtol=1e-10, atol=1e-10)


@pytest.mark.checklist("MN7")
@over_shapes
def test_pivots_are_exact_for_independent_weights(shape):
    _, pivots, exact = both("diagonal", shape, spread=3.0)
    torch.testing.assert_close(pivots.entropy(), exact)
    lower = Triangular(torch.diag(pivots.rows.scale)), Triangular(torch.diag(pivots.columns.scale))
    same = KroneckerNormal(torch.zeros(shape), *lower, pivots.diagonal, bound="pivots")
    torch.testing.assert_close(same.entropy(), exact)
    loose = KroneckerNormal(torch.zeros(shape), *lower, pivots.diagonal)
    if math.prod(shape) > 1:
        assert loose.entropy() < exact - 0.01


@pytest.mark.checklist("MN7")
@pytest.mark.parametrize("tiny", [1e-8, 1e8])
def test_pivots_are_exact_where_one_part_vanishes(tiny):
    rows, columns = factor("triangular", 4), factor("triangular", 3)
    scale = tiny * (0.5 + torch.rand(4, 3))
    q = KroneckerNormal(torch.zeros(4, 3), rows, columns, scale, bound="pivots")
    exact = MultivariateNormal(torch.zeros(12), q.covariance()).entropy()
    torch.testing.assert_close(q.entropy(), exact, rtol=0, atol=1e-6)


@pytest.mark.checklist("MN7")
@pytest.mark.parametrize("kind", ["triangular", "low_rank"])
def test_the_gradient_of_the_pivots_bound_is_right(kind):
    scale, second = (0.3 + torch.rand(3)).requires_grad_(), torch.randn(3, 2).requires_grad_()
    diagonal = (0.3 + torch.rand(3, 2)).requires_grad_()
    lower = torch.randn(3, 3).tril(-1).requires_grad_()
    columns = factor("triangular", 2)

    def entropy(scale, second, lower, diagonal):
        rows = (
            DiagonalLowRank(scale, second)
            if kind == "low_rank"
            else Triangular(torch.diag(scale) + lower)
        )
        law = KroneckerNormal(torch.zeros(3, 2), rows, columns, diagonal, bound="pivots")
        return law.entropy() + 0 * (second.sum() + lower.sum())

    assert torch.autograd.gradcheck(entropy, (scale, second, lower, diagonal))


@pytest.mark.checklist("MN7")
def test_the_family_takes_the_bound_as_an_option(tmp_path):
    weight, prior = torch.randn(4, 3), Normal(torch.tensor(0.0), torch.tensor(0.5))
    made = {}
    for diagonal in (True, "pivots"):
        torch.manual_seed(1)
        made[diagonal] = lb.posteriors.MatrixNormal(0.3, diagonal=diagonal)(weight, Linear())
        with torch.no_grad():
            for parameter in made[diagonal].parameters():
                parameter.add_(torch.randn_like(parameter))
    laws = {name: learned() for name, learned in made.items()}
    assert torch.equal(laws[True].covariance(), laws["pivots"].covariance())
    dense_prior = MultivariateNormal(torch.zeros(12), 0.25 * torch.eye(12))
    law = MultivariateNormal(laws[True].mean.flatten(), laws[True].covariance())
    exact = kl_divergence(law, dense_prior)
    assert exact < kl_divergence(laws["pivots"], prior) < kl_divergence(laws[True], prior)
    net = nn.Linear(3, 4)
    model = lb.convert(
        net, lb.posteriors.MatrixNormal(0.3, diagonal="pivots"), lb.priors.Normal(1.0)
    )
    same = lb.load(net, lb.save(model, tmp_path / "m"))
    assert same.posterior.spec == lb.posteriors.MatrixNormal(0.3, diagonal="pivots")
    assert torch.equal(lb.kl(same), lb.kl(model))


def test_a_bound_that_does_not_exist_is_told():
    with pytest.raises(ValueError, match="diagonal is 'pivot'; it must be True, False or 'pivots'"):
        lb.posteriors.MatrixNormal(diagonal="pivot")
    one = Triangular(torch.eye(1))
    with pytest.raises(ValueError, match="bound 'pivot' is unknown; did you mean 'pivots'"):
        KroneckerNormal(torch.zeros(1, 1), one, one, torch.ones(1, 1), bound="pivot")
