"""A learned distribution knows what its tensors are for and how they are stored."""

import copy

import pytest
import torch
from dense import moved
from registry import OPS, POSTERIORS, PRIORS
from torch import distributions as td
from torch import nn

import leanbayes as lb
from leanbayes.distributions import KTiedNormal
from leanbayes.errors import UnknownNameError
from leanbayes.ops import Conv, ConvTranspose, Linear, Lookup
from leanbayes.parameters.learned import Abs, AsMatrix, Clamp, Exp, Learned, Softplus, Stored

TRANSFORMS = {
    "exp": Exp(),
    "log_variance": Exp(rate=0.5),
    "exp_ceiling": Exp(ceiling=10.0),
    "softplus": Softplus(),
    "softplus_ceiling": Softplus(ceiling=10.0),
    "abs": Abs(),
    "clamp": Clamp(0.0, 10.0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_inverse_undoes_a_transform(name):
    transform, value = TRANSFORMS[name], torch.rand(50, dtype=torch.float64) + 1e-3
    torch.testing.assert_close(transform(transform.inverse(value)), value, rtol=1e-9, atol=0)
    assert transform == copy.deepcopy(transform)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Linear(), (4, 3)),
        (Conv((3, 2)), (4, 3, 3, 2)),
        (ConvTranspose((3,), groups=2), (4, 3, 3)),
        (Lookup(), (5, 4)),
    ],
    ids=repr,
)
def test_a_weight_is_stored_in_its_own_shape_and_seen_as_a_matrix(op, shape):
    weight = torch.randn(shape)
    stored = Stored.means(weight, op)
    assert stored.role == "means"
    assert torch.equal(stored.tensor, weight)
    assert stored.tensor is not weight
    view = AsMatrix(op)
    assert torch.equal(view.inverse(view(weight)), weight)


@pytest.mark.parametrize("op", ["linear", "conv2d"])
@pytest.mark.parametrize("name", POSTERIORS)
def test_assign_undoes_value(name, op):
    example = OPS[op]
    learned = moved(POSTERIORS[name](example.weight(), example.op))
    twin = POSTERIORS[name](example.weight(), example.op)
    values = {argument: learned.value(argument).detach() for argument in learned.roles}
    parameters = dict(twin.named_parameters())
    twin.assign(**values)
    for argument, value in values.items():
        torch.testing.assert_close(twin.value(argument), value, rtol=1e-9, atol=1e-9)
    assert all(twin.get_parameter(n) is p and p.grad_fn is None for n, p in parameters.items())


@pytest.mark.parametrize("name", POSTERIORS)
def test_every_tensor_of_a_posterior_has_one_role(name):
    learned = POSTERIORS[name](torch.randn(4, 3), Linear())
    by_role = [learned.tensors(role) for role in ("means", "scales", "factors", "other")]
    assert not by_role[3]
    assert {n for tensors in by_role for n in tensors} == set(dict(learned.named_parameters()))
    together = learned.tensors("means", "factors")
    assert together.keys() == by_role[0].keys() | by_role[2].keys()
    if not isinstance(POSTERIORS[name], lb.posteriors.ZeroMean | lb.posteriors.LowRank):
        (mean,) = by_role[0].values()
        assert mean.shape == (4, 3)


@pytest.mark.parametrize("name", PRIORS)
def test_numbers_of_a_prior_follow_the_model_and_are_not_saved(name):
    prior = PRIORS[name](torch.randn(4, 3))
    fixed = dict(prior.named_buffers())
    assert not fixed.keys() & prior.state_dict().keys()
    assert all(role == "other" for role in prior.roles.values())
    prior.double()
    assert all(tensor.dtype == torch.float64 for tensor in prior.buffers())
    assert set(prior.names) == fixed.keys() | dict(prior.named_parameters()).keys()


def normal():
    return Learned(td.Normal, loc=0.0, scale=Stored(torch.zeros(2), Exp()))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"scael": torch.ones(2)}, "learned tensor 'scael' is unknown; did you mean 'scale'?"),
        ({"loc": torch.ones(())}, "learned tensor 'loc' is unknown; choose one of df, scale"),
        ({"scale": torch.ones(3)}, r"scale was given shape \(3,\); it needs \(2,\)"),
        ({"scale": torch.tensor([1.0, -1.0])}, "a scale that is not positive"),
    ],
)
def test_assign_says_what_is_wrong_and_changes_nothing(values, sentence):
    learned = Learned(td.Normal, loc=0.0, scale=Stored(torch.zeros(2), Exp()), df=torch.ones(1))
    with pytest.raises(ValueError, match=sentence):
        learned.assign(df=torch.zeros(1), **values)
    assert torch.equal(learned.df, torch.ones(1))
    assert torch.equal(learned.scale, torch.zeros(2))


def test_assign_keeps_dtype_and_computes_in_that_of_the_value():
    learned, value = normal(), torch.tensor([0.1, 0.3], dtype=torch.float64)
    learned.assign(scale=value)
    assert learned.scale.dtype == torch.float32
    assert torch.equal(learned.scale, value.log().float())
    assert learned.scale.requires_grad


def test_a_learned_distribution_can_be_copied_and_its_numbers_have_a_dtype():
    learned = Learned(td.Normal, like=torch.zeros((), dtype=torch.float64), loc=1, scale=2.0)
    assert copy.deepcopy(learned)().loc == 1
    assert learned().scale.dtype == torch.float64
    assert not list(learned.parameters())


def _half(q, op, usage):
    return lb.estimators.mean(q, op, usage)


def test_registering_something_else_is_refused_in_one_sentence():
    with pytest.raises(
        ValueError, match=r"is not a posterior; derive .* from lb\.posteriors\.Posterior"
    ):
        lb.extend.register_posterior(nn.Linear)
    with pytest.raises(ValueError, match=r"is not a prior; derive .* from lb\.priors\.Prior"):
        lb.extend.register_prior(lb.MeanField)
    for estimator in ("mean", lambda q, op, usage: q.mean_map(op)):
        with pytest.raises(ValueError, match="is not an estimator; give a named function"):
            lb.extend.register_estimator(estimator)
    with pytest.raises(ValueError, match="there is a posterior 'MeanField' already"):
        lb.extend.register_posterior(type("MeanField", (lb.posteriors.Posterior,), {}))


def test_a_registered_estimator_is_saved_by_its_name(tmp_path):
    net = nn.Linear(3, 2)
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0), _half)
    lb.extend.register_estimator(_half)
    try:
        lb.save(model, tmp_path / "m")
        assert lb.load(net, tmp_path / "m").estimator is _half
    finally:
        lb.estimators.ESTIMATORS.unregister("_half")
    with pytest.raises(UnknownNameError):
        lb.estimators.ESTIMATORS["_half"]


@pytest.mark.parametrize("stored", ["log", "log_variance", "softplus", "signed"])
@pytest.mark.parametrize("wrap", [lambda posterior: posterior, lb.posteriors.Pruned])
def test_a_distribution_may_transform_what_is_stored_by_itself(stored, wrap):
    """Logarithms of k-tied factors are given as they are; the value is the same in any case."""
    spec = wrap(lb.KTied(2, lb.posteriors.Scale(0.3, raw_spread=0.1, stored=stored)))
    learned = spec(torch.randn(4, 3), Linear())
    q = learned()
    q = q.base if wrap is lb.posteriors.Pruned else q
    given = {"u", "v"} if stored == "log" else set()
    assert learned.as_they_are == {"loc"} | given  # a matrix of means is what it is stored as
    for name, factor in (("u", q.u), ("v", q.v)):
        assert torch.equal(factor, learned.value(name))
    q.variance.sum().backward()
    assert all(learned.get_parameter(name).grad.abs().sum() > 0 for name in ("u", "v"))
    again = copy.deepcopy(learned)()
    assert torch.equal(again.variance, learned().variance)


def test_a_factor_that_is_no_number_is_named():
    u = torch.zeros(2, 4)
    u[0, 0] = torch.nan
    with pytest.raises(ValueError, match="given a u that is not finite"):
        KTiedNormal(torch.zeros(4, 3), u, torch.zeros(2, 3), log_unit=0.0, validate_args=True)
