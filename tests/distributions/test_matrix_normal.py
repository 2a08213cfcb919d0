"""The matrix normal [matrix normal] against dense multivariate normals of ``vec W``."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import leanbayes as lb
from leanbayes.distributions import (
    DiagonalLowRank,
    GroupRelevanceNormal,
    KroneckerNormal,
    RelevanceNormal,
    Triangular,
)
from leanbayes.ops import Conv, Linear
from leanbayes.testing import assert_mean

SAMPLES = 20_000
FACTORS = ("triangular", "low_rank", "diagonal")
SHAPES = ((4, 3), (2, 5), (1, 4), (4, 1), (1, 1))

over_factors = pytest.mark.parametrize("kind", FACTORS)
over_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
with_and_without_diagonal = pytest.mark.parametrize("diagonal", [False, True], ids=["MN", "MN+D"])


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, torch.as_tensor(b), rtol=tolerance, atol=tolerance)


def minimize(loss: Callable[[], Tensor], parameters: list[nn.Parameter]) -> None:
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=500,
        tolerance_grad=1e-11,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def random_factor(kind: str, n: int) -> list[Tensor]:
    scale = 0.5 + torch.rand(n)
    if kind == "triangular":
        return [0.5 * torch.randn(n, n).tril(-1) + torch.diag(scale)]
    return [scale] if kind == "diagonal" else [scale, torch.randn(n, 2)]


def as_factor(kind: str, tensors: list[Tensor]) -> Triangular | DiagonalLowRank:
    return Triangular(tensors[0].tril()) if kind == "triangular" else DiagonalLowRank(*tensors)


def as_covariance(kind: str, tensors: list[Tensor]) -> Tensor:
    if kind == "triangular":
        return tensors[0].tril() @ tensors[0].tril().mT
    diagonal = torch.diag(tensors[0] ** 2)
    return diagonal if kind == "diagonal" else diagonal + tensors[1] @ tensors[1].mT


@dataclass
class Case:
    """Random parameters, the distribution they make, and its covariances written out."""

    kind: str
    shape: tuple[int, int] = (4, 3)
    diagonal: bool = False

    def __post_init__(self):
        self.loc = torch.randn(self.shape)
        self.row_tensors, self.column_tensors = (random_factor(self.kind, n) for n in self.shape)
        self.scale = 0.3 + torch.rand(self.shape) if self.diagonal else None
        self.leaves = [self.loc, *self.row_tensors, *self.column_tensors]
        self.leaves += [] if self.scale is None else [self.scale]
        for leaf in self.leaves:
            leaf.requires_grad_()

    @property
    def q(self) -> KroneckerNormal:
        rows, columns = (
            as_factor(self.kind, tensors) for tensors in (self.row_tensors, self.column_tensors)
        )
        return KroneckerNormal(self.loc, rows, columns, self.scale)

    @property
    def rows(self) -> Tensor:
        return as_covariance(self.kind, self.row_tensors)

    @property
    def columns(self) -> Tensor:
        return as_covariance(self.kind, self.column_tensors)

    @property
    def kronecker(self) -> Tensor:
        return torch.kron(self.rows, self.columns)

    @property
    def covariance(self) -> Tensor:
        if self.scale is None:
            return self.kronecker
        return self.kronecker + torch.diag(self.scale.flatten() ** 2)

    @property
    def dense(self) -> MultivariateNormal:
        return MultivariateNormal(self.loc.flatten(), self.covariance)

    def outputs_covariance(self, x: Tensor) -> Tensor:
        """The covariance of ``W x`` from that of ``vec W``, for every row of ``x``."""
        out = self.shape[0]
        selectors = torch.stack([torch.kron(torch.eye(out), row[None]) for row in x])
        return selectors @ self.covariance @ selectors.mT


def assert_same_gradients(a: Tensor, b: Tensor, leaves: list[Tensor]):
    gradients = (torch.autograd.grad(value, leaves, allow_unused=True) for value in (a, b))
    for of_a, of_b, leaf in zip(*gradients, leaves, strict=True):
        zeros = torch.zeros_like(leaf)
        close(zeros if of_a is None else of_a, zeros if of_b is None else of_b)


# density, entropy, sampling


@pytest.mark.checklist("MN1")
@over_shapes
@over_factors
def test_density_and_entropy_are_those_of_scipy(kind, shape):
    case = Case(kind, shape)
    w = torch.randn(3, *shape)
    mean, rows, columns = (t.detach().numpy() for t in (case.loc, case.rows, case.columns))
    close(case.q.log_prob(w).detach(), stats.matrix_normal.logpdf(w.numpy(), mean, rows, columns))
    close(case.q.entropy().detach(), stats.matrix_normal.entropy(rows, columns))


@pytest.mark.checklist("MN1")
@over_factors
def test_density_and_entropy_have_the_gradients_of_a_dense_normal(kind):
    case, w = Case(kind), torch.randn(4, 3)
    assert_same_gradients(case.q.log_prob(w), case.dense.log_prob(w.flatten()), case.leaves)
    assert_same_gradients(case.q.entropy(), case.dense.entropy(), case.leaves)


@pytest.mark.checklist("MN1")
@with_and_without_diagonal
@over_factors
def test_samples_have_the_mean_and_the_kronecker_covariance(kind, diagonal):
    case = Case(kind, diagonal=diagonal)
    w = case.q.rsample((SAMPLES,)).detach()
    assert_mean(w, case.loc.detach(), "mean of samples")
    centered = (w - case.loc.detach()).flatten(1)
    products = centered[:, :, None] * centered[:, None, :]
    assert_mean(products, case.covariance.detach(), "covariance of samples")
    close(case.q.covariance(), case.covariance)
    close(case.q.variance.flatten(), case.covariance.diagonal())


@pytest.mark.checklist("MN1")
def test_the_scale_ambiguity_of_the_factors_changes_nothing():
    case, w = Case("triangular"), torch.randn(4, 3)
    rows, columns = Triangular(7 * case.row_tensors[0]), Triangular(case.column_tensors[0] / 7)
    rescaled = KroneckerNormal(case.loc, rows, columns)
    close(rescaled.log_prob(w), case.q.log_prob(w))
    close(rescaled.entropy(), case.q.entropy())


# KL from a diagonal prior


@pytest.mark.checklist("MN2")
@over_shapes
@over_factors
def test_kl_from_a_diagonal_prior(kind, shape):
    case = Case(kind, shape)
    prior_scale = (0.3 + torch.rand(shape)).requires_grad_()
    prior_loc = torch.randn(shape)
    kl = kl_divergence(case.q, Normal(prior_loc, prior_scale))
    dense_prior = MultivariateNormal(prior_loc.flatten(), torch.diag(prior_scale.flatten() ** 2))
    expected = kl_divergence(case.dense, dense_prior)
    close(kl, expected)
    assert_same_gradients(kl, expected, [*case.leaves, prior_scale])


@pytest.mark.checklist("MN2")
def test_kl_follows_algorithm_1_with_its_corrections():
    """Squared prior scales in the trace, halved once, and the missing −nm [matrix normal, algorithm
    1].
    """
    case = Case("triangular")
    a, b = case.row_tensors[0], case.column_tensors[0]
    n, m = case.shape
    s = 0.3 + torch.rand(case.shape)
    log_determinants = 2 * s.log().sum()
    log_determinants -= 2 * m * a.diagonal().log().sum() + 2 * n * b.diagonal().log().sum()
    second = torch.outer((a @ a.mT).diagonal(), (b @ b.mT).diagonal()) + case.loc**2
    expected = 0.5 * (log_determinants + (second / s**2).sum() - n * m)
    close(kl_divergence(case.q, Normal(0.0, s)), expected)
    as_printed = 0.5 * (log_determinants + (second / s).sum())
    assert not torch.isclose(kl_divergence(case.q, Normal(0.0, s)), as_printed)


@pytest.mark.checklist("MN2")
def test_kl_is_zero_only_at_the_prior():
    case = Case("diagonal")
    scale = torch.outer(case.row_tensors[0], case.column_tensors[0])
    close(kl_divergence(case.q, Normal(case.loc, scale)), 0.0)
    assert kl_divergence(case.q, Normal(case.loc, 1.01 * scale)) > 0
    assert kl_divergence(case.q, Normal(case.loc + 0.01, scale)) > 0
    correlated = Case("triangular")
    marginal = Normal(correlated.loc, correlated.q.variance.sqrt())
    assert kl_divergence(correlated.q, marginal) > 0


@pytest.mark.checklist("MN2")
@pytest.mark.parametrize("rank", [None, 0])
def test_kl_is_zero_where_the_recipe_starts_at_its_prior(rank):
    weight = torch.zeros(4, 3)
    q = lb.posteriors.MatrixNormal(scale=0.3, rank=rank)(weight, Linear())
    close(kl_divergence(q(), lb.priors.Normal(0.3)(weight)()), 0.0)


# the law of the outputs


@pytest.mark.checklist("MN3")
@with_and_without_diagonal
@over_factors
def test_outputs_of_a_dense_layer_have_covariance_quadratic_form_times_rows(kind, diagonal):
    case, x = Case(kind, diagonal=diagonal), torch.randn(2, 3)
    moments = case.q.moments(x, Linear())
    close(moments.mean, x @ case.loc.mT)
    close(moments.covariance(Linear()), case.outputs_covariance(x))
    if not diagonal:
        quadratic = torch.einsum("bi,ij,bj->b", x, case.columns, x)
        close(moments.covariance(Linear()), quadratic[:, None, None] * case.rows)
    y = case.q.moments(x.expand(SAMPLES, 2, 3), Linear()).rsample(Linear()).detach()
    assert_mean(y, moments.mean.detach(), "mean of local outputs")
    centered = y - moments.mean.detach()
    products = centered[..., :, None] * centered[..., None, :]
    assert_mean(products, case.outputs_covariance(x).detach(), "covariance of local outputs")


@pytest.mark.checklist("MN3")
@with_and_without_diagonal
@over_factors
def test_outputs_of_a_convolution_have_that_covariance_at_every_patch(kind, diagonal):
    case, op = Case(kind, (3, 8), diagonal), Conv((2, 2), stride=(1, 2))
    x = torch.randn(2, 2, 3, 4)
    moments = case.q.moments(x, op)
    patches = torch.nn.functional.unfold(x, (2, 2), stride=(1, 2)).mT.reshape(-1, 8)
    close(moments.mean.movedim(1, -1).reshape(-1, 3), patches @ case.loc.mT)
    close(moments.covariance(op).reshape(-1, 3, 3), case.outputs_covariance(patches))


@pytest.mark.checklist("MN3")
def test_noise_is_finite_where_the_printed_square_root_is_not():
    """The paper's ``√(xᵀAx)`` is NaN wherever ``xᵀAx < 0``; ``‖Aᵀx‖`` never is."""
    lower = torch.tensor([[1.0, 0.0], [-5.0, 1.0]])
    x = torch.tensor([[1.0, 1.0]])
    assert (x @ lower @ x.mT).item() < 0
    q = KroneckerNormal(torch.zeros(3, 2), Triangular(torch.eye(3)), Triangular(lower))
    moments = q.moments(x, Linear())
    close(moments.covariance(Linear())[0], (lower.mT @ x.mT).square().sum() * torch.eye(3))
    assert moments.rsample(Linear()).isfinite().all()


# independent automatic relevance determination


@pytest.mark.checklist("MN4")
@over_factors
def test_ard_is_the_optimum_over_independent_precisions(kind):
    case = Case(kind)
    second = case.loc**2 + case.covariance.diagonal().reshape(case.shape)
    log_precision = (-second.log()).detach().requires_grad_()

    def kl(log_precision):
        return kl_divergence(case.q, Normal(0.0, (-0.5 * log_precision).exp()))

    optimum = kl(log_precision)
    close(torch.autograd.grad(optimum, log_precision)[0], torch.zeros(case.shape))
    close(kl_divergence(case.q, RelevanceNormal()), optimum)
    for _ in range(5):
        assert kl(log_precision + 0.3 * torch.randn(case.shape)) > optimum


@pytest.mark.checklist("MN4")
@over_factors
def test_ard_costs_the_hadamard_gap_more_than_independent_weights(kind):
    case = Case(kind)
    variance = case.covariance.diagonal()
    independent = 0.5 * (1 + case.loc.flatten() ** 2 / variance).log().sum()
    gap = 0.5 * (variance.log().sum() - torch.logdet(case.covariance))
    close(kl_divergence(case.q, RelevanceNormal()), independent + gap)
    close(case.q.total_correlation(), gap)
    if kind == "diagonal":
        close(gap, 0.0)
    else:
        assert gap > 1e-3


# relevances of rows and columns


def layer_with_group_prior() -> lb.extend.Affine:
    """A layer whose rows and columns differ in size, so that the relevances do too."""
    layer = nn.Linear(3, 4, bias=False)
    with torch.no_grad():
        layer.weight.mul_(torch.outer(torch.logspace(-1, 1, 4), torch.logspace(1, -1, 3)))
    return lb.convert(layer, lb.posteriors.MatrixNormal(scale=0.3), lb.priors.GroupARD(scale=0.5))


@pytest.mark.checklist("MN5")
def test_gradient_and_block_updates_agree():
    model = layer_with_group_prior()
    minimize(model.kl, list(model.prior.parameters()))
    by_gradient, kl_by_gradient = model.prior().scale, model.kl()
    for start in (0.1, 1.0, 30.0):
        model.prior = lb.priors.GroupARD(scale=start)(torch.zeros(4, 3))
        close(model.prior().scale, start * torch.ones(4, 3))
        lb.training.update_priors(model, rounds=100)
        close(model.prior().scale, by_gradient, 1e-6)
        close(model.kl(), kl_by_gradient, 1e-6)


@pytest.mark.checklist("MN5")
def test_block_updates_are_the_printed_ones_and_never_raise_the_kl():
    case = Case("triangular")
    second = (case.loc**2 + case.covariance.diagonal().reshape(case.shape)).detach()
    prior = GroupRelevanceNormal(0.5 + torch.rand(4), 0.5 + torch.rand(3))
    before = kl_divergence(case.q, prior)
    for _ in range(5):
        gamma = prior.column_precision
        prior = prior.updated(case.q)
        tau = torch.stack([3 / (gamma * second[i]).sum() for i in range(4)])
        close(prior.row_precision.detach(), tau)
        gamma = torch.stack([4 / (tau * second[:, j]).sum() for j in range(3)])
        close(prior.column_precision.detach(), gamma)
        after = kl_divergence(case.q, prior)
        assert after <= before + 1e-12
        before = after


@pytest.mark.checklist("MN5")
def test_only_the_products_of_relevances_count():
    case, tau, gamma = Case("triangular"), torch.rand(4) + 0.5, torch.rand(3) + 0.5
    rescaled = kl_divergence(case.q, GroupRelevanceNormal(9 * tau, gamma / 9))
    close(kl_divergence(case.q, GroupRelevanceNormal(tau, gamma)), rescaled)
    scale = torch.tensor([[(t * g) ** -0.5 for g in gamma] for t in tau])
    close(kl_divergence(case.q, Normal(0.0, scale)), rescaled)


# plus a diagonal


def exact_entropy(covariance: Tensor) -> Tensor:
    return MultivariateNormal(torch.zeros(len(covariance)), covariance).entropy()


@pytest.mark.checklist("MN7")
@over_shapes
@over_factors
def test_entropy_lies_between_the_simple_bounds_and_the_exact_one(kind, shape):
    case = Case(kind, shape, diagonal=True)
    exact = exact_entropy(case.covariance)
    simple = [exact_entropy(case.kronecker), exact_entropy(torch.diag(case.scale.flatten() ** 2))]
    bound = case.q.entropy()
    assert bound <= exact + 1e-10
    assert bound > max(simple) + 1e-3
    if kind == "diagonal" or shape == (1, 1):
        close(bound, exact)
    n = math.prod(shape)
    minkowski = (torch.stack(simple) * 2 / n).logsumexp(0) * n / 2
    if kind != "diagonal":
        close(bound, minkowski)


@pytest.mark.checklist("MN7")
def test_the_bound_is_exact_where_the_parts_are_proportional():
    scale = torch.outer(0.5 + torch.rand(4), 0.5 + torch.rand(3))
    rows, columns = scale[:, 0] / scale[0, 0], scale[0]
    q = KroneckerNormal(
        torch.zeros(4, 3), Triangular(torch.diag(rows)), Triangular(torch.diag(columns)), 2 * scale
    )
    close(q.entropy(), exact_entropy(torch.diag(5 * scale.flatten() ** 2)))


@pytest.mark.checklist("MN7")
@pytest.mark.parametrize("tiny", ["diagonal", "kronecker"])
def test_the_bound_is_exact_where_one_part_vanishes(tiny):
    case = Case("triangular", diagonal=True)
    with torch.no_grad():
        (case.scale if tiny == "diagonal" else case.row_tensors[0]).mul_(1e-9)
    close(case.q.entropy(), exact_entropy(case.covariance), 1e-6)


@pytest.mark.checklist("MN7")
@pytest.mark.parametrize("ard", [True, False], ids=["ard", "group_ard"])
@over_factors
def test_the_kl_is_too_large_by_what_the_entropy_is_too_small(kind, ard):
    case = Case(kind, diagonal=True)
    second = case.loc**2 + case.covariance.diagonal().reshape(case.shape)
    prior = (
        RelevanceNormal() if ard else GroupRelevanceNormal(0.5 + torch.rand(4), 0.5 + torch.rand(3))
    )
    scale = second.sqrt() if ard else prior.scale
    dense_prior = MultivariateNormal(torch.zeros(12), torch.diag(scale.flatten() ** 2))
    exact = kl_divergence(case.dense, dense_prior)
    excess = kl_divergence(case.q, prior) - exact
    close(excess, exact_entropy(case.covariance) - case.q.entropy())
    assert excess >= -1e-10
    assert (excess > 1e-3) == (kind != "diagonal")


# exponential annealing of the KL


@pytest.mark.checklist("MN11")
@pytest.mark.parametrize("start", [1e-4, 1e-3, 0.1])
def test_exponential_annealing_multiplies_the_weight_by_the_same_factor_each_epoch(start):
    schedule = lb.training.schedules.Exponential(300, start=start)
    weights = torch.tensor([schedule(epoch) for epoch in range(301)])
    assert schedule(0) == pytest.approx(start)
    close(weights, torch.logspace(math.log10(start), 0, 301))
    assert [schedule(epoch) for epoch in (300, 301, 1000)] == [1.0, 1.0, 1.0]


@pytest.mark.checklist("MN11")
def test_the_schedule_weighs_the_kl_of_the_objective():
    weight = lb.training.schedules.Exponential(10, start=0.01)(5)
    nll, kl = torch.tensor(2.0), torch.tensor(300.0)
    close(lb.elbo(nll, kl, data_size=100, weight=weight).loss, 2.0 + 0.1 * 3.0)


# a matrix of one column is a vector


@pytest.mark.checklist("MN13")
@pytest.mark.parametrize("shape", [(5, 1), (1, 5)], ids=["|z|×1", "1×|z|"])
def test_one_column_or_row_is_the_full_multivariate_normal(shape):
    lower, loc, one = *random_factor("triangular", 5), torch.randn(5), Triangular(torch.eye(1))
    factors = (Triangular(lower), one) if shape == (5, 1) else (one, Triangular(lower))
    q, mvn = (
        KroneckerNormal(loc.reshape(shape), *factors),
        MultivariateNormal(loc, scale_tril=lower),
    )
    z = torch.randn(7, 5)
    close(q.log_prob(z.reshape(7, *shape)), mvn.log_prob(z))
    close(q.entropy(), mvn.entropy())
    standard = MultivariateNormal(torch.zeros(5), torch.eye(5))
    close(kl_divergence(q, Normal(0.0, torch.tensor(1.0))), kl_divergence(mvn, standard))
    centered = q.rsample((SAMPLES,)).flatten(1) - loc
    assert_mean(centered[:, :, None] * centered[:, None, :], lower @ lower.mT, "covariance")


@pytest.mark.checklist("MN13")
@pytest.mark.parametrize(
    ("shape", "published"), [((20, 2), 253), ((3, 3), 21), ((40, 1), 860), ((9, 1), 54)], ids=str
)
def test_numbers_per_latent_matrix_are_the_published_ones(shape, published):
    """A matrix of one column has one number more: its 1×1 factor, which is not identified."""
    learned = lb.posteriors.MatrixNormal()(torch.zeros(shape), Linear())
    numbers = sum(p.numel() for p in learned.parameters())
    assert numbers == published + (shape[1] == 1)


# one learned prior variance


@pytest.mark.checklist("MN14")
@pytest.mark.parametrize("learn", ["layer", "model"])
def test_the_optimal_prior_variance_is_the_mean_second_moment(learn):
    net = nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 2))
    nn.init.normal_(net[2].weight, std=2.0)
    model = lb.convert(
        net, lb.posteriors.MatrixNormal(scale=0.3), lb.priors.Normal(0.7, learn=learn)
    )
    layers = [model[0], model[2]]
    second = [q.variance + q.mean**2 for q in (layer.posterior() for layer in layers)]
    if learn == "model":
        second = [torch.cat([s.flatten() for s in second])] * 2
    log_scales = list({layer.prior.get_parameter("scale") for layer in layers})
    assert len(log_scales) == (2 if learn == "layer" else 1)
    minimize(lambda: lb.kl(model), log_scales)
    for layer, expected in zip(layers, second, strict=True):
        close(layer.prior().scale ** 2, expected.mean(), 1e-6)
