"""Local noise has the law of random weights at one position, and only there.

Samples of the two are compared in pairs. If the laws are equal, their difference is symmetric, so
that heavy tails (clipped Cauchy factors) cannot make a right implementation fail.
"""

import pytest
import torch
from dense import dense, dense_op, moved
from registry import OPS, POSTERIORS

import leanbayes as lb
from leanbayes.distributions import KTiedNormal
from leanbayes.ops import Usage
from leanbayes.testing import assert_mean

SAMPLES = 6_000
"""Two variances then differ by 2.6% at random, and an error of 20% is caught almost surely."""

SAMPLED = (
    "linear",
    "linear_sequence",
    "conv2d",
    "conv2d_grouped",
    "conv_transpose1d",
    "lookup_padded",
)
LOW_RANK = ("low_rank", "low_rank_full")
CORRELATED = ("matrix_normal", "matrix_normal_low_rank", "matrix_normal_plus_diagonal", *LOW_RANK)
SHAPES = (*SAMPLED, "linear_wide", "conv2d_odd", "lookup")
RANK1 = tuple(name for name in POSTERIORS if name.startswith("rank1"))
WITHOUT_NOISE = ("point", "rank1_fixed")
NOT_NORMAL = ("zero_mean_bernoulli", "zero_mean_uniform")


def learned_posterior(posterior, op):
    return moved(POSTERIORS[posterior](OPS[op].weight(), OPS[op].op))


def outputs_of_weights(q, example, x):
    """``[samples, members, …, channels]``, one weight draw a sample, by the op's dense matrix."""
    w = q.rsample((SAMPLES,)).detach().reshape(SAMPLES, q.members, -1)
    return torch.einsum("smn,n...->sm...", w, dense_op(example, x)[:, 0])


def outputs_of_local(q, example, x):
    """The same, with one example a sample."""
    batch = SAMPLES * q.members
    y = lb.estimators.local(q, example.op, Usage(batch, reused=True))(
        x.repeat(batch, *(1,) * (x.ndim - 1))
    )
    y = y.detach().movedim(example.op.channel_dim, -1)
    return y.unflatten(0, (q.members, SAMPLES)).transpose(0, 1)


def assert_same_law(q, example, x):
    """Equal means and equal covariances over the channels, at every position."""
    drawn, local = outputs_of_weights(q, example, x), outputs_of_local(q, example, x)
    assert drawn.shape == local.shape
    assert_mean(local - drawn, 0.0, "mean of local outputs")
    center = q.mean.detach().reshape(q.members, -1)
    center = torch.einsum("mn,n...->m...", center, dense_op(example, x)[:, 0])
    products = [(y - center).unsqueeze(-1) * (y - center).unsqueeze(-2) for y in (local, drawn)]
    assert_mean(products[0] - products[1], 0.0, "channel covariance of local outputs")


@pytest.mark.parametrize("op", SAMPLED)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_mean_variance_and_channel_covariance(posterior, op):
    example = OPS[op]
    q, x = learned_posterior(posterior, op)(), example.input()[:1]
    if posterior in CORRELATED and example.op.groups > 1:
        with pytest.raises(ValueError, match=r"use estimator=lb\.estimators\.weights"):
            outputs_of_local(q, example, x)
        return
    assert_same_law(q, example, x)


class ForgetsCrossTerms(KTiedNormal):
    """Broken on purpose: σ² = Σ_a (u_a v_a)² without the products of different terms."""

    def variance_factors(self):
        return self.u.square(), self.v.square()


def test_a_broken_local_variance_is_caught():
    q = learned_posterior("k_tied_2", "linear")()
    broken, example = ForgetsCrossTerms(q.loc, q.u, q.v), OPS["linear"]
    with pytest.raises(AssertionError, match=r"channel covariance.*standard errors"):
        assert_same_law(broken, example, example.input()[:1])


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_weights_applies_one_draw_to_the_whole_batch(posterior, op, request):
    example = OPS[op]
    q, x = learned_posterior(posterior, op)(), example.input()
    seed = request.config.getoption("--seed")
    torch.manual_seed(seed)
    y = lb.estimators.weights(q, example.op, example.op.usage(x))(x)
    torch.manual_seed(seed)
    drawn = q.rsample().reshape(q.members, *q.event_shape)
    blocks = zip(drawn, x.chunk(q.members), strict=True)
    expected = torch.cat([example.op(block, w) for w, block in blocks])
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)


def _between_positions(y):
    """Products of one channel's outputs at two neighboring positions, ``[samples, members]``."""
    return y[:, :, 0, 0, 0] * y[:, :, 0, 1, 0]


@pytest.mark.parametrize(
    "posterior", ["mean_field", "k_tied_2", "matrix_normal", "zero_mean", "dropout_weight"]
)
def test_local_loses_the_correlation_between_positions_and_weights_keep_it(posterior):
    example = OPS["conv2d"]
    learned, x = learned_posterior(posterior, "conv2d"), example.input()[:1]
    x = x.abs() + 1  # patches that overlap in what they say
    mean, covariance = (t.detach() for t in dense(learned, example.op))
    first, second = (dense_op(example, x)[:, 0, 0, j, 0] for j in range(2))
    expected = first @ covariance @ second
    scale = (first @ covariance @ first).sqrt() * (second @ covariance @ second).sqrt()
    assert expected / scale > 0.3
    center = torch.einsum("n,n...->...", mean, dense_op(example, x)[:, 0])
    q = learned()
    kept = _between_positions(outputs_of_weights(q, example, x) - center)
    lost = _between_positions(outputs_of_local(q, example, x) - center)
    assert_mean(kept, expected, "covariance between positions with weights")
    assert_mean(lost, 0.0, "covariance between positions with local noise")


def test_rank_one_factors_per_example_keep_the_correlation_between_positions():
    example = OPS["conv2d"]
    q, x = learned_posterior("rank1_normal", "conv2d")(), example.input()[:1].abs() + 1
    drawn, local = (f(q, example, x) for f in (outputs_of_weights, outputs_of_local))
    center = drawn.mean(0)
    assert_mean(
        _between_positions(local - center) - _between_positions(drawn - center),
        0.0,
        "covariance between positions with rank-one factors",
    )


def _noise(y, members):
    """``"none"``, ``"shared"`` or ``"local"``: two calls on a batch of equal examples tell."""
    again, once = (call.unflatten(0, (members, -1)) for call in y)
    if torch.equal(again, once):
        return "none"
    return "shared" if torch.equal(once, once[:, :1].expand_as(once)) else "local"


def _expected_noise(posterior, op):
    if posterior in WITHOUT_NOISE:
        return "none"
    if posterior in RANK1:
        return "local"
    once = op in ("linear", "linear_wide", "lookup")
    return "local" if once and posterior not in NOT_NORMAL else "shared"


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_auto_is_local_where_a_weight_is_used_once_and_weights_elsewhere(posterior, op):
    example = OPS[op]
    q = learned_posterior(posterior, op)()
    x = torch.ones_like(example.input()[:1]).expand(2 * q.members, *example.input_shape[1:])
    y = [lb.estimators.auto(q, example.op, example.op.usage(x))(x) for _ in range(2)]
    assert _noise(y, q.members) == _expected_noise(posterior, op)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_auto_draws_one_function_when_a_map_is_kept(posterior):
    q, op = learned_posterior(posterior, "linear")(), OPS["linear"].op
    x = torch.ones(2 * q.members, 3, dtype=torch.float64)
    maps = [lb.estimators.auto(q, op, Usage(None, reused=False)) for _ in range(2)]
    noise = _noise([m(x) for m in maps], q.members)
    assert noise == ("none" if posterior in WITHOUT_NOISE else "shared")


@pytest.mark.parametrize(("x", "expected"), [((8, 3), "local"), ((8, 5, 3), "shared")])
def test_auto_is_the_default_of_a_converted_layer(x, expected):
    model = lb.convert(torch.nn.Linear(3, 4), lb.KTied(), lb.priors.Normal(1.0))
    assert _noise([model(torch.ones(x)) for _ in range(2)], members=1) == expected


def test_local_moments_of_a_converted_convolution_are_not_the_default():
    model = lb.convert(torch.nn.Conv2d(1, 2, 2), lb.MeanField(), lb.priors.Normal(1.0))
    x = torch.ones(6, 1, 4, 4)
    assert _noise([model(x) for _ in range(2)], members=1) == "shared"
    with lb.using(model, lb.estimators.local):
        assert _noise([model(x) for _ in range(2)], members=1) == "local"


@pytest.mark.parametrize(("reused", "expected"), [(False, "local"), (True, "shared")])
def test_auto_obeys_what_a_usage_says_of_reuse(reused, expected):
    q, op = learned_posterior("mean_field", "linear")(), OPS["linear"].op
    x = torch.ones(4, 3, dtype=torch.float64)
    y = [lb.estimators.auto(q, op, Usage(4, reused=reused))(x) for _ in range(2)]
    assert _noise(y, q.members) == expected
