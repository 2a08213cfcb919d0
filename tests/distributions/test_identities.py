"""Families that meet: what two definitions of the same distribution must agree on."""

import math

import pytest
import torch
from dense import DENSE, EXACT, dense, moved
from registry import OPS, POSTERIORS, PRIORS, suitable_prior
from torch import distributions as td
from torch.distributions import kl_divergence

import leanbayes as lb
from leanbayes.distributions import (
    DiagonalLowRank,
    KroneckerNormal,
    KTiedNormal,
    LocationScale,
    Masked,
    Rank1Mixture,
)
from leanbayes.ops import Conv, Linear

CLOSED_PRIORS = [
    name
    for name, recipe in PRIORS.items()
    if isinstance(
        recipe,
        lb.priors.Normal
        | lb.priors.He
        | lb.priors.ARD
        | lb.priors.GroupARD
        | lb.priors.LogUniform
        | lb.priors.Laplace
        | lb.priors.Flat,
    )
]
SINGLE = [name for name, recipe in POSTERIORS.items() if getattr(recipe, "members", 1) == 1]
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_same(a, b):
    torch.testing.assert_close(a, b, **TIGHT)


def assert_same_outputs(q, other, op, x):
    """Equal laws of the outputs at every position."""
    for moments in zip(
        _mean_and_covariance(q, op, x), _mean_and_covariance(other, op, x), strict=True
    ):
        assert_same(*moments)


def _mean_and_covariance(q, op, x):
    moments = q.moments(x, op)
    return moments.mean.expand(op(x, q.mean).shape), moments.covariance(op)


def one_tied_and_matrix_normal(example):
    rows, columns = example.op.matrix(example.weight()).shape
    loc, u, v = randn(rows, columns), randn(rows).exp(), randn(columns).exp()
    tied = KTiedNormal(loc, u.unsqueeze(0), v.unsqueeze(0))
    return tied, KroneckerNormal(loc, DiagonalLowRank(u), DiagonalLowRank(v))


@pytest.mark.parametrize("op", OPS)
def test_one_tied_is_the_matrix_normal_with_diagonal_factors(op):
    example = OPS[op]
    tied, matrix_normal = one_tied_and_matrix_normal(example)
    assert_same(tied.mean, matrix_normal.mean)
    assert_same(tied.variance, matrix_normal.variance)
    assert_same(tied.covariance(), matrix_normal.covariance())
    assert_same(tied.entropy(), matrix_normal.entropy())
    assert_same(tied.entropies(), matrix_normal.entropies())
    w = randn(5, *tied.event_shape)
    assert_same(tied.log_prob(w), matrix_normal.log_prob(w))
    assert_same_outputs(tied, matrix_normal, example.op, example.input())


@pytest.mark.parametrize("prior", CLOSED_PRIORS)
def test_one_tied_and_the_diagonal_matrix_normal_have_one_kl(prior):
    tied, matrix_normal = one_tied_and_matrix_normal(OPS["linear"])
    p = moved(PRIORS[prior](tied.mean))()
    assert_same(kl_divergence(tied, p), kl_divergence(matrix_normal, p))


@pytest.mark.parametrize(
    "estimator", [lb.estimators.mean, lb.estimators.weights, lb.estimators.local]
)
@pytest.mark.parametrize("op", OPS)
def test_rank_one_with_zero_scale_is_batch_ensemble(op, estimator):
    """``y = r_k ∘ op(x ∘ s_k, W)`` for the block of member k, whatever noise is asked for."""
    example, members = OPS[op], 3
    weight = example.op.matrix(example.weight())
    r, s = randn(members, len(weight)), randn(members, example.op.input_channels(example.columns))
    x = example.input()
    batch_ensemble = Rank1Mixture(weight, r, s, example.op)
    quiet = Rank1Mixture(
        weight,
        td.Normal(r, 0.0, validate_args=False),
        td.Normal(s, 0.0, validate_args=False),
        example.op,
    )
    usage = example.op.usage(x)
    y = estimator(quiet, example.op, usage)(x)
    assert_same(y, estimator(batch_ensemble, example.op, usage)(x))
    blocks = [
        example.op(block, weight * example.op.column_factor(s[k], len(weight)) * r[k, :, None])
        for k, block in enumerate(x.chunk(members))
    ]
    torch.testing.assert_close(y, torch.cat(blocks), rtol=1e-10, atol=1e-10)
    assert_same(quiet.mean, batch_ensemble.mean)
    assert_same(quiet.variance, torch.zeros_like(quiet.mean))


def test_batch_ensemble_is_its_published_formula():
    """``((x ∘ s_k) Wᵀ) ∘ r_k``, with plain matrix products."""
    learned = lb.Rank1(members=3, factors="fixed")(randn(4, 5), Linear())
    x = randn(6, 5)
    y = lb.estimators.auto(learned(), Linear(), Linear().usage(x))(x)
    blocks = [
        (block * s) @ learned.weight.T * r
        for block, r, s in zip(x.chunk(3), learned.r_loc, learned.s_loc, strict=True)
    ]
    assert_same(y, torch.cat(blocks))


def minimized(function, start):
    """The minimum of a function over a tensor, by L-BFGS to machine precision."""
    at = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [at],
        max_iter=500,
        tolerance_grad=1e-13,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = function(at)
        value.backward()
        return value

    optimizer.step(closure)
    return function(at).detach(), at.detach()


@pytest.mark.parametrize("posterior", EXACT)
def test_learned_ard_is_the_closed_form_at_its_optimum(posterior):
    learned = moved(DENSE[posterior](randn(4, 3), Linear())).requires_grad_(False)
    q, (mean, covariance) = learned(), dense(learned, Linear())
    second = (covariance.diagonal() + mean.square()).reshape(4, 3)

    def kl(log_scale):
        return kl_divergence(q, td.Normal(torch.zeros(4, 3).double(), log_scale.exp()))

    least, log_scale = minimized(kl, 0.5 * second.log() + 0.3 * randn(4, 3))
    torch.testing.assert_close((2 * log_scale).exp(), second, rtol=1e-5, atol=0.0)
    closed = kl_divergence(q, lb.distributions.RelevanceNormal())
    torch.testing.assert_close(closed, least, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("posterior", ["mean_field", "k_tied_2", "matrix_normal", "zero_mean"])
def test_one_learned_scale_is_the_root_mean_square_at_its_optimum(posterior):
    learned = moved(POSTERIORS[posterior](randn(4, 3), Linear())).requires_grad_(False)
    mean, covariance = dense(learned, Linear())
    prior = lb.priors.Normal(1.0, learn="layer")(randn(4, 3))

    def kl(log_scale):
        return kl_divergence(learned(), torch.func.functional_call(prior, {"scale": log_scale}, ()))

    _, log_scale = minimized(kl, torch.zeros((), dtype=torch.float64))
    mean_square = (covariance.diagonal() + mean.square()).mean()
    torch.testing.assert_close((2 * log_scale).exp(), mean_square, rtol=1e-6, atol=0.0)


MASK_OPS = {
    "linear": (Linear(), (4, 3), (6, 3)),
    "conv": (Conv((2, 2)), (4, 2, 2, 2), (6, 2, 3, 3)),
}


def unmasked_and_masked(posterior, op, weight_shape):
    q = moved(POSTERIORS[posterior](randn(*weight_shape), op))()
    return q, Masked(q, torch.ones(q.event_shape, dtype=torch.float64))


@pytest.fixture
def seeded(request):
    """Call functions one by one, each from the same seed."""

    def run(*functions):
        for function in functions:
            torch.manual_seed(request.config.getoption("--seed"))
            yield function()

    return run


@pytest.mark.parametrize("posterior", SINGLE)
def test_a_mask_of_ones_changes_no_distribution(posterior, seeded):
    q, masked = unmasked_and_masked(posterior, Linear(), (4, 3))
    for name in ("event_shape", "independent", "normal_marginals", "sign_symmetric", "discrete"):
        assert getattr(masked, name) == getattr(q, name)
    assert_same(masked.mean, q.mean)
    assert_same(masked.variance, q.variance)
    assert_same(*seeded(lambda: q.rsample((5,)), lambda: masked.rsample((5,))))


@pytest.mark.parametrize("posterior", [n for n in SINGLE if n != "rank1_single"])
def test_a_mask_of_ones_changes_no_covariance(posterior):
    q, masked = unmasked_and_masked(posterior, Linear(), (4, 3))
    assert_same(masked.covariance(), q.covariance())


@pytest.mark.parametrize("posterior", SINGLE)
def test_a_mask_of_ones_changes_no_entropy_of_independent_weights(posterior):
    q, masked = unmasked_and_masked(posterior, Linear(), (4, 3))
    for name in ("entropies", "entropy"):
        if not q.independent or q.discrete:
            with pytest.raises(NotImplementedError):
                getattr(masked, name)()
        else:
            assert_same(getattr(masked, name)(), getattr(q, name)())


@pytest.mark.parametrize("estimator", [lb.estimators.mean, lb.estimators.weights])
@pytest.mark.parametrize("op", MASK_OPS)
@pytest.mark.parametrize("posterior", SINGLE)
def test_a_mask_of_ones_changes_no_output(posterior, op, estimator, seeded):
    op, weight_shape, input_shape = MASK_OPS[op]
    q, masked = unmasked_and_masked(posterior, op, weight_shape)
    x = randn(*input_shape)
    assert_same(*seeded(*(lambda d=d: estimator(d, op, op.usage(x))(x) for d in (q, masked))))


@pytest.mark.parametrize("op", MASK_OPS)
@pytest.mark.parametrize("posterior", SINGLE)
def test_a_mask_of_ones_changes_no_law_of_the_outputs_of_independent_weights(posterior, op):
    op, weight_shape, input_shape = MASK_OPS[op]
    q, masked = unmasked_and_masked(posterior, op, weight_shape)
    x = randn(*input_shape)
    if q.independent:
        assert_same_outputs(masked, q, op, x)
    else:
        with pytest.raises(ValueError, match=r"use estimator=lb\.estimators\.weights"):
            masked.moments(x, op)


@pytest.mark.parametrize("prior", CLOSED_PRIORS)
@pytest.mark.parametrize("posterior", SINGLE)
def test_a_mask_of_ones_changes_no_kl(posterior, prior, seeded):
    q, masked = unmasked_and_masked(posterior, Linear(), (4, 3))
    p = moved(PRIORS[prior](randn(4, 3)))()
    ours, theirs = (lambda: kl_divergence(masked, p)), (lambda: kl_divergence(q, p))
    try:
        theirs()
    except ValueError as error:
        with pytest.raises(ValueError, match="use ") as caught:
            ours()
        assert str(caught.value) == str(error)
        return
    assert_same(*seeded(ours, theirs))


@pytest.mark.parametrize("prior", CLOSED_PRIORS)
def test_a_masked_kl_counts_the_kept_weights_alone(prior):
    loc, scale, mask = randn(4, 3), randn(4, 3).exp(), torch.zeros(4, 3, dtype=torch.float64)
    mask[1:3] = 1
    whole, kept = (PRIORS[prior](randn(n, 3))() for n in (4, 2))
    masked = Masked(LocationScale(loc, scale), mask)
    assert_same(
        kl_divergence(masked, whole), kl_divergence(LocationScale(loc[1:3], scale[1:3]), kept)
    )


def dropout_and_mean_field(alpha):
    """A dropout posterior, and the mean field with its means and standard deviations."""
    learned = moved(lb.posteriors.VariationalDropout(alpha, log_alpha=-1.0)(randn(4, 3), Linear()))
    loc = learned.loc.detach()
    variance = dense(learned, Linear())[1].diagonal().detach().reshape(4, 3)
    return learned(), LocationScale(loc, variance.sqrt())


@pytest.mark.parametrize("alpha", ["layer", "neuron", "weight", "additive"])
def test_dropout_is_the_mean_field_with_the_same_scale(alpha):
    dropout, mean_field = dropout_and_mean_field(alpha)
    assert_same(dropout.mean, mean_field.mean)
    assert_same(dropout.variance, mean_field.variance)
    assert_same(dropout.entropy(), mean_field.entropy())
    w = randn(5, 4, 3)
    assert_same(dropout.log_prob(w), mean_field.log_prob(w))
    assert_same(dropout.log_inverse_alpha(), mean_field.log_inverse_alpha())
    assert_same_outputs(dropout, mean_field, Linear(), randn(6, 3))


@pytest.mark.parametrize("prior", CLOSED_PRIORS)
@pytest.mark.parametrize("alpha", ["layer", "neuron", "weight", "additive"])
def test_dropout_and_the_mean_field_with_the_same_scale_have_one_kl(alpha, prior):
    dropout, mean_field = dropout_and_mean_field(alpha)
    p = moved(PRIORS[prior](randn(4, 3)))()
    assert_same(kl_divergence(dropout, p), kl_divergence(mean_field, p))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("noise", ["bernoulli", "uniform"])
def test_moments_of_other_noise_are_those_of_normal_noise(noise, op):
    example = OPS[op]
    scale = randn(*example.op.matrix(example.weight()).shape).abs()
    other, normal = (LocationScale(None, scale, kind) for kind in (noise, "normal"))
    assert_same(other.variance, normal.variance)
    assert_same_outputs(other, normal, example.op, example.input())


def test_uniform_noise_has_the_published_width_and_bernoulli_noise_two_values():
    """Uniform ``θ ε`` has variance ``θ²/3``; a Bernoulli weight is ``±θ`` [variance, 3.3]."""
    theta = randn(4, 3).abs() + 0.1
    uniform = LocationScale(None, theta / math.sqrt(3), "uniform")
    assert_same(uniform.variance, td.Uniform(-theta, theta).variance)
    assert_same(uniform.entropy(), td.Uniform(-theta, theta).entropy().sum())
    ratio = uniform.rsample((1000,)) / theta
    assert ratio.abs().max() <= 1
    assert ratio.max() > 0.9
    assert ratio.min() < -0.9
    signs = LocationScale(None, theta, "bernoulli").rsample((1000,)) / theta
    assert_same(signs.abs(), torch.ones_like(signs))
    assert signs.unique().numel() >= 2


@pytest.mark.parametrize("posterior", SINGLE)
def test_masking_everything_leaves_nothing(posterior):
    q, _ = unmasked_and_masked(posterior, Linear(), (4, 3))
    nothing = Masked(q, torch.zeros(4, 3, dtype=torch.float64))
    assert not nothing.mean.any()
    assert not nothing.rsample((3,)).any()
    p = suitable_prior(POSTERIORS[posterior])(randn(4, 3))()
    if q.independent:
        assert kl_divergence(nothing, p) == 0
