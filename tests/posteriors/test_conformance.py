"""Everything public is in the example registry, and everything in it keeps its contract."""

import pytest
import torch
from registry import ESTIMATORS, OPS, POSTERIORS, PRIORS, suitable_prior

import leanbayes as lb
from leanbayes import ops, posteriors, priors
from leanbayes.estimators import ESTIMATORS as PUBLIC_ESTIMATORS
from leanbayes.ops import Usage
from leanbayes.spec import Spec


def _specs(module, base):
    public = (getattr(module, name) for name in module.__all__)
    return {
        value
        for value in public
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }


def test_every_public_spec_is_registered_and_has_an_example():
    assert _specs(posteriors, lb.posteriors.Posterior) == {type(p) for p in POSTERIORS.values()}
    assert _specs(priors, lb.priors.Prior) == {type(p) for p in PRIORS.values()}
    for specs, registry in ((POSTERIORS, posteriors.POSTERIORS), (PRIORS, priors.PRIORS)):
        assert {type(spec).__name__ for spec in specs.values()} <= set(registry)


def test_every_public_op_has_an_example():
    public = {getattr(ops, name) for name in ops.__all__} - {ops.LinearOp, ops.Usage}
    assert public <= {type(example.op) for example in OPS.values()}


def test_every_public_estimator_has_an_example():
    public = {getattr(lb.estimators, n) for n in lb.estimators.__all__ if n in PUBLIC_ESTIMATORS}
    assert public == set(PUBLIC_ESTIMATORS.values())
    assert set(ESTIMATORS.values()) == set(PUBLIC_ESTIMATORS.values())


@pytest.mark.parametrize("name", POSTERIORS)
def test_posterior(name):
    lb.testing.check_posterior(POSTERIORS[name])


@pytest.mark.parametrize("name", PRIORS)
def test_prior(name):
    lb.testing.check_prior(PRIORS[name])


@pytest.mark.parametrize("name", OPS)
def test_op(name):
    example = OPS[name]
    lb.testing.check_op(example.op, example.input(), example.columns)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_every_combination_gives_outputs_and_gradients_or_a_sentence(
    posterior, op, estimator, dtype
):
    spec, example = POSTERIORS[posterior], OPS[op]
    learned = spec(example.weight(dtype), example.op)
    q, x = learned(), example.input(dtype)
    usage = example.op.usage(x)
    try:
        y = ESTIMATORS[estimator](q, example.op, usage)(x)
    except ValueError as error:
        rank1_or_correlated = not q.independent
        assert rank1_or_correlated
        assert estimator in ("local", "flipout")
        assert "use estimator=lb.estimators.weights" in str(error)
        return
    reference = example.op(x, torch.zeros(q.event_shape, dtype=dtype))
    assert y.shape == reference.shape
    assert y.dtype == dtype
    prior = suitable_prior(spec)(example.op.matrix(example.weight(dtype)))
    loss = y.square().sum() + torch.distributions.kl_divergence(q, prior())
    assert loss.isfinite()
    if q.discrete and estimator == "mean":
        assert not loss.requires_grad  # zero outputs and no prior: nothing to learn from
        return
    loss.backward()
    gradients = [p.grad for p in learned.parameters() if p.grad is not None]
    assert gradients
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", POSTERIORS)
def test_held_map_takes_any_batch(name):
    spec = POSTERIORS[name]
    q = spec(torch.randn(4, 3, dtype=torch.float64), lb.ops.Linear())()
    held = lb.estimators.weights(q, lb.ops.Linear(), Usage(None, reused=True))
    for batch in (0, q.members, 5 * q.members):
        assert held(torch.randn(batch, 3, dtype=torch.float64)).shape == (batch, 4)


def test_a_broken_posterior_is_caught():
    """The checks have power: a variance that is 10% too small does not pass."""
    from leanbayes.distributions import LocationScale
    from leanbayes.testing import assert_mean

    q = LocationScale(torch.zeros(4, 3), torch.ones(4, 3))
    w = 0.95 * q.rsample((20_000,))
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(w.square(), q.variance, "variance")


def test_posteriors_and_priors_are_specs():
    assert all(isinstance(spec, Spec) for spec in (*POSTERIORS.values(), *PRIORS.values()))
