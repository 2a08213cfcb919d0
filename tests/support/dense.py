"""Dense multivariate normals: the oracle of every structured posterior and op."""

import dataclasses

import torch
from registry import OPS, POSTERIORS, PRIORS
from torch import distributions as td
from torch import nn

import leanbayes as lb
from leanbayes.layers.matrix_layers import OuterProduct
from leanbayes.layers.transformers import TransposedLinear
from leanbayes.ops import Conv, ConvTranspose, Lookup

VALUE = {"rtol": 1e-10, "atol": 1e-10}
GRADIENT = {"rtol": 1e-8, "atol": 1e-8}
SOFTPLUS_FLOOR = 1e-7

DENSE = {
    **{
        name: recipe
        for name, recipe in POSTERIORS.items()
        if not isinstance(recipe, lb.Rank1 | lb.posteriors.LowRank)
    },
    "independent_plus_diagonal": lb.posteriors.MatrixNormal(scale=0.3, rank=0, diagonal=True),
}
RANK1 = {name: recipe for name, recipe in POSTERIORS.items() if isinstance(recipe, lb.Rank1)}
NORMAL = [
    name
    for name, recipe in DENSE.items()
    if not isinstance(recipe, lb.posteriors.Point)
    and getattr(recipe, "noise", "normal") == "normal"
]
BOUNDED = ["matrix_normal_plus_diagonal"]
EXACT = [name for name in NORMAL if name not in BOUNDED]
NORMAL_PRIORS = [
    name
    for name, recipe in PRIORS.items()
    if isinstance(recipe, lb.priors.Normal | lb.priors.He | lb.priors.ARD | lb.priors.GroupARD)
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


def absolute(learned):
    """The stored tensors, logarithms of scales without the unit in which they are stored."""
    origins = {name: getattr(t, "origin", 0.0) for name, t in learned.transforms.items()}
    return {name: p + origins.get(name, 0.0) for name, p in learned.named_parameters()}


def std_of(scale, raw):
    """The standard deviation that a stored tensor means."""
    match lb.posteriors.Scale.of(scale).stored:
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
    recipe, stored = learned.spec, absolute(learned)
    if isinstance(recipe, lb.posteriors.Pruned):
        assert learned.mask.all()
        recipe = recipe.base
    loc = op.matrix(stored["loc"]) if "loc" in stored else torch.zeros_like(stored["scale"])
    match recipe:
        case lb.posteriors.Point():
            variance = torch.zeros_like(loc)
        case lb.MeanField() | lb.posteriors.ZeroMean():
            variance = std_of(recipe.scale, stored["scale"]).square()
        case lb.posteriors.VariationalDropout(alpha="additive"):
            variance = stored["scale"].exp()
        case lb.posteriors.VariationalDropout():
            variance = stored["log_alpha"].exp() * loc.square()
        case lb.KTied():
            u, v = stored["u"].exp(), stored["v"].exp()
            variance = torch.einsum("ki,kj->ij", u, v).square()
        case lb.posteriors.MatrixNormal():
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
    stored = absolute(prior)
    loc, variance = torch.zeros_like(mean), torch.ones_like(mean)
    match prior.spec:
        case lb.priors.Normal(learn=None):
            loc, variance = loc + prior.spec.loc, variance * prior.spec.scale**2
        case lb.priors.Normal():
            variance = variance * (2 * stored["scale"]).exp()
        case lb.priors.He():
            variance = variance * 2 / columns
        case lb.priors.GroupARD():
            tau, gamma = stored["row_precision"].exp(), stored["column_precision"].exp()
            variance = (1 / (tau.unsqueeze(-1) * gamma)).flatten()
        case lb.priors.ARD():
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
