"""KL of every posterior × prior pair: a right value, or a sentence that says why there is none.

The oracle is the definition, ``E_q [log q − log p]``, over samples and densities of torch's own
distributions, which are built from the stored tensors.
"""

import copy
import math

import numpy as np
import pytest
import torch
from dense import SOFTPLUS_FLOOR, absolute, dense, moved
from registry import POSTERIORS, PRIORS
from scipy import integrate, special, stats
from torch import distributions as td
from torch.distributions import kl_divergence

import leanbayes as lb
from leanbayes.distributions.priors import log_uniform_kl_approximate, log_uniform_kl_exact
from leanbayes.ops import Linear
from leanbayes.testing import assert_mean

SHAPE = (8, 6)
SAMPLES, REPEATS = 5_000, 100
APPROXIMATION_ERROR = 0.0095  # of the published log-uniform KL, a weight [variance, eq. 8]
POSITIVE = {"lognormal", "halfcauchy"}
HEAVY = {"cauchy", "halfcauchy"}
FACTORS = {"normal": td.Normal, "cauchy": td.Cauchy, "lognormal": td.LogNormal}


def factor_kinds(posterior):
    """The kinds of the random or fixed factors; none for a posterior of weights."""
    if isinstance(POSTERIORS[posterior], lb.posteriors.LowRank):
        return {"normal"}
    factors = getattr(POSTERIORS[posterior], "factors", ())
    return set((factors,) if isinstance(factors, str) else factors) - {"none"}


def is_impossible(posterior, prior):
    """Whether the KL is infinite or compares what cannot be compared."""
    p, kinds = PRIORS[prior], factor_kinds(posterior)
    if isinstance(p, lb.priors.Flat):
        return False
    if posterior == "zero_mean_bernoulli":
        return True
    if isinstance(p, lb.priors.LogNormal | lb.priors.HalfCauchy):
        return not kinds or not kinds <= POSITIVE
    if isinstance(
        p,
        lb.priors.Centered
        | lb.priors.Hierarchical
        | lb.priors.ARD
        | lb.priors.GroupARD
        | lb.priors.LogUniform,
    ):
        return bool(kinds)
    infinite_moment = isinstance(
        p, lb.priors.Normal | lb.priors.He | lb.priors.Laplace | lb.priors.ScaleMixture
    )
    return infinite_moment and bool(kinds & HEAVY)


def is_closed(posterior, prior):
    """Whether there is a closed form, so that the value has no noise."""
    p, kinds = PRIORS[prior], factor_kinds(posterior)
    if kinds:
        family = "normal" if isinstance(p, lb.priors.He) else type(p).__name__.lower()
        return kinds in ({"fixed"}, {family})
    if posterior == "point":
        return True
    if isinstance(p, lb.priors.StudentT | lb.priors.Cauchy | lb.priors.ScaleMixture):
        return False
    normal = posterior != "zero_mean_uniform"
    return normal or not isinstance(p, lb.priors.Laplace | lb.priors.LogUniform)


def has_density(posterior):
    return posterior not in ("point", "rank1_fixed")


PAIRS = [(posterior, prior) for posterior in POSTERIORS for prior in PRIORS]
IMPOSSIBLE = [pair for pair in PAIRS if is_impossible(*pair)]
POSSIBLE = [pair for pair in PAIRS if pair not in IMPOSSIBLE]
CLOSED = [pair for pair in POSSIBLE if is_closed(*pair) and pair[1] != "flat"]
PROPER = [
    (posterior, prior)
    for posterior, prior in CLOSED
    if has_density(posterior) and not isinstance(PRIORS[prior], lb.priors.LogUniform)
]


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def learned_pair(posterior, prior):
    weight = torch.randn(SHAPE, dtype=torch.float64)
    return moved(POSTERIORS[posterior](weight, Linear())), moved(PRIORS[prior](weight))


def hierarchical(scale, spread, mean):
    """``E_q(m) log p(w | m) − KL(q(m) ‖ p(m))`` with the best normal ``q(m)``."""
    precision = scale**-2 + spread**-2
    q = td.Normal(mean * scale**-2 / precision, precision.rsqrt())
    cost = td.kl_divergence(q, td.Normal(double(0.0), double(spread)))
    return lambda w: td.Normal(q.mean, scale).log_prob(w) - 0.5 * (q.stddev / scale).square() - cost


def log_prior(prior, mean, covariance):
    """``log p`` of flat weights or of factors, by torch's own distributions."""
    recipe, stored = prior.spec, absolute(prior)
    match recipe:
        case lb.priors.Normal(learn=None):
            p = td.Normal(double(recipe.loc), double(recipe.scale))
        case lb.priors.Normal():
            p = td.Normal(recipe.loc, stored["scale"].exp())
        case lb.priors.He():
            p = td.Normal(double(0.0), double(2 / SHAPE[1]).sqrt())
        case lb.priors.Centered():
            p = td.Normal(mean, double(recipe.scale))
        case lb.priors.Hierarchical():
            return hierarchical(double(recipe.scale) / SHAPE[1] ** 0.5, recipe.spread, mean)
        case lb.priors.ARD():
            p = td.Normal(0.0, (mean.square() + covariance.diagonal()).sqrt())
        case lb.priors.GroupARD():
            tau, gamma = stored["row_precision"].exp(), stored["column_precision"].exp()
            p = td.Normal(0.0, (tau.unsqueeze(-1) * gamma).flatten().rsqrt())
        case lb.priors.LogUniform():
            euler = -special.digamma(1)
            constant = -0.5 * math.log(2 * math.pi * math.e) - 0.5 * (euler + math.log(2))
            return lambda w: constant - w.abs().log()
        case lb.priors.StudentT():
            p = td.StudentT(double(recipe.df), 0.0, recipe.scale)
        case lb.priors.ScaleMixture():
            shares = td.Categorical(double([recipe.weight, 1 - recipe.weight]))
            normals = td.Normal(0.0, double([recipe.wide, recipe.narrow]))
            p = td.MixtureSameFamily(shares, normals)
        case lb.priors.HalfCauchy():
            p = td.HalfCauchy(double(recipe.scale))
        case lb.priors.Cauchy() | lb.priors.Laplace() | lb.priors.LogNormal():
            p = getattr(td, type(recipe).__name__)(double(recipe.loc), double(recipe.scale))
    return p.log_prob


def log_ratios(learned, prior):
    """Samples of ``log q − log p``; the log density of a point counts as 0."""
    if isinstance(learned.spec, lb.Rank1):
        return _factor_log_ratios(learned, prior)
    if isinstance(learned.spec, lb.posteriors.LowRank):
        return _product_log_ratios(learned, prior)
    mean, covariance = dense(learned, Linear())
    log_p = log_prior(prior, mean, covariance)
    if isinstance(learned.spec, lb.posteriors.Point):
        return -log_p(mean).sum().expand(SAMPLES)
    if getattr(learned.spec, "noise", "normal") == "uniform":
        edge = covariance.diagonal().mul(3).sqrt()
        q = td.Independent(td.Uniform(-edge, edge), 1)
    else:
        q = td.MultivariateNormal(mean, covariance)
    w = q.sample((SAMPLES,))
    return q.log_prob(w) - log_p(w).sum(-1)


def _factor_log_ratios(learned, prior):
    log_p, stored = log_prior(prior, None, None), absolute(learned)
    recipe, total = learned.spec, torch.zeros(SAMPLES, dtype=torch.float64)
    kinds = recipe.factors if isinstance(recipe.factors, tuple) else (recipe.factors,) * 2
    for name, kind in zip("rs", kinds, strict=True):
        if kind == "none":
            continue
        if kind == "fixed":
            total = total - log_p(stored[f"{name}_loc"]).sum()
            continue
        scale = stored[f"{name}_scale"].exp().log1p() + SOFTPLUS_FLOOR
        halved = kind == "halfcauchy"
        q = td.HalfCauchy(scale) if halved else FACTORS[kind](stored[f"{name}_loc"], scale)
        z = q.sample((SAMPLES,))
        total = total + (q.log_prob(z) - log_p(z)).sum((-2, -1))
    return total / recipe.members


def _product_log_ratios(learned, prior):
    """Both factors of a low-rank matrix, as they are stored."""
    log_p, stored = log_prior(prior, None, None), absolute(learned)
    total = torch.zeros(SAMPLES, dtype=torch.float64)
    for side in ("left", "right"):
        q = td.Normal(stored[f"{side}_loc"], stored[f"{side}_scale"].exp())
        z = q.sample((SAMPLES,))
        total = total + (q.log_prob(z) - log_p(z)).sum((-2, -1))
    return total


def entropy_gap(learned):
    """By how much a lower bound of the entropy raises the KL: only for MN + diagonal."""
    if not getattr(learned.spec, "diagonal", False):
        return 0.0
    exact = td.MultivariateNormal(*dense(learned, Linear())).entropy()
    return (exact - learned().entropy()).detach()


@pytest.mark.parametrize(("posterior", "prior"), POSSIBLE)
def test_value_agrees_with_its_definition(posterior, prior):
    learned, learned_prior = learned_pair(posterior, prior)
    q, p = learned(), learned_prior()
    kl = kl_divergence(q, p).detach()
    assert kl.shape == ()
    if isinstance(PRIORS[prior], lb.priors.Flat):
        assert kl == 0
        return
    ratios = log_ratios(learned, learned_prior).detach() + entropy_gap(learned)
    if not is_closed(posterior, prior):
        kls = torch.stack([kl_divergence(q, p).detach() for _ in range(REPEATS)])
        assert_mean(kls - ratios[:REPEATS], 0.0, "one-sample KL")
        return
    if prior == "log_uniform" and has_density(posterior):
        exact = kl_divergence(q, lb.distributions.LogUniformDensity(exact=True)).detach()
        assert abs(kl - exact) <= APPROXIMATION_ERROR * q.mean.numel()
        kl = exact
    assert_mean(ratios, kl, "KL")


@pytest.mark.parametrize(("posterior", "prior"), IMPOSSIBLE)
def test_an_impossible_pair_says_so_in_one_sentence(posterior, prior):
    learned, learned_prior = learned_pair(posterior, prior)
    with pytest.raises(ValueError, match="use ") as caught:
        kl_divergence(learned(), learned_prior())
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert ". " not in sentence
    with pytest.raises(ValueError, match="use "):
        lb.convert(torch.nn.Linear(3, 4), POSTERIORS[posterior], PRIORS[prior])


@pytest.mark.parametrize(("posterior", "prior"), PROPER)
def test_closed_form_is_never_negative(posterior, prior):
    for _ in range(5):
        learned, learned_prior = learned_pair(posterior, prior)
        assert kl_divergence(learned(), learned_prior()) >= -1e-12


@pytest.mark.parametrize(("posterior", "prior"), CLOSED)
def test_gradcheck_of_closed_forms(posterior, prior):
    modules = learned_pair(posterior, prior)
    names = [[name for name, _ in module.named_parameters()] for module in modules]

    def kl(*tensors):
        given = tensors[: len(names[0])], tensors[len(names[0]) :]
        q, p = (
            torch.func.functional_call(module, dict(zip(own, values, strict=True)), ())
            for module, own, values in zip(modules, names, given, strict=True)
        )
        return kl_divergence(q, p)

    inputs = tuple(p.detach().requires_grad_() for m in modules for p in m.parameters())
    assert torch.autograd.gradcheck(kl, inputs, fast_mode=True)


def _rank1(kind):
    return lb.Rank1(members=2, factors=kind, signs=0.0, rate=0.2)  # factors of loc 1, scale ½


EQUAL = {
    "mean_field": (lb.MeanField(0.5), lb.priors.Normal(0.5), 0.0),
    "mean_field_shifted": (lb.MeanField(0.5), lb.priors.Normal(0.5, loc=1.0), 1.0),
    "mean_field_learned": (lb.MeanField(0.5), lb.priors.Normal(0.5, learn="layer"), 0.0),
    "mean_field_he": (lb.MeanField(math.sqrt(2 / 3)), lb.priors.He(), 0.0),
    "k_tied": (lb.KTied(2, lb.posteriors.Scale(0.5)), lb.priors.Normal(0.5), 0.0),
    "k_tied_group_ard": (lb.KTied(1, lb.posteriors.Scale(0.5)), lb.priors.GroupARD(0.5), 0.0),
    "matrix_normal": (lb.posteriors.MatrixNormal(0.5), lb.priors.Normal(0.5), 0.0),
    "matrix_normal_diagonal_factors": (
        lb.posteriors.MatrixNormal(0.5, rank=0),
        lb.priors.Normal(0.5),
        0.0,
    ),
    "matrix_normal_plus_diagonal": (
        lb.posteriors.MatrixNormal(0.5, diagonal=True),
        lb.priors.Normal(0.5),
        0.0,
    ),
    "zero_mean": (lb.posteriors.ZeroMean(scale=0.5), lb.priors.Normal(0.5), 0.0),
    "zero_mean_ard": (lb.posteriors.ZeroMean(), lb.priors.ARD(), 0.0),
    "zero_mean_log_uniform": (lb.posteriors.ZeroMean(), lb.priors.LogUniform(), 0.0),
    "zero_mean_log_uniform_exact": (
        lb.posteriors.ZeroMean(),
        lb.priors.LogUniform(exact=True),
        0.0,
    ),
    "rank1_normal": (_rank1("normal"), lb.priors.Normal(0.5, loc=1.0), 0.0),
    "rank1_cauchy": (_rank1("cauchy"), lb.priors.Cauchy(0.5, loc=1.0), 0.0),
    "rank1_lognormal": (_rank1("lognormal"), lb.priors.LogNormal(0.5, loc=1.0), 0.0),
    "rank1_halfcauchy": (_rank1("halfcauchy"), lb.priors.HalfCauchy(0.5), 0.0),
}


@pytest.mark.parametrize("name", EQUAL)
def test_zero_and_stationary_where_posterior_and_prior_are_equal(name):
    posterior, prior, loc = EQUAL[name]
    weight = torch.full((4, 3), loc, dtype=torch.float64)
    learned, learned_prior = posterior(weight, Linear()), prior(weight)
    with torch.no_grad():
        for side in ("r_scale", "s_scale"):  # without the jitter of their first values
            if side in learned.names:
                getattr(learned, side).fill_(math.log(math.expm1(0.5 - SOFTPLUS_FLOOR)))
        for side in ("r_loc", "s_loc"):  # log-normal factors start below the prior's log of 1
            if side in learned.names:
                getattr(learned, side).fill_(1.0)
    kl = kl_divergence(learned(), learned_prior())
    assert abs(kl) < 1e-12
    parameters = (*learned.parameters(), *learned_prior.parameters())
    gradients = torch.autograd.grad(kl, parameters, materialize_grads=True)
    assert all((g.abs() < 1e-12).all() for g in gradients)


def log_alphas():
    """From almost no noise to almost nothing but noise."""
    return torch.linspace(-9, 12, 421, dtype=torch.float64)


def exact_series(log_alpha):
    """``½ Σ_k Pois(k; u) [ψ(k + ½) − ψ(½)]``, ``u = 1 / (2α)``, by scipy."""
    u = 0.5 * np.exp(-log_alpha.numpy())[:, None]
    k = np.arange(int(u.max() + 40 * math.sqrt(u.max()) + 40))
    terms = stats.poisson.pmf(k, u) * (special.digamma(k + 0.5) - special.digamma(0.5))
    return torch.from_numpy(0.5 * terms.sum(1))


def test_log_uniform_series_and_its_slope():
    m = (-log_alphas()).requires_grad_()
    kl = log_uniform_kl_exact(m)
    torch.testing.assert_close(kl, exact_series(log_alphas()), rtol=1e-10, atol=1e-12)
    (slope,) = torch.autograd.grad(kl.sum(), m)
    root = (0.5 * m.detach().exp()).sqrt()
    expected = root * torch.from_numpy(special.dawsn(root.numpy()))  # u · Dawson(√u) / √u
    torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-12)


def test_log_uniform_approximation_against_the_series():
    exact, approximate = exact_series(log_alphas()), log_uniform_kl_approximate(-log_alphas())
    assert (approximate - exact).abs().max() < APPROXIMATION_ERROR
    assert (approximate / exact - 1).abs().max() < 0.035
    assert (approximate.diff() < 0).all()


@pytest.mark.parametrize("prior", ["ard", "log_uniform", "log_uniform_exact"])
@pytest.mark.parametrize("alpha", ["layer", "neuron", "weight"])
def test_scale_free_kl_of_dropout_does_not_see_the_size_of_a_weight(alpha, prior):
    """Even at zero, where cross-entropy and entropy are both infinite."""
    weight = torch.randn(4, 3, dtype=torch.float64)
    tiny = weight * double([0.0, 1e-12, 1e12])
    posterior = lb.posteriors.VariationalDropout(alpha, log_alpha=0.7)
    kls = [kl_divergence(posterior(w, Linear())(), PRIORS[prior](w)()) for w in (weight, tiny)]
    torch.testing.assert_close(kls[1], kls[0], rtol=1e-12, atol=0.0)
    expected = {
        "ard": 0.5 * math.log1p(math.exp(-0.7)),
        "log_uniform_exact": exact_series(double([0.7])).item(),
    }
    if prior in expected:
        assert kls[0].item() == pytest.approx(12 * expected[prior], rel=1e-9)


SUMMED = {
    "point": lb.posteriors.Point(),
    "mean_field": lb.MeanField(0.3),
    "k_tied_1": lb.KTied(1, lb.posteriors.Scale(0.3)),
    "k_tied_2": lb.KTied(2, lb.posteriors.Scale(0.3)),
    "matrix_normal": lb.posteriors.MatrixNormal(0.3),
    "matrix_normal_diagonal_factors": lb.posteriors.MatrixNormal(0.3, rank=0),
    "matrix_normal_plus_diagonal": lb.posteriors.MatrixNormal(0.3, diagonal=True),
    "zero_mean": lb.posteriors.ZeroMean(scale=0.3),
    "dropout_layer": lb.posteriors.VariationalDropout("layer"),
    "dropout_neuron": lb.posteriors.VariationalDropout("neuron"),
    "dropout_weight": lb.posteriors.VariationalDropout("weight"),
    "dropout_additive": lb.posteriors.VariationalDropout("additive"),
}


@pytest.mark.parametrize("prior", ["normal", "he", "ard", "group_ard", "log_uniform", "laplace"])
@pytest.mark.parametrize("posterior", SUMMED)
def test_twice_the_matrix_has_twice_the_kl(posterior, prior):
    weight = torch.randn(4, 3, dtype=torch.float64)
    once, twice = (
        kl_divergence(SUMMED[posterior](w, Linear())(), PRIORS[prior](w)())
        for w in (weight, weight.repeat(2, 1))
    )
    torch.testing.assert_close(twice, 2 * once, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["normal", "cauchy"])
def test_twice_the_factors_have_twice_the_kl(kind):
    family = FACTORS[kind]
    loc, scale, weight = (torch.rand(2, n, dtype=torch.float64) + 0.5 for n in (4, 4, 3))
    p = family(double(1.0), double(0.3))
    once, twice = (
        kl_divergence(
            lb.distributions.Rank1Mixture(
                weight[:1].repeat(4 * n, 1), family(loc.repeat(1, n), scale.repeat(1, n)), None
            ),
            p,
        )
        for n in (1, 2)
    )
    torch.testing.assert_close(twice, 2 * once, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("posterior", SUMMED)
def test_two_layers_have_the_sum_of_their_kls(posterior):
    layer = lb.convert(torch.nn.Linear(3, 4), SUMMED[posterior], lb.priors.Normal(0.5)).double()
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), copy.deepcopy(layer), torch.nn.Linear(4, 1))
    torch.testing.assert_close(lb.kl(model), 2 * lb.kl(layer), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("scale", [0.05, 0.7, 20.0])
@pytest.mark.parametrize("loc", [0.0, -0.4])
def test_the_kl_to_a_laplace_prior_is_its_integral(loc, scale):
    means, stds = double([[0.0, 0.3], [-2.0, 0.01]]), double([[1.0, 0.2], [0.5, 0.4]])
    q = lb.distributions.LocationScale(means, stds)
    expected = 0.0
    for mean, std in zip(means.flatten().tolist(), stds.flatten().tolist(), strict=True):
        law = stats.norm(mean, std)
        ends = mean - 12 * std, mean + 12 * std
        expected -= (
            law.entropy()
            + integrate.quad(
                lambda w, law=law: law.pdf(w) * stats.laplace(loc, scale).logpdf(w),
                *ends,
                points=[min(max(loc, ends[0]), ends[1])],
            )[0]
        )
    found = float(kl_divergence(q, lb.priors.Laplace(scale, loc=loc)(means)()))
    assert found == pytest.approx(expected, rel=1e-7)
