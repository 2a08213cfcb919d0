"""Bayesian -> deterministic: the way back gives the network that was converted."""

import pytest
import torch
from torch import nn
from torch_layers import LAYERS, POSTERIOR, PRIOR, Net, first, mlp, snapshot

import leanbayes as lb

MEAN_KEEPING = {
    "point": lb.posteriors.Point(),
    "mean_field": POSTERIOR,
    "k_tied": lb.KTied(2),
    "matrix_normal": lb.posteriors.MatrixNormal(0.1, diagonal=True),
    "dropout": lb.posteriors.VariationalDropout("neuron"),
}


def assert_same_network(a: nn.Module, b: nn.Module) -> None:
    assert [(n, type(m)) for n, m in a.named_modules()] == [
        (n, type(m)) for n, m in b.named_modules()
    ]
    assert list(a.state_dict()) == list(b.state_dict())
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name]), name


@pytest.mark.parametrize("bias", [None, POSTERIOR], ids=["plain_bias", "random_bias"])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_the_way_back_gives_the_same_network(name, bias):
    net, x = LAYERS[name].module(), LAYERS[name].input()
    back = lb.deterministic(lb.convert(net, POSTERIOR, PRIOR, bias=bias))
    assert_same_network(back, net)
    torch.testing.assert_close(first(back(*x)), first(net(*x)), rtol=0, atol=0)


@pytest.mark.parametrize("posterior", MEAN_KEEPING)
@pytest.mark.parametrize("name", ["linear", "conv2d_grouped", "conv_transpose2d_grouped", "lstm"])
def test_every_posterior_that_keeps_means_gives_them_back(name, posterior):
    net = LAYERS[name].module()
    assert_same_network(
        lb.deterministic(lb.convert(net, MEAN_KEEPING[posterior], PRIOR)),
        net,
    )


def test_a_variance_layer_gives_zero_weights():
    back = lb.deterministic(lb.convert(nn.Linear(3, 2), lb.posteriors.ZeroMean(), PRIOR))
    assert not back.weight.any()


@pytest.mark.parametrize("options", LAYERS)
def test_options_that_no_weight_shows_come_back(options):
    net = LAYERS[options].module()
    back = lb.deterministic(lb.convert(net, POSTERIOR, PRIOR))
    assert repr(back) == repr(net)
    assert [m.training for m in back.modules()] == [m.training for m in net.modules()]


def test_trained_means_become_weights():
    model = lb.convert(mlp(), POSTERIOR, PRIOR)
    x = torch.randn(5, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x).square().mean() + lb.kl(model)).backward()
    optimizer.step()
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(lb.deterministic(model)(x), model(x), rtol=1e-12, atol=1e-12)


MEMBERS = ["linear", "conv2d", "embedding", "lstm", "gru", "attention"]
MEMBERS += ["embedding_bag", "bilinear", "lstm_cell"]


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("member", [0, 2])
def test_one_member_of_a_mixture(name, member):
    layer = LAYERS[name]
    recipe, prior = lb.Rank1(3, rate=0.1), lb.priors.Normal(0.1, loc=1.0)
    model = lb.convert(layer.module(), recipe, prior)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = layer.input()
    batch_axis = 1 if name in ("lstm", "gru", "attention") else 0
    tiled = [torch.cat([part] * 3, batch_axis) for part in x]
    with lb.using(model, lb.estimators.mean), torch.no_grad():
        blocks = first(model(*tiled)).chunk(3, batch_axis)
        plain = first(lb.deterministic(model, member=member)(*x))
    torch.testing.assert_close(plain, blocks[member], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("member", "remedy"), [(None, "pass member=0"), (3, "there are 3"), (-1, "there are 3")]
)
def test_a_mixture_needs_to_be_told_which_member(member, remedy):
    model = lb.convert(mlp(), lb.Rank1(3), lb.priors.Flat())
    with pytest.raises(ValueError, match=remedy):
        lb.deterministic(model, member=member)


def test_frozen_weights_come_back_frozen():
    net = mlp()
    net[0].requires_grad_(False)
    back = lb.deterministic(lb.convert(net, POSTERIOR, PRIOR))
    assert snapshot(back)[3] == snapshot(net)[3]


@pytest.mark.parametrize("bias", [None, POSTERIOR], ids=["plain_bias", "random_bias"])
@pytest.mark.parametrize("posterior", [POSTERIOR, lb.Rank1(1)], ids=repr)
@pytest.mark.parametrize("name", LAYERS)
def test_a_frozen_layer_of_any_kind_comes_back_frozen(name, posterior, bias):
    net = LAYERS[name].module().requires_grad_(False)
    model = lb.convert(net, posterior, lb.priors.Normal(0.1, loc=1.0), bias=bias, bias_prior=PRIOR)
    assert snapshot(lb.deterministic(model))[3] == snapshot(net)[3]


def test_a_layer_made_by_hand_has_no_torch_layer_to_go_back_to():
    weight, op = torch.randn(2, 3), lb.ops.Linear()
    layer = lb.extend.Affine(op, POSTERIOR(weight, op), PRIOR(weight))
    with pytest.raises(ValueError, match=r"was not made from a torch layer.*lb\.convert"):
        lb.deterministic(nn.Sequential(layer))


def test_shared_layers_come_back_shared():
    net = Net()
    back = lb.deterministic(lb.convert(net, POSTERIOR, PRIOR))
    assert back.again is back.stem_twin
    assert_same_network(back, net)


def test_the_model_is_left_as_it_was():
    model = lb.convert(mlp(), POSTERIOR, PRIOR)
    before = snapshot(model)
    back = lb.deterministic(model)
    with torch.no_grad():
        back[0].weight.fill_(3.0)
    types, _, numbers, _ = snapshot(model)
    assert types == before[0]
    assert all(torch.equal(numbers[n], before[2][n]) for n in numbers)


@pytest.mark.parametrize("name", ["linear", "lstm", "attention"])
def test_no_random_number_is_drawn(name):
    model = lb.convert(LAYERS[name].module(), POSTERIOR, PRIOR)
    state = torch.get_rng_state()
    lb.deterministic(model)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@torch.no_grad()
def test_padded_sequences_take_the_fused_path_again():
    net, (x,) = LAYERS["transformer_encoder"].module(), LAYERS["transformer_encoder"].input()
    padding = torch.zeros(x.shape[:2], dtype=torch.bool)
    padding[0, 3:] = True
    back = lb.deterministic(lb.convert(net, POSTERIOR, PRIOR))
    expected = net(x, src_key_padding_mask=padding)
    assert not expected[0, 3:].any()  # the fused path fills padded positions with zeros
    torch.testing.assert_close(back(x, src_key_padding_mask=padding), expected)


@pytest.mark.parametrize("nested", [True, False])
def test_encoders_take_the_paths_they_took(nested):
    def encoder() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

    net = nn.ModuleList([encoder(), encoder()])
    model = lb.convert(net, POSTERIOR, PRIOR, include=["0.layers.1.linear1"])

    def paths(module: nn.Module) -> list:
        encoders = [(e.use_nested_tensor, e.layers) for e in module]
        return [(use, [m.activation_relu_or_gelu for m in layers]) for use, layers in encoders]

    assert paths(model) == [(False, [2, 0]), (nested, [2, 2])]
    assert paths(lb.deterministic(model)) == paths(net)


def test_a_partly_converted_network_comes_back_whole():
    net = Net()
    assert_same_network(
        lb.deterministic(lb.convert(net, POSTERIOR, PRIOR, include=["body.*"])), net
    )
