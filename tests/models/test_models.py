"""Whole-model operations: KL, noise, members, posteriors, priors, parameter counts."""

import copy

import pytest
import torch
from registry import POSTERIORS, suitable_prior
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch_layers import LAYERS, POSTERIOR, PRIOR, Net, first, mlp

import leanbayes as lb
from leanbayes.distributions import LocationScale
from leanbayes.layers.forward_pass import estimator_for


def batch(rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 3, dtype=torch.float64)


def small_model(posterior=POSTERIOR, prior=PRIOR, **options) -> nn.Module:
    return lb.convert(mlp(), posterior, prior, **options)


def dense_kl(learned, scale: float) -> torch.Tensor:
    q = learned()
    prior = Normal(torch.zeros_like(q.mean), torch.full_like(q.mean, scale))
    return kl_divergence(Normal(q.mean, q.variance.sqrt()), prior).sum()


def test_kl_is_the_sum_over_weights_layers_and_random_biases():
    model = small_model(bias=lb.MeanField(0.2), bias_prior=lb.priors.Normal(2.0))
    maps = dict(lb.extend.random_maps(model))
    assert set(maps) == {"0", "0.bias", "2", "2.bias"}
    expected = {n: dense_kl(m.posterior, 2.0 if "bias" in n else 0.5) for n, m in maps.items()}
    for name, value in lb.named_kl(model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=0)
    torch.testing.assert_close(lb.kl(model), sum(expected.values()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", POSTERIORS)
def test_kl_does_not_depend_on_forward_calls(name):
    recipe = POSTERIORS[name]
    model = small_model(recipe, suitable_prior(recipe))
    seeded = torch.Generator().manual_seed(0).get_state()
    values = []
    for rows in (0, 6, 12):
        model(batch(rows))
        with torch.random.fork_rng():
            torch.set_rng_state(seeded)
            values.append(lb.kl(model))
    assert values[0] == values[1] == values[2]
    assert all(value.shape == () for value in lb.named_kl(model).values())


def test_a_shared_layer_is_counted_once():
    net = Net().double()
    model = lb.convert(net, POSTERIOR, PRIOR)
    assert set(lb.named_kl(model)) == {"stem", "body.0", "body.2.0", "again", "head"}
    assert len(affines(model)) == 5
    expected = sum(dense_kl(m.posterior, 0.5) for m in affines(model))
    torch.testing.assert_close(lb.kl(model), expected, rtol=1e-12, atol=0)


def affines(model: nn.Module) -> set[nn.Module]:
    return {m for m in model.modules() if isinstance(m, lb.extend.Affine)}


def test_using_mean_is_noise_free_and_ends_with_the_block():
    model, x = small_model(), batch()
    with lb.using(model, lb.estimators.mean):
        assert torch.equal(model(x), model(x))
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("context", [lb.using, lb.held])
def test_a_context_restores_after_an_exception(context):
    model = small_model(overrides={"2": {"estimator": lb.estimators.flipout}})
    with pytest.raises(KeyboardInterrupt), context(model, lb.estimators.mean):
        raise KeyboardInterrupt
    assert [m.estimator for m in affines(model)].count(lb.estimators.flipout) == 1
    assert [m.estimator for m in affines(model)].count(lb.estimators.auto) == 1
    assert all(m.held is None for m in affines(model))
    assert not torch.equal(model(x := batch()), model(x))


def test_using_nests():
    model = small_model()
    with lb.using(model, lb.estimators.weights):
        with lb.using(model, lb.estimators.mean):
            assert {estimator_for(m) for m in affines(model)} == {lb.estimators.mean}
        assert {estimator_for(m) for m in affines(model)} == {lb.estimators.weights}
    assert {estimator_for(m) for m in affines(model)} == {None}


def test_held_nests():
    model, x = small_model(), batch()
    with lb.held(model):
        outer = model(x)
        with lb.held(model):
            inner = model(x)
            assert torch.equal(model(x), inner)
        assert torch.equal(model(x), outer)
    assert not torch.equal(inner, outer)


@pytest.mark.parametrize("name", POSTERIORS)
def test_held_is_one_function_for_any_batch(name):
    recipe = POSTERIORS[name]
    model = small_model(recipe, suitable_prior(recipe))
    x, count = batch(), lb.extend.members(model)
    with lb.held(model), torch.no_grad():
        whole = model(lb.tile(x, count)).unflatten(0, (count, -1))
        for rows in (0, 1, 4):
            part = model(lb.tile(x[:rows], count)).unflatten(0, (count, rows))
            torch.testing.assert_close(part, whole[:, :rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["lstm_stacked_bidirectional", "transformer_encoder", "conv2d"])
@torch.no_grad()
def test_held_is_one_function_for_every_layer_type(name):
    layer = LAYERS[name]
    model, (x,) = lb.convert(layer.module(), POSTERIOR, PRIOR, bias=POSTERIOR), layer.input()
    with lb.held(model):
        whole, half = first(model(x)), first(model(x[:3]))
    torch.testing.assert_close(half, whole[:3], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(first(model(x)), whole)


def test_held_draws_are_differentiable():
    model = small_model()
    with lb.held(model):
        (model(batch(4)).square().sum() + model(batch(2)).square().sum()).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("estimator", [lb.estimators.local, lb.estimators.flipout])
def test_noise_per_example_cannot_be_held(estimator):
    model = small_model()
    with (
        pytest.raises(ValueError, match=r"use held\(model, lb\.estimators\.weights\)"),
        lb.held(model, estimator),
    ):
        pytest.fail("nothing may be held")
    assert all(m.held is None for m in affines(model))


def test_members_and_tile():
    assert lb.extend.members(mlp()) == lb.extend.members(small_model()) == 1
    prior = lb.priors.Normal(0.1, loc=1.0)
    model = small_model(lb.Rank1(4), prior, overrides={"2": {"posterior": lb.Rank1(1)}})
    assert lb.extend.members(model) == 4
    x = batch(2)
    tiled = lb.tile(x, 4)
    assert all(torch.equal(block, x) for block in tiled.chunk(4))
    mixed = small_model(lb.Rank1(4), prior, overrides={"2": {"posterior": lb.Rank1(3)}})
    with pytest.raises(ValueError, match=r"different numbers of members, \[3, 4\]"):
        lb.extend.members(mixed)


def test_map_posteriors_replaces_all_or_nothing():
    model, seen = small_model(bias=POSTERIOR), []

    def double_scale(name, learned):
        seen.append(name)
        q = learned()
        return lb.extend.Learned(
            LocationScale, loc=q.mean.detach(), scale=2 * q.variance.sqrt().detach()
        )

    wider = lb.extend.map_posteriors(model, double_scale)
    assert seen == [name for name, _ in lb.extend.random_maps(model)]
    for (_, a), (_, b) in zip(
        lb.extend.random_maps(wider), lb.extend.random_maps(model), strict=True
    ):
        torch.testing.assert_close(a.posterior().variance, 4 * b.posterior().variance)
    assert wider(batch()).shape == (6, 2)

    def fails_at_the_end(name, learned):
        if name.startswith("2"):
            return lb.extend.Learned(LocationScale, loc=torch.zeros(1, 1), scale=torch.ones(1, 1))
        return double_scale(name, learned)

    before = [m.posterior for _, m in lb.extend.random_maps(model)]
    with pytest.raises(ValueError, match=r"over \(1, 1\)"):
        lb.extend.map_posteriors(model, fails_at_the_end, inplace=True)
    assert all(
        m.posterior is p for (_, m), p in zip(lb.extend.random_maps(model), before, strict=True)
    )
    assert lb.extend.map_posteriors(model, double_scale, inplace=True) is model


def test_parameters_are_counted_by_role():
    counts = {
        "mean field": (small_model(), (12 + 8, 12 + 8, 6)),
        "k-tied": (small_model(lb.KTied(3)), (20, 3 * (4 + 3) + 3 * (2 + 4), 6)),
        "matrix normal": (small_model(lb.posteriors.MatrixNormal()), (20, (10 + 6) + (3 + 10), 6)),
        "variance": (small_model(lb.posteriors.ZeroMean()), (0, 20, 6)),
        "dropout": (small_model(lb.posteriors.VariationalDropout("neuron")), (20, 4 + 2, 6)),
        "learned prior": (small_model(prior=lb.priors.Normal(1.0, learn="layer")), (20, 20, 6 + 2)),
        "shared prior": (small_model(prior=lb.priors.Normal(1.0, learn="model")), (20, 20, 6 + 1)),
        "random bias": (small_model(bias=POSTERIOR), (26, 26, 0)),
        "plain": (mlp(), (0, 0, 26)),
    }
    for name, (model, expected) in counts.items():
        assert tuple(lb.count_parameters(model)) == expected, name
        assert lb.count_parameters(model).total == sum(p.numel() for p in model.parameters())


def test_frozen_parameters_are_not_counted():
    net = mlp()
    net[0].requires_grad_(False)
    assert tuple(lb.count_parameters(lb.convert(net, POSTERIOR, PRIOR))) == (8, 8, 2)


def test_update_priors_reaches_the_stationary_point_of_the_kl():
    model = small_model(prior=lb.priors.GroupARD())
    before = lb.kl(model).detach()
    lb.training.update_priors(model, rounds=200)
    after = lb.kl(model)
    assert after < before
    after.backward()
    for layer in affines(model):
        for parameter in layer.prior.parameters():
            assert parameter.grad.abs().max() < 1e-6


@pytest.mark.parametrize("name", POSTERIORS)
def test_a_model_can_be_copied_after_a_forward_pass(name):
    recipe = POSTERIORS[name]
    model = small_model(recipe, suitable_prior(recipe))
    (model(batch()).square().sum() + lb.kl(model)).backward()
    twin = copy.deepcopy(model)
    assert {id(p) for p in twin.parameters()}.isdisjoint(id(p) for p in model.parameters())
    assert lb.extend.members(twin) == lb.extend.members(model)
    x = lb.tile(batch(), lb.extend.members(model))
    with lb.using(model, lb.estimators.mean), lb.using(twin, lb.estimators.mean):
        assert torch.equal(twin(x), model(x))


@pytest.mark.parametrize("gradients", [True, False], ids=["grad", "no_grad"])
def test_a_copy_of_a_held_model_is_not_held_for_ever(gradients):
    model, x = small_model(), batch()
    with torch.set_grad_enabled(gradients), lb.held(model):
        twin = copy.deepcopy(model)
        assert torch.equal(model(x), model(x))
    assert not torch.equal(twin(x), twin(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_to_moves_everything(dtype):
    model = small_model(lb.KTied(2), lb.priors.Normal(0.5, learn="model"), bias=POSTERIOR).to(dtype)
    assert model(batch().to(dtype)).dtype == dtype
    assert lb.kl(model).dtype == torch.float32


def test_train_and_eval_do_not_switch_noise():
    model, x = small_model(), batch()
    for mode in (True, False):
        model.train(mode)
        assert not torch.equal(model(x), model(x))
        with lb.using(model, lb.estimators.mean):
            assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_state_dict_holds_parameters_and_no_noise(name):
    recipe = POSTERIORS[name]
    model = small_model(recipe, suitable_prior(recipe))
    model(batch())
    with lb.held(model):
        stored = {n for n in model.state_dict() if not n.endswith(".mask")}
        assert stored == {n for n, _ in model.named_parameters()}


def test_a_model_without_bayesian_layers_has_no_kl():
    with pytest.raises(ValueError, match=r"call lb\.convert"):
        lb.kl(mlp())
