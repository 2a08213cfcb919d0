"""Every posterior × op against an explicit multivariate normal of ``vec W``, values and gradients.

The oracle knows the stored tensors and the papers' formulas; it shares no code with the library
except :meth:`LinearOp.matrix`, and the op itself, which is compared with torch's own layers first.
"""

import dataclasses
import math

import pytest
import torch
from torch import distributions as td
from torch import nn

import leanbayes as lb
from leanbayes.layers.bilinear import OuterProduct
from leanbayes.layers.hugging_face import TransposedLinear
from leanbayes.ops import Conv, ConvTranspose, Lookup
from registry import OPS, POSTERIORS, PRIORS

VALUE = {"rtol": 1e-10, "atol": 1e-10}
GRADIENT = {"rtol": 1e-8, "atol": 1e-8}
SOFTPLUS_FLOOR = 1e-7

DENSE = {
    **{
        name: recipe
        for name, recipe in POSTERIORS.items()
        if not isinstance(recipe, lb.Rank1 | lb.LowRank)
    },
    "independent_plus_diagonal": lb.MatrixNormal(scale=0.3, rank=0, diagonal=True),
}
RANK1 = {name: recipe for name, recipe in POSTERIORS.items() if isinstance(recipe, lb.Rank1)}
NORMAL = [
    name
    for name, recipe in DENSE.items()
    if not isinstance(recipe, lb.Point) and getattr(recipe, "noise", "normal") == "normal"
]
BOUNDED = ["matrix_normal_plus_diagonal"]
EXACT = [name for name in NORMAL if name not in BOUNDED]
NORMAL_PRIORS = [
    name
    for name, recipe in PRIORS.items()
    if isinstance(recipe, lb.Normal | lb.He | lb.ARD | lb.GroupARD)
]

KL_CASES = [
    (prior, op)
    for prior in NORMAL_PRIORS
    for op in OPS
    if prior == "normal" or op in ("linear", "conv_transpose2d_grouped")
]


def moved(learned):
    """A learned distribution away from its (often too regular) first values."""
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return learned


def std_of(scale, raw):
    """The standard deviation that a stored tensor means."""
    match lb.Scale.of(scale).stored:
        case "log":
            return raw.exp()
        case "log_variance":
            return (raw / 2).exp()
        case "softplus":
            return raw.exp().log1p() + SOFTPLUS_FLOOR
        case "signed":
            return raw.abs()


def factor_covariance(log_diagonal, other, rank):
    """``F Fᵀ`` of one side of a matrix normal."""
    if rank is not None:
        return torch.diag((2 * log_diagonal).exp()) + other @ other.T
    n = len(log_diagonal)
    lower = torch.zeros(n, n, dtype=other.dtype)
    lower[tuple(torch.tril_indices(n, n, -1))] = other
    lower = lower + torch.diag(log_diagonal.exp())
    return lower @ lower.T


def dense(learned, op):
    """Mean ``[out · in]`` and covariance of row-major ``vec W``, from the stored tensors alone."""
    recipe, stored = learned.spec, dict(learned.named_parameters())
    if isinstance(recipe, lb.Pruned):
        assert learned.mask.all()
        recipe = recipe.base
    loc = op.matrix(stored["loc"]) if "loc" in stored else torch.zeros_like(stored["scale"])
    match recipe:
        case lb.Point():
            variance = torch.zeros_like(loc)
        case lb.MeanField() | lb.ZeroMean():
            variance = std_of(recipe.scale, stored["scale"]).square()
        case lb.Dropout(alpha="additive"):
            variance = stored["scale"].exp()
        case lb.Dropout():
            variance = stored["log_alpha"].exp() * loc.square()
        case lb.KTied():
            u, v = stored["u"].exp(), stored["v"].exp()
            variance = torch.einsum("ki,kj->ij", u, v).square()
        case lb.MatrixNormal():
            rows, columns = (
                factor_covariance(stored[f"{side}_scale"], stored[f"{side}_factor"], recipe.rank)
                for side in ("row", "column")
            )
            covariance = torch.einsum("ik,jl->ijkl", rows, columns).reshape(loc.numel(), -1)
            if recipe.diagonal:
                covariance = covariance + torch.diag((2 * stored["diagonal"]).exp().flatten())
            return loc.flatten(), covariance
    return loc.flatten(), torch.diag(variance.flatten())


def dense_prior(prior, mean, covariance, columns):
    """The multivariate normal that a normal prior of ``vec W`` is."""
    stored = dict(prior.named_parameters())
    loc, variance = torch.zeros_like(mean), torch.ones_like(mean)
    match prior.spec:
        case lb.Normal(learn=None):
            loc, variance = loc + prior.spec.loc, variance * prior.spec.scale**2
        case lb.Normal():
            variance = variance * (2 * stored["scale"]).exp()
        case lb.He():
            variance = variance * 2 / columns
        case lb.GroupARD():
            tau, gamma = stored["row_precision"].exp(), stored["column_precision"].exp()
            variance = (1 / (tau.unsqueeze(-1) * gamma)).flatten()
        case lb.ARD():
            variance = covariance.diagonal() + mean.square()
    return td.MultivariateNormal(loc, torch.diag(variance))


def dense_op(example, x):
    """What the op makes of every basis matrix: ``[out · in, …, channels]``."""
    rows, columns = example.op.matrix(example.weight()).shape
    basis = torch.eye(rows * columns, dtype=torch.float64).reshape(-1, rows, columns)
    return torch.stack([example.op(x, e).movedim(example.op.channel_dim, -1) for e in basis])


def gradient(value, direction, parameters):
    nothing = sum(0 * p.sum() for p in parameters)
    return torch.autograd.grad((value * direction).sum() + nothing, parameters, retain_graph=True)


def assert_agree(ours, theirs, *modules):
    """Equal values, and equal gradients with respect to every parameter of the modules."""
    parameters = [p for module in modules for p in module.parameters()]
    torch.testing.assert_close(ours, theirs, **VALUE)
    direction = torch.randn_like(theirs)
    torch.testing.assert_close(
        gradient(ours, direction, parameters), gradient(theirs, direction, parameters), **GRADIENT
    )


def case(posterior, op):
    example = OPS[op]
    learned = moved(DENSE[posterior](example.weight(), example.op))
    return example, learned, *dense(learned, example.op)


class _Einsum(nn.Module):
    """A layer that torch has for two inputs (bilinear), or does not have (GPT-2's)."""

    def __init__(self, equation, sizes, shape):
        super().__init__()
        self.equation, self.sizes = equation, sizes
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return torch.einsum(self.equation, x.unflatten(-1, self.sizes), self.weight)


def _torch_layer(example):
    op, shape = example.op, example.weight_shape
    if isinstance(op, TransposedLinear):
        return _Einsum("bi,io->bo", shape[:1], shape)
    if isinstance(op, OuterProduct):
        return _Einsum("bij,oij->bo", op.sizes, shape)
    if isinstance(op, Lookup):
        return nn.Embedding(*shape, padding_idx=op.padding_index)
    if not isinstance(op, Conv | ConvTranspose):
        return nn.Linear(shape[1], shape[0], bias=False)
    name = "ConvTranspose" if isinstance(op, ConvTranspose) else "Conv"
    kind = getattr(nn, f"{name}{len(op.kernel_size)}d")
    channels = (shape[0], shape[1] * op.groups)
    channels = channels if isinstance(op, ConvTranspose) else channels[::-1]
    return kind(*channels, bias=False, **dataclasses.asdict(op))


@pytest.mark.parametrize("op", OPS)
def test_op_is_torchs_own_layer(op):
    example = OPS[op]
    layer, x = _torch_layer(example).double(), example.input()
    assert layer.weight.shape == example.weight_shape
    torch.testing.assert_close(example.op(x, example.op.matrix(layer.weight)), layer(x), **VALUE)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("posterior", DENSE)
def test_mean_variance_and_covariance(posterior, op):
    _, learned, mean, covariance = case(posterior, op)
    q = learned()
    assert_agree(q.mean.flatten(), mean, learned)
    assert_agree(q.variance.flatten(), covariance.diagonal(), learned)
    assert_agree(q.covariance(), covariance, learned)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("posterior", DENSE)
def test_moments_of_the_outputs(posterior, op):
    example, learned, mean, covariance = case(posterior, op)
    q, x = learned(), example.input()
    if example.op.groups > 1 and not q.independent:
        with pytest.raises(ValueError, match=r"use estimator=lb\.weights"):
            q.moments(x, example.op)
        return
    outputs = dense_op(example, x)
    moments = q.moments(x, example.op)
    expected = torch.einsum("n...a,n->...a", outputs, mean)
    ours = moments.mean.expand(example.op(x, q.mean).shape).movedim(example.op.channel_dim, -1)
    assert_agree(ours, expected, learned)
    law = torch.einsum("n...a,nm,m...b->...ab", outputs, covariance, outputs)
    assert_agree(moments.covariance(example.op), law, learned)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("posterior", EXACT)
def test_entropy_and_density(posterior, op):
    _, learned, mean, covariance = case(posterior, op)
    q, oracle = learned(), td.MultivariateNormal(mean, covariance)
    assert_agree(q.entropy(), oracle.entropy(), learned)
    if posterior in ("independent_plus_diagonal", "pruned"):
        return  # no density in closed form
    w = (2 * oracle.sample((3,))).unflatten(-1, q.event_shape)
    assert_agree(q.log_prob(w), oracle.log_prob(w.flatten(1)), learned)


@pytest.mark.parametrize(("prior", "op"), KL_CASES)
@pytest.mark.parametrize("posterior", EXACT)
def test_kl(posterior, prior, op):
    example, learned, mean, covariance = case(posterior, op)
    learned_prior = moved(PRIORS[prior](example.op.matrix(example.weight())))
    p = dense_prior(learned_prior, mean, covariance, example.columns)
    expected = td.kl_divergence(td.MultivariateNormal(mean, covariance), p)
    assert_agree(td.kl_divergence(learned(), learned_prior()), expected, learned, learned_prior)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("posterior", BOUNDED)
def test_entropy_with_a_correlated_and_a_diagonal_part_is_the_tightest_lower_bound(posterior, op):
    """Minkowski's ``|A + B|^{1/n} ≥ |A|^{1/n} + |B|^{1/n}``, above what either part would give."""
    _, learned, mean, covariance = case(posterior, op)
    n, entropy = len(mean), learned().entropy()
    independent = (2 * learned.diagonal).exp().flatten()
    kronecker = torch.linalg.slogdet(covariance - torch.diag(independent)).logabsdet
    roots = [(logdet / n).exp() for logdet in (kronecker, independent.log().sum())]
    bound, *looser = (
        0.5 * n * (root.log() + math.log(2 * math.pi * math.e)) for root in (sum(roots), *roots)
    )
    assert_agree(entropy, bound, learned)
    assert max(looser) < entropy < td.MultivariateNormal(mean, covariance).entropy()


@pytest.mark.parametrize("prior", NORMAL_PRIORS)
@pytest.mark.parametrize("posterior", BOUNDED)
def test_kl_is_off_by_the_entropy_bound_alone(posterior, prior):
    example, learned, mean, covariance = case(posterior, "linear")
    learned_prior = moved(PRIORS[prior](example.weight()))
    q, oracle = learned(), td.MultivariateNormal(mean, covariance)
    p = dense_prior(learned_prior, mean, covariance, example.columns)
    cross_entropy = td.kl_divergence(oracle, p) + oracle.entropy()
    ours = td.kl_divergence(q, learned_prior()) + q.entropy()
    assert_agree(ours, cross_entropy, learned, learned_prior)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("posterior", RANK1)
def test_rank_one_mean_and_variance_of_every_member(posterior, op):
    example, recipe = OPS[op], RANK1[posterior]
    learned = moved(recipe(example.weight(), example.op))
    stored, q = dict(learned.named_parameters()), learned()
    weight, columns = example.op.matrix(stored["weight"]), example.columns
    kinds = recipe.factors if isinstance(recipe.factors, tuple) else (recipe.factors,) * 2
    first, second = [], []
    for name, kind in zip("rs", kinds, strict=True):
        loc, raw = stored.get(f"{name}_loc"), stored.get(f"{name}_scale")
        scale = None if raw is None else raw.exp().log1p() + SOFTPLUS_FLOOR
        one, two = _raw_moments(kind, loc, scale)
        if one is None:
            n = len(weight) if name == "r" else example.op.input_channels(columns)
            one = two = torch.ones(recipe.members, n, dtype=torch.float64)
        first.append(one)
        second.append(two)
    mean = torch.stack([_scaled(weight, r, s, example.op) for r, s in zip(*first, strict=True)])
    square = torch.stack(
        [_scaled(weight.square(), r, s, example.op) for r, s in zip(*second, strict=True)]
    )
    assert_agree(q.mean.reshape(mean.shape), mean, learned)
    if kinds[0] in ("cauchy", "halfcauchy"):
        assert not q.variance.isfinite().any()
    else:
        assert_agree(q.variance.reshape(mean.shape), square - mean.square(), learned)


def _raw_moments(kind, loc, scale):
    """``E z`` (the median of a heavy tail) and ``E z²`` of a factor."""
    match kind:
        case "none":
            return None, None
        case "fixed":
            return loc, loc.square()
        case "normal":
            return loc, loc.square() + scale.square()
        case "lognormal":
            return (loc + scale.square() / 2).exp(), (2 * loc + 2 * scale.square()).exp()
        case "cauchy":
            return loc, torch.full_like(loc, math.inf)
        case "halfcauchy":
            return scale, torch.full_like(scale, math.inf)


def _scaled(weight, r, s, op):
    """``w_ij r_i s_c(i, j)``, entry by entry: column j of row i reads input channel c."""
    rows, columns = weight.shape
    kernel = math.prod(getattr(op, "kernel_size", ()))
    channels = columns // kernel
    c = [
        [i * op.groups // rows * channels + j // kernel for j in range(columns)]
        for i in range(rows)
    ]
    return weight * r.unsqueeze(-1) * s[torch.tensor(c)]
