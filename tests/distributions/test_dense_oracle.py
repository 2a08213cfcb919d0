"""Every posterior × op against an explicit multivariate normal of ``vec W``, values and gradients.

The oracle knows the stored tensors and the papers' formulas; it shares no code with the library
except :meth:`LinearOp.matrix`, and the op itself, which is compared with torch's own layers first.
"""

import math

import pytest
import torch
from dense import (
    BOUNDED,
    DENSE,
    EXACT,
    KL_CASES,
    NORMAL_PRIORS,
    RANK1,
    SOFTPLUS_FLOOR,
    VALUE,
    _torch_layer,
    assert_agree,
    case,
    dense_op,
    dense_prior,
    moved,
)
from registry import OPS, PRIORS
from torch import distributions as td


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
        with pytest.raises(ValueError, match=r"use estimator=lb\.estimators\.weights"):
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
    independent = learned.value("diagonal").square().flatten()
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
