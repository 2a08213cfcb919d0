"""Truncated and tied scales of trained models [k-tied, section 3; k-tied suppl., D.3]."""

import copy
import math
import time

import pytest
import torch
from digits import images, train
from torch import nn
from torch.distributions import Normal, kl_divergence

import leanbayes as lb
from research.papers.k_tied.low_rank_scales import to_k_tied, truncate
from research.papers.k_tied.tied_factors import tied_factors

COMPRESSIONS = [truncate, to_k_tied]
UNEVEN = lb.posteriors.Scale(0.3, raw_spread=0.5)


def uneven(net, posterior=None, bias=None):
    return lb.convert(net, posterior or lb.MeanField(UNEVEN), lb.priors.Normal(1.0), bias=bias)


def scale_of(layer):
    return layer.posterior().variance.sqrt().detach()


def divergence(before, after):
    """KL of independent normals with equal means, by torch."""
    zero = torch.zeros_like(before)
    return float(kl_divergence(Normal(zero, after), Normal(zero, before)).sum())


@pytest.fixture(scope="module")
def digits():
    return images()


@pytest.fixture(scope="module")
def trained(digits, request):
    torch.manual_seed(request.config.getoption("--seed"))
    x, y = digits
    net = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(0.3))
    train(model, x, y, steps=600, lr=3e-2, batch=200)
    return model


def negative_elbo(model, digits):
    """In nats over the whole data set; the same noise for every model."""
    x, y = digits
    outputs = lb.predict(model, x, samples=50, seed=0).samples
    with torch.no_grad():
        return float(lb.training.average_nll(outputs, y)) * len(y) + float(lb.kl(model))


@pytest.mark.checklist("KT7")
def test_rank_one_hurts_and_higher_ranks_are_close_to_full(trained, digits):
    full = negative_elbo(trained, digits)
    one, two, three = (negative_elbo(truncate(trained, rank), digits) - full for rank in (1, 2, 3))
    assert one > 3 * two
    assert two > three
    assert max(two, three) < 0.05 * full
    assert one > 0.07 * full


@pytest.mark.checklist("KT7")
def test_a_tied_posterior_loses_less_than_a_truncated_one(trained, digits):
    for rank in (1, 2):
        before = [scale_of(layer) for _, layer in lb.extend.random_maps(trained)]
        truncated, tied = (
            sum(
                divergence(old, scale_of(layer))
                for old, (_, layer) in zip(before, lb.extend.random_maps(made), strict=True)
            )
            for made in (
                truncate(trained, rank),
                to_k_tied(trained, rank),
            )
        )
        assert tied < truncated
    assert negative_elbo(to_k_tied(trained, 1), digits) < negative_elbo(
        truncate(trained, 1), digits
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [lambda: nn.Linear(9, 7), lambda: nn.Conv2d(3, 6, (2, 3))])
def test_truncation_is_the_nearest_matrix_of_its_rank(build, dtype):
    layer = uneven(build()).to(dtype)
    before, after = scale_of(layer), scale_of(truncate(layer, 2))
    u, s, v = torch.linalg.svd(before.double(), full_matrices=False)
    nearest = sum(s[i] * torch.outer(u[:, i], v[i]) for i in range(2)).clamp_min(1e-5)
    assert after.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(after.double(), nearest, rtol=tolerance, atol=0)


def test_truncated_scales_are_at_least_the_floor():
    layer = uneven(nn.Linear(30, 20), lb.MeanField(lb.posteriors.Scale(0.3, raw_spread=2.0)))
    raw = torch.linalg.svd(scale_of(layer), full_matrices=False)
    low = (raw.U[:, :2] * raw.S[:2]) @ raw.Vh[:2] < 1e-3
    after = scale_of(truncate(layer, 2, floor=1e-3))
    assert low.any()
    torch.testing.assert_close(after[low], torch.full_like(after[low], 1e-3))
    assert lb.kl(truncate(layer, 2)).isfinite()


@pytest.mark.parametrize("rank", [5, 9])
def test_full_rank_reproduces_the_scales(rank):
    layer = uneven(nn.Linear(9, 5))
    assert torch.equal(scale_of(truncate(layer, rank)), scale_of(layer))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_scales_that_are_a_product_are_found(rank):
    u, v = (torch.rand(rank, n, dtype=torch.float64).square() + 1e-3 for n in (20, 30))
    scale = u.T @ v
    factors = tied_factors(scale, rank)
    assert all((factor > 0).all() for factor in factors)
    assert divergence(scale, factors[0].T @ factors[1]) < 1e-3 * scale.numel()


def test_the_best_product_of_rank_one_balances_rows_and_columns():
    """Where the gradient vanishes, ŝ² / s² averages to one over every row and every column."""
    scale = (0.5 * torch.randn(20, 30, dtype=torch.float64)).exp()
    u, v = tied_factors(scale, 1)
    ratio = (u.T @ v / scale).square()
    torch.testing.assert_close(ratio.mean(0), torch.ones(30).double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(ratio.mean(1), torch.ones(20).double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_more_terms_lose_less_even_over_many_orders_of_magnitude(spread):
    scale = (spread * torch.randn(20, 15, dtype=torch.float64)).exp() * 1e-4
    losses = [divergence(scale, u.T @ v) for u, v in (tied_factors(scale, k) for k in (1, 2, 4))]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[0] > losses[1] > losses[2]


def test_a_rank_above_the_size_of_the_matrix_is_possible():
    scale = torch.rand(3, 4, dtype=torch.float64) + 0.1
    u, v = tied_factors(scale, 5)
    assert u.shape == (5, 3)
    assert divergence(scale, u.T @ v) < divergence(scale, torch.ones_like(scale))


def test_a_large_layer_is_tied_quickly():
    scale = (0.3 * torch.randn(400, 784)).exp()
    start = time.process_time()
    tied_factors(scale, 2)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_nothing_random_and_nothing_of_the_model_is_touched(compress):
    model = uneven(nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5)))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    first, second = compress(model, 2), compress(model, 2)
    assert torch.equal(state, torch.get_rng_state())
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_means_and_what_is_trained_stay(compress):
    model = uneven(nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5)))
    model[0].posterior.loc.requires_grad_(False)
    model[2].posterior.scale.requires_grad_(False)
    changed = compress(model, 2)
    for (_, old), (_, layer) in zip(
        lb.extend.random_maps(model), lb.extend.random_maps(changed), strict=True
    ):
        assert torch.equal(layer.posterior.loc, old.posterior.loc)
        assert layer.posterior.loc is not old.posterior.loc
        assert torch.linalg.matrix_rank(scale_of(layer), rtol=1e-4) <= 2
    posteriors = [changed[i].posterior for i in (0, 2)]
    scales = [{p.requires_grad for p in q.tensors("scales").values()} for q in posteriors]
    assert scales == [{True}, {False}]
    assert not changed[0].posterior.loc.requires_grad


@pytest.mark.parametrize(
    "posterior",
    [
        lb.posteriors.VariationalDropout("additive"),
        lb.posteriors.VariationalDropout("weight"),
        lb.posteriors.VariationalDropout("neuron"),
        lb.KTied(4, UNEVEN),
    ],
    ids=repr,
)
@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_every_family_of_independent_normal_weights_is_compressed(compress, posterior):
    layer = uneven(nn.Linear(9, 7), posterior).double()
    after = compress(layer, 2)
    kind = lb.MeanField if compress is truncate else lb.KTied
    assert isinstance(after.posterior.spec, kind)
    assert torch.equal(after.posterior().mean, layer.posterior().mean)
    assert lb.kl(after).isfinite()


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_what_has_that_rank_already_is_left(compress):
    layer = uneven(nn.Linear(9, 7), lb.KTied(2, UNEVEN))
    after = compress(layer, 3)
    assert after.posterior.spec == layer.posterior.spec
    assert torch.equal(scale_of(after), scale_of(layer))


@pytest.mark.parametrize(
    "posterior",
    [lb.posteriors.Point(), lb.posteriors.MatrixNormal(), lb.Rank1(2), lb.posteriors.ZeroMean()],
    ids=repr,
)
@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_a_model_with_nothing_to_compress_is_refused(compress, posterior):
    with pytest.raises(ValueError, match=r"independent normal weights.*MeanField"):
        compress(lb.convert(nn.Linear(9, 7), posterior), 2)


@pytest.mark.parametrize("compress", COMPRESSIONS)
@pytest.mark.parametrize("rank", [0, -1, 1.5])
def test_a_rank_is_a_positive_whole_number(compress, rank):
    with pytest.raises(ValueError, match="rank"):
        compress(uneven(nn.Linear(9, 7)), rank)


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_lstm_and_attention_are_compressed_and_biases_are_not(compress):
    net = nn.ModuleDict({"a": nn.LSTM(6, 5), "b": nn.MultiheadAttention(6, 2)})
    model = uneven(net, bias=lb.MeanField())
    after = compress(model, 2)
    changed = dict(lb.extend.random_maps(after))
    for name, layer in lb.extend.random_maps(model):
        if min(layer.posterior().event_shape) > 1:
            assert torch.linalg.matrix_rank(scale_of(changed[name]), rtol=1e-4) <= 2
        else:
            assert changed[name].posterior.spec == lb.MeanField()
            assert torch.equal(scale_of(changed[name]), scale_of(layer))
    x = torch.randn(4, 3, 6)
    assert after["a"](x)[0].shape == (4, 3, 5)
    assert after["b"](x, x, x)[0].shape == (4, 3, 6)


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_a_compressed_model_is_saved_loaded_and_trained(compress, tmp_path):
    net = nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5))
    model = compress(uneven(net), 2)
    lb.save(model, tmp_path / "model")
    again = lb.load(net, tmp_path / "model")
    for (_, a), (_, b) in zip(
        lb.extend.random_maps(model), lb.extend.random_maps(again), strict=True
    ):
        assert a.posterior.spec == b.posterior.spec
        assert torch.equal(scale_of(a), scale_of(b))
    before = [p.clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.randn(8, 9)).square().mean() + lb.kl(model)).backward()
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.checklist("KT23")
@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_training_goes_on_from_a_truncated_posterior(compress, digits, trained):
    """A fifth of the training wins back most of what rank 1 has lost."""
    x, y = digits
    model = compress(trained, 1)
    whole, before = (negative_elbo(each, digits) for each in (trained, model))
    train(model, x, y, steps=120, lr=3e-3, batch=200)
    after = negative_elbo(model, digits)
    assert before > whole + 20
    assert after < before - 0.5 * (before - whole)


def test_parameters_of_a_tied_model_are_those_of_the_paper():
    """MLP of the k-tied paper: 956,820 with full and 484,008 with two-tied scales, biases mean
    field.
    """
    net = nn.Sequential(nn.Linear(784, 400), nn.Linear(400, 400), nn.Linear(400, 10))
    full = lb.convert(net, lb.MeanField(), lb.priors.Normal(0.2), bias=lb.MeanField())
    tied = to_k_tied(full, 2)
    assert [lb.count_parameters(model).total for model in (full, tied)] == [956_820, 484_008]
