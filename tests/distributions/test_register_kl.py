"""The KL has one door: what a user registers with torch counts everywhere."""

import math

import pytest
import torch
from registry import POSTERIORS, PRIORS
from torch import distributions as td
from torch import nn
from torch.distributions import kl_divergence, register_kl
from torch.distributions.kl import _KL_MEMOIZE, _KL_REGISTRY

import leanbayes as lb
from leanbayes.distributions import (
    FlatDensity,
    KTiedNormal,
    LocationScale,
    Masked,
    Rank1Mixture,
    WeightDistribution,
)
from leanbayes.distributions.kl import divergence
from leanbayes.ops import Linear
from leanbayes.torch_private import registered_kl


@pytest.fixture(autouse=True)
def _as_it_was():
    before, validate = dict(_KL_REGISTRY), td.Distribution._validate_args
    yield
    _KL_REGISTRY.clear()
    _KL_REGISTRY.update(before)
    _KL_MEMOIZE.clear()
    torch._dynamo.reset()
    td.Distribution.set_default_validate_args(validate)  # the compiler switches it off


def constant(value):
    return lambda q, p: q.mean.sum() * 0 + value


def model_of(posterior, prior):
    return lb.convert(nn.Linear(3, 2), posterior, prior)


PAIRS = {
    "k_tied": (KTiedNormal, td.Laplace, lb.KTied(2), lb.priors.Laplace(1.0)),
    "mean_field": (LocationScale, td.Normal, lb.MeanField(), lb.priors.Normal(1.0)),
    "rank1": (Rank1Mixture, td.Normal, lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0)),
    "our_prior": (LocationScale, FlatDensity, lb.MeanField(), lb.priors.Flat()),
    "subclasses": (WeightDistribution, td.Laplace, lb.KTied(2), lb.priors.Laplace(1.0)),
    "all_priors": (KTiedNormal, td.Distribution, lb.KTied(2), lb.priors.Laplace(1.0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_that_is_registered_after_conversion_counts(name):
    left, right, posterior, prior = PAIRS[name]
    model = model_of(posterior, prior)
    assert lb.kl(model) != 77
    register_kl(left, right)(constant(77.0))
    assert lb.kl(model) == 77
    assert kl_divergence(model.posterior(), model.prior()) == 77


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_that_is_registered_before_conversion_counts(name):
    left, right, posterior, prior = PAIRS[name]
    register_kl(left, right)(constant(77.0))
    assert lb.kl(model_of(posterior, prior)) == 77


def test_a_subclass_takes_what_is_registered_for_its_base():
    class Narrow(KTiedNormal):
        pass

    class Wide(td.Laplace):
        pass

    q = Narrow(torch.zeros(2, 3), torch.ones(1, 2), torch.ones(1, 3))
    p = Wide(torch.tensor(0.0), torch.tensor(1.0))
    generic = divergence(q, p)
    register_kl(KTiedNormal, td.Laplace)(constant(77.0))
    assert divergence(q, p) == kl_divergence(q, p) == 77
    register_kl(Narrow, Wide)(constant(78.0))
    assert divergence(q, p) == kl_divergence(q, p) == 78
    base = KTiedNormal(q.loc, q.u, q.v)
    assert divergence(base, td.Laplace(p.loc, p.scale)) == 77
    torch.testing.assert_close(generic, divergence(base, td.Laplace(p.loc, p.scale)) * 0 + generic)


def test_a_subclass_of_a_mask_and_of_a_mixture_keeps_its_kl():
    class OwnMask(Masked):
        pass

    class OwnMixture(Rank1Mixture):
        pass

    p = td.Normal(torch.tensor(0.0), torch.tensor(1.0))
    base, mask = LocationScale(torch.ones(2, 2), torch.ones(2, 2)), torch.eye(2)
    assert divergence(OwnMask(base, mask), p) == divergence(Masked(base, mask), p) == 1.0
    weight, r = torch.ones(2, 3), td.Normal(torch.ones(2, 2), 0.1)
    assert divergence(OwnMixture(weight, r, None), p) == divergence(
        Rank1Mixture(weight, r, None), p
    )


def test_a_mask_over_correlated_weights_asks_for_the_base():
    q = Masked(lb.posteriors.MatrixNormal()(torch.randn(2, 3), Linear())(), torch.ones(2, 3))
    p = td.Normal(torch.tensor(0.0), torch.tensor(1.0))
    register_kl(type(q.base), td.Normal)(constant(77.0))
    assert divergence(q, p) == 77
    register_kl(Masked, td.Normal)(constant(78.0))
    assert divergence(q, p) == 78


def test_factors_of_a_mixture_go_through_the_same_door():
    model = model_of(lb.Rank1(2), lb.priors.StudentT(3.0))
    assert lb.kl(model) != lb.kl(model)  # one sample
    register_kl(td.Normal, td.StudentT)(lambda q, p: torch.ones_like(q.loc))
    assert lb.kl(model) == 2 + 3  # the mean over members of one for each factor


def test_a_registered_function_may_ask_for_the_generic_kl():
    """No recursion: the generic one stays where it was, under its own pair."""
    model = model_of(lb.KTied(2), lb.priors.Laplace(1.0))
    before = lb.kl(model)
    generic = _KL_REGISTRY[WeightDistribution, td.Distribution]
    register_kl(KTiedNormal, td.Laplace)(lambda q, p: 2 * generic(q, p))
    torch.testing.assert_close(lb.kl(model), 2 * before)


def test_an_ambiguous_pair_is_named_by_torch():
    register_kl(KTiedNormal, td.Distribution)(constant(1.0))
    register_kl(WeightDistribution, td.Laplace)(constant(2.0))
    model = model_of(lb.KTied(2), lb.priors.Laplace(1.0))
    with pytest.warns(RuntimeWarning, match=r"Please register_kl\(KTiedNormal, Laplace\)"):
        assert lb.kl(model) == 1
    assert registered_kl(KTiedNormal, td.Laplace) is _KL_REGISTRY[KTiedNormal, td.Distribution]


def test_a_user_may_register_a_pair_that_has_no_kl_by_itself():
    prior = lb.priors.HalfCauchy(1.0)
    with pytest.raises(ValueError, match="no mass to negative values"):
        model_of(lb.MeanField(), prior)
    register_kl(LocationScale, td.HalfCauchy)(constant(math.pi))
    assert lb.kl(model_of(lb.MeanField(), prior)).item() == pytest.approx(math.pi)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_search_that_can_be_compiled_finds_what_torch_finds(posterior, prior):
    weight = torch.randn(4, 3)
    q, p = POSTERIORS[posterior](weight, Linear())(), PRIORS[prior](weight)()
    pairs = [(q, p), *((f, p) for f in getattr(q, "factors", ()) if isinstance(f, td.Distribution))]
    for left, right in pairs:
        torchs = td.kl._dispatch_kl(type(left), type(right))
        if torchs is NotImplemented:
            with pytest.raises(NotImplementedError, match="is not registered"):
                registered_kl(type(left), type(right))
        else:
            assert registered_kl(type(left), type(right)) is torchs


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_model_sees_what_is_registered_before_and_after():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    overrides = {"1": {"posterior": lb.MeanField()}, "2": {"posterior": lb.Rank1(2)}}
    model = lb.convert(net, lb.KTied(2), lb.priors.Laplace(1.0), overrides=overrides)
    _KL_MEMOIZE.clear()
    compiled = torch.compile(lambda: lb.kl(model), fullgraph=True, backend="eager")
    plain = compiled()
    torch.testing.assert_close(plain, lb.kl(model))
    register_kl(KTiedNormal, td.Laplace)(constant(1000.0))
    changed = compiled()
    torch.testing.assert_close(changed, lb.kl(model))
    assert changed > 1000
    register_kl(KTiedNormal, td.Laplace)(constant(2000.0))
    assert (compiled() - changed).item() == pytest.approx(1000, abs=1e-2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("factors", "prior"),
    [
        ("lognormal", lb.priors.LogNormal(1.0)),
        ("lognormal", lb.priors.HalfCauchy(1.0)),  # by one sample
        ("halfcauchy", lb.priors.HalfCauchy(1.0)),
        ("fixed", lb.priors.Normal(1.0)),
    ],
)
def test_kls_of_all_factors_compile(factors, prior):
    model = model_of(lb.Rank1(2, factors=factors), prior)
    compiled = torch.compile(lambda: lb.kl(model), fullgraph=True, backend="eager")
    torch.manual_seed(0)
    value = compiled()
    torch.manual_seed(0)
    torch.testing.assert_close(value, lb.kl(model))
