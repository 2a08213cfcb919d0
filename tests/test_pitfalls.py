"""What libraries of Bayesian layers get wrong, each as a test of ours."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal, kl_divergence
from torch_layers import LAYERS, POSTERIOR, PRIOR, first, mlp

import leanbayes as lb


def test_kl_is_not_averaged_within_a_layer():
    model = lb.convert(nn.Linear(30, 20).double(), POSTERIOR, PRIOR)
    q = Normal(model.mean_weight, 0.1)
    expected = kl_divergence(q, Normal(torch.zeros(20, 30).double(), 0.5))
    torch.testing.assert_close(lb.kl(model), expected.sum())


def test_kl_is_not_divided_by_the_number_of_layers():
    layer = nn.Linear(4, 4).double()
    one = lb.convert(nn.Sequential(layer), POSTERIOR, PRIOR)
    three = lb.convert(nn.Sequential(*(copy.deepcopy(layer) for _ in range(3))), POSTERIOR, PRIOR)
    torch.testing.assert_close(lb.kl(three), 3 * lb.kl(one))


def test_a_prior_scale_is_a_standard_deviation_and_not_a_variance():
    layer = nn.Linear(4, 4).double()
    nn.init.zeros_(layer.weight)
    model = lb.convert(layer, lb.MeanField(0.2), lb.priors.Normal(0.2))
    assert float(lb.kl(model).detach()) == pytest.approx(0.0, abs=1e-12)
    he = lb.convert(
        layer, lb.MeanField(math.sqrt(2 / 4)), lb.priors.He()
    )  # a variance of 2 / fan-in
    assert float(lb.kl(he).detach()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softplus_does_not_overflow(dtype):
    raw = torch.tensor([-1000.0, 0.0, 100.0, 1000.0], dtype=dtype, requires_grad=True)
    scale = lb.posteriors.Scale(stored="softplus").transform(raw)
    scale.log().sum().backward()
    assert scale.isfinite().all()
    assert (scale > 0).all()
    assert scale[2:].tolist() == [100.0, 1000.0]
    assert raw.grad.isfinite().all()


CONVS = {
    "conv1d": nn.Conv1d(2, 4, 3),
    "conv2d": nn.Conv2d(2, 4, 3),
    "conv2d_grouped": nn.Conv2d(2, 4, 3, groups=2),
    "conv3d": nn.Conv3d(2, 4, 2),
}


@pytest.mark.parametrize("name", CONVS)
def test_flipout_draws_a_sign_per_channel_and_not_per_pixel(name):
    """A constant image gives a spatially constant perturbation, another for every example."""
    conv = CONVS[name]
    shape = (6,) * len(conv.kernel_size)
    model = lb.convert(conv.double(), POSTERIOR, PRIOR, lb.estimators.flipout)
    pixel = torch.randn(1, 2, *(1,) * len(shape), dtype=torch.float64)
    y = model(pixel.expand(16, 2, *shape)).detach()
    flat = y.flatten(2)
    assert (flat - flat[..., :1]).abs().max() < 1e-12
    assert (flat[..., 0].std(0) > 0).all()


@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d_grouped", "embedding"])
def test_flipout_perturbs_with_the_deviation_and_not_with_the_whole_weight(name):
    layer = LAYERS[name]
    net, x = layer.module(), layer.input()
    model = lb.convert(net, lb.MeanField(1e-9), PRIOR, lb.estimators.flipout)
    torch.testing.assert_close(model(*x), net(*x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_stacked_bidirectional_network_keeps_its_layers(kind):
    net = kind(3, 4, num_layers=3, bidirectional=True)
    model = lb.convert(net, POSTERIOR, PRIOR)
    assert len(list(lb.extend.random_maps(model))) == 3 * 2 * 2
    x = torch.randn(5, 2, 3)
    ours, theirs = model(x), net(x)
    assert ours[0].shape == theirs[0].shape == (5, 2, 8)
    assert first(ours[1]).shape == first(theirs[1]).shape
    means = lb.count_parameters(model).means
    assert means == sum(p.numel() for n, p in net.named_parameters() if "weight" in n)


@pytest.mark.parametrize("name", ["linear", "conv2d_non_square", "transformer_encoder_layer"])
def test_nothing_is_silently_left_deterministic(name):
    layer = LAYERS[name]
    model = lb.convert(layer.module(), POSTERIOR, PRIOR)
    assert len(list(lb.extend.random_maps(model))) == layer.matrices
    with torch.no_grad():
        assert not torch.equal(model(*layer.input()), model(*layer.input()))


def test_pretrained_weights_are_not_dropped():
    net, x = mlp(), torch.randn(5, 3, dtype=torch.float64)
    for posterior in (
        POSTERIOR,
        lb.KTied(2),
        lb.posteriors.MatrixNormal(),
        lb.posteriors.VariationalDropout(),
        lb.posteriors.Point(),
    ):
        with lb.using(model := lb.convert(net, posterior, PRIOR), lb.estimators.mean):
            torch.testing.assert_close(model(x), net(x))


def test_a_model_can_be_copied_after_a_forward_pass():
    model, x = lb.convert(mlp(), POSTERIOR, PRIOR), torch.randn(5, 3, dtype=torch.float64)
    model(x).sum().backward()
    twin = copy.deepcopy(model)
    torch.testing.assert_close(lb.kl(twin), lb.kl(model))


def test_noise_is_no_part_of_the_state():
    net = mlp()
    model = lb.convert(net, lb.KTied(2), PRIOR)
    size = sum(t.numel() for t in model.state_dict().values())
    model(torch.randn(5, 3, dtype=torch.float64))
    assert sum(t.numel() for t in model.state_dict().values()) == size
    factors = 2 * (3 + 4) + 2 * (4 + 2)
    assert size == sum(p.numel() for p in net.parameters()) + factors


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_can_be_exported():
    model, x = lb.convert(mlp(), lb.KTied(2), PRIOR), torch.randn(5, 3, dtype=torch.float64)
    model(x)
    with lb.using(model, lb.estimators.mean):
        exported = torch.export.export(model, (x,))
        torch.testing.assert_close(exported.module()(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_is_one_graph():
    model, x = lb.convert(mlp(), lb.KTied(2), PRIOR), torch.randn(5, 3, dtype=torch.float64)
    compiled = torch.compile(
        lambda x: model(x).sum() + lb.kl(model), fullgraph=True, backend="eager"
    )
    assert compiled(x) != compiled(x)
    Distribution.set_default_validate_args(__debug__)  # the compiler switches it off for good


def test_noise_does_not_follow_the_training_flag():
    model, x = lb.convert(mlp(), POSTERIOR, PRIOR).eval(), torch.randn(5, 3, dtype=torch.float64)
    assert not torch.equal(model(x), model(x))


def test_the_members_of_a_mixture_are_not_averaged_before_the_network_ends():
    """Random signs would cancel: the mean is kept per member."""
    model = lb.convert(mlp(), lb.Rank1(2, "fixed", signs=0.5), lb.priors.Flat())
    with torch.no_grad():
        model[0].posterior.r_loc[1] = -model[0].posterior.r_loc[0]
        model[0].posterior.s_loc[1] = model[0].posterior.s_loc[0]
    assert model[0].mean_weight.shape == (2, 4, 3)
    torch.testing.assert_close(model[0].mean_weight[0], -model[0].mean_weight[1])
    assert model[0].mean_weight[0].abs().sum() > 0
