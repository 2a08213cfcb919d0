"""Compaction: a smaller network that computes what the masked one does, or keeps and names."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from random_networks import Residual, random_network
from registry import POSTERIORS
from torch import nn

import leanbayes as lb
from leanbayes.analysis.sparsity import sparsity_report
from leanbayes.compression.compaction.cut_layers import LayerWithWeights
from leanbayes.testing import threshold
from research.networks import build

FAMILIES = {
    "mean_field": lb.MeanField(0.1),
    "k_tied": lb.KTied(2, 0.1),
    "matrix_normal": lb.posteriors.MatrixNormal(0.1),
    "matrix_normal_low_rank": lb.posteriors.MatrixNormal(0.1, rank=1),
    "matrix_normal_plus_diagonal": lb.posteriors.MatrixNormal(0.1, diagonal=True),
    "dropout": lb.posteriors.VariationalDropout("neuron"),
    "zero_mean": lb.posteriors.ZeroMean(),
}
PRIORS = (
    lb.priors.Normal(0.5),
    lb.priors.GroupARD(),
    lb.priors.ARD(),
    lb.priors.He(),
    lb.priors.GroupARD(groups="row"),
    lb.priors.Flat(),
)


@torch.no_grad()
def outputs(model, x):
    with lb.using(model, lb.estimators.mean):
        return model.eval()(x)


def assert_equal(small, model, x):
    ours, theirs = outputs(small, x), outputs(model, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * (1 + theirs.abs().max()))


@torch.no_grad()
def masked(net, posterior, prior, **options):
    """A Bayesian network whose weights are off where those of a plain one are zero."""
    model = lb.convert(net, lb.posteriors.Pruned(posterior), prior, **options)
    plain = dict(net.named_modules())
    for name, layer in lb.extend.random_maps(model):
        if name in plain:
            layer.posterior.mask.copy_(layer.op.matrix(plain[name].weight) != 0)
    return model


def switched_off(module, rows=(), columns=()):
    """A layer with these outputs and inputs at zero."""
    with torch.no_grad():
        module.weight[list(rows)] = 0.0
        module.weight[:, list(columns)] = 0.0
    return module


def units_off(model):
    """How many outputs of every layer have no weight."""
    rows = sparsity_report(model).layers
    return {row.name: row.rows.of - row.rows.left for row in rows if row.rows.left < row.rows.of}


def assert_named(small, report):
    """Every unit that is off and still there is named."""
    named = {}
    for kept in report.kept:
        named[kept.name] = named.get(kept.name, 0) + kept.units
    for name, count in units_off(small).items():
        assert named.get(name, 0) >= count, f"{name} keeps {count} units in silence"


# any network


@pytest.mark.parametrize("seed", range(40))
def test_a_random_network_computes_the_same_or_is_kept_and_named(seed):
    net, x = random_network(seed)
    before = copy.deepcopy(net.state_dict())
    small, report = lb.compact(net, x if seed % 2 else None)
    assert_equal(small, net, x)
    assert_named(small, report)
    assert report.layers
    if report.multiply_adds is not None:
        assert report.multiply_adds[1] <= report.multiply_adds[0]
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    again, second = lb.compact(small, x)
    assert_equal(again, net, x)
    if not any(getattr(module, "groups", 1) > 1 for module in net.modules()):
        assert all(row.before == row.after for row in second.layers), "once was not enough"


@pytest.mark.parametrize("seed", range(42))
def test_a_random_bayesian_network_computes_the_same_or_is_kept_and_named(seed):
    net, x = random_network(100 + seed)
    posterior, prior = list(FAMILIES.values())[seed % 7], PRIORS[seed % 6]
    biases = {"bias": lb.MeanField(), "bias_prior": lb.priors.Normal(1.0)} if seed % 4 == 0 else {}
    model = masked(net, posterior, prior, **biases)
    small, report = lb.compact(model, x if seed % 2 else None)
    assert_equal(small, model, x)
    assert_named(small, report)
    assert_equal(lb.deterministic(small), model, x)
    assert small(x).shape == model(x).shape
    assert lb.kl(small) <= lb.kl(model) + 1e-4 * lb.kl(model).abs()


def test_the_random_networks_catch_a_constant_that_is_lost(monkeypatch):
    monkeypatch.setattr(LayerWithWeights, "shift", lambda self, values, which: self.bias * 0)
    assert sum(_differs(seed) for seed in range(10)) >= 3


def test_the_random_networks_catch_a_border_that_is_forgotten(monkeypatch):
    monkeypatch.setattr(LayerWithWeights, "has_border", False)
    assert sum(_differs(seed) for seed in range(30)) >= 2


def _differs(seed):
    net, x = random_network(seed)
    small, _ = lb.compact(net)
    theirs = outputs(net, x)
    return bool((outputs(small, x) - theirs).abs().max() > 1e-4 * (1 + theirs.abs().max()))


def test_a_result_that_is_wrong_for_the_example_is_not_given(monkeypatch):
    monkeypatch.setattr(LayerWithWeights, "shift", lambda self, values, which: self.bias * 0)
    net = nn.Sequential(switched_off(nn.Linear(3, 4), [0, 1]), nn.Sigmoid(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    small, report = lb.compact(net, x)
    assert torch.equal(small(x), net(x))
    assert "did not give the same outputs" in str(report)


@pytest.mark.parametrize("name", ["mlp-elu", "lenet5-caffe", "fashion-cnn", "small-cnn"])
def test_networks_of_the_papers_with_half_of_their_units_off(name):
    net = build(name).eval()
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and len(module.weight) > 10:
            switched_off(module, range(0, len(module.weight), 2))
    x = torch.randn(2, *net.input_shape)
    small, report = lb.compact(net, x)
    assert_equal(small, net, x)
    assert_named(small, report)
    before, after = report.multiply_adds
    assert after < 0.5 * before


# what goes


def test_the_constant_of_a_dead_unit_goes_into_the_next_bias():
    net = nn.Sequential(switched_off(nn.Linear(3, 4), [1, 3]), nn.Sigmoid(), nn.Linear(4, 2))
    small, report = lb.compact(net)
    assert (small[0].weight.shape, small[2].weight.shape) == ((2, 3), (2, 2))
    assert (small[0].out_features, small[2].in_features) == (2, 2)
    dead = net[0].bias[[1, 3]].sigmoid()
    expected = net[2].bias + net[2].weight[:, [1, 3]] @ dead
    torch.testing.assert_close(small[2].bias, expected)
    assert report.kept == ()


def test_a_layer_without_a_bias_gets_one_where_it_must():
    net = nn.Sequential(switched_off(nn.Linear(3, 4), [1]), nn.Tanh(), nn.Linear(4, 2, bias=False))
    small, _ = lb.compact(net)
    torch.testing.assert_close(small[2].bias, net[2].weight[:, 1] * net[0].bias[1].tanh())
    silent = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
    switched_off(silent[0], [1])
    assert lb.compact(silent).model[2].bias is None


def test_what_nothing_reads_goes_and_what_it_read_goes_too():
    net = nn.Sequential(
        nn.Linear(5, 4),
        nn.ReLU(),
        switched_off(nn.Linear(4, 3), columns=[0]),
        nn.ReLU(),
        switched_off(nn.Linear(3, 2), columns=[1]),
    )
    with torch.no_grad():
        net[2].weight[0, 2] = net[2].weight[2, 2] = 0.0  # only unit 1, which nothing reads
    small, _ = lb.compact(net)
    assert [tuple(net.weight.shape) for net in (small[0], small[2], small[4])] == [
        (2, 5),
        (2, 2),
        (2, 2),
    ]
    assert_equal(small, net, torch.randn(6, 5))


def test_a_dead_layer_keeps_one_unit():
    net = nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 5), nn.ELU(), nn.Linear(5, 2))
    switched_off(net[2], range(5))
    small, report = lb.compact(net)
    assert [small[i].out_features for i in (0, 2, 4)] == [1, 1, 2]
    assert_equal(small, net, torch.randn(6, 3))
    assert "keeps one unit at least" in str(report)


def test_whole_groups_of_a_convolution_go_and_parts_of_one_stay():
    first, grouped = nn.Conv2d(1, 6, 1), nn.Conv2d(6, 6, 3, groups=3)
    net = nn.Sequential(first, nn.ReLU(), grouped, nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))
    switched_off(grouped, [0, 1, 2])  # the first group, and half of the second
    small, report = lb.compact(net)
    assert (small[2].groups, small[2].in_channels, small[2].out_channels) == (2, 4, 4)
    assert small[0].out_channels == 4
    assert_equal(small, net, torch.randn(2, 1, 4, 4))
    assert [(kept.name, kept.units) for kept in report.kept] == [("2", 1)]
    assert "their group of '2' is in use" in str(report)


def test_a_depthwise_convolution_loses_channels():
    net = nn.Sequential(
        switched_off(nn.Conv2d(2, 5, 1), [0, 3]),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 5, 3, groups=5),
        nn.Conv2d(5, 3, 1),
    ).eval()
    small, _ = lb.compact(net, torch.randn(2, 2, 5, 5))
    assert (small[3].groups, small[1].num_features) == (3, 3)
    assert_equal(small, net, torch.randn(2, 2, 5, 5))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_every_dimension(dims):
    conv, norm, pool = (
        getattr(nn, f"{n}{dims}d") for n in ("Conv", "BatchNorm", "AdaptiveMaxPool")
    )
    net = nn.Sequential(
        switched_off(conv(2, 4, 2), [1]), norm(4), nn.GELU(), pool(2), nn.Flatten()
    ).append(nn.Linear(4 * 2**dims, 3))
    x = torch.randn(3, 2, *[5] * dims)
    small, report = lb.compact(net.eval(), x)
    assert small[5].in_features == 3 * 2**dims
    assert report.multiply_adds[0] > report.multiply_adds[1]
    assert_equal(small, net, x)


def test_frozen_layers_stay_frozen_and_modes_stay():
    net = nn.Sequential(switched_off(nn.Linear(3, 4), [0]), nn.BatchNorm1d(4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    net[1].eval()
    model = masked(net, lb.MeanField(), lb.priors.GroupARD(), include=("0",))
    small, _ = lb.compact(model, torch.randn(5, 3))
    assert small[0].channels == 3
    assert not any(p.requires_grad for p in small[0].parameters())
    assert [m.training for m in small] == [m.training for m in net] == [True, False, True]
    assert all(m.training for m in small[0].modules())
    assert all(p.requires_grad for p in small[2].parameters())


# what stays, and is named


MORE = "what reads them meets more than constants: another summand, or a padded pooling"


def reasons(net, example=None):
    small, report = lb.compact(net, example)
    return small, {kept.name: kept.why for kept in report.kept}


@pytest.mark.parametrize("mode", ["zeros", "circular", "replicate", "reflect"])
def test_a_constant_is_no_constant_at_a_border_of_zeros(mode):
    first = switched_off(nn.Conv2d(1, 4, 3), [0, 2])
    net = nn.Sequential(first, nn.ELU(), nn.Conv2d(4, 2, 3, padding=1, padding_mode=mode))
    small, why = reasons(net)
    assert_equal(small, net, torch.randn(2, 1, 7, 7))
    if mode == "zeros":
        assert why == {"0": "for '2' one carries the constants of those that are gone"}
        assert small[0].out_channels == 3
    else:
        assert small[0].out_channels == 2
    with torch.no_grad():
        first.bias[[0, 2]] = 0.0  # ELU(0) is 0, at the border too
    assert lb.compact(net).model[0].out_channels == 2


def test_constants_of_different_size_are_carried_by_the_largest():
    first = switched_off(nn.Conv2d(1, 5, 3), [0, 2, 3])
    with torch.no_grad():
        first.bias[[0, 2, 3]] = torch.tensor([1e-6, 3.0, -0.5])
    net = nn.Sequential(first, nn.ELU(), nn.ConvTranspose2d(5, 2, 3, stride=2, padding=1))
    small, report = lb.compact(net)
    assert small[0].bias.tolist()[1] == 3.0
    assert [(kept.name, kept.units) for kept in report.kept] == [("0", 1)]
    assert_equal(small, net, torch.randn(2, 1, 7, 7))


def test_constants_meet_a_border_of_random_weights():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ELU(), nn.Conv2d(4, 2, 3, padding=1))
    switched_off(net[0], [0, 2])
    small, why = reasons(masked(net, lb.MeanField(), lb.priors.Normal(1.0)))
    assert why == {"0": "their constants meet the zero padding of '2'"}
    assert small[0].posterior().event_shape == (4, 9)


def test_a_sum_loses_what_all_summands_have_lost():
    body = switched_off(nn.Linear(4, 5), [0, 1])
    shortcut = switched_off(nn.Linear(4, 5), [1, 2])
    net = nn.Sequential(Residual(body, shortcut, 0), nn.ELU(), nn.Linear(5, 3))
    small, why = reasons(net)
    assert small[2].in_features == 4
    assert why == dict.fromkeys(["0.body", "0.shortcut"], MORE)
    assert_equal(small, net, torch.randn(6, 4))


class Written(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between):
        super().__init__()
        self.first = switched_off(nn.Linear(4, 6), [0, 1])
        self.second = nn.Linear(6, 3)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self, self.first(x)))


def _reads_again(net, h):
    a = F.elu(h, inplace=True)
    return a + h


def _reads_a_view_again(net, h):
    view = h.flatten(1)
    F.elu(h, inplace=True)
    return view


def _writes_elsewhere(net, h):
    view = h.flatten(1)
    view.mul_(2.0)
    return F.elu(h)


def _computes(net, h):
    return h + F.linear(h, net.second.weight.T @ net.second.weight)


@pytest.mark.parametrize(
    ("between", "name", "why"),
    [
        (lambda net, h: F.softmax(h, -1), "softmax", "it is not in the table of operations"),
        (lambda net, h: h * 2, "mul", "it is not in the table of operations"),
        (lambda net, h: h.view(-1, 6), "view", "it has fixed sizes; write flatten(1)"),
        (lambda net, h: h + h.mean(), "mean", "it meets no channels with positions"),
        (lambda net, h: F.dropout(h, 0.0), "dropout", "it drops in eval mode too"),
        (lambda net, h: h[:, [1, 0, 2, 3, 4, 5]], "getitem", "it is not in the table"),
        (lambda net, h: h + h.shape[1], "getattr_1", "it is not in the table"),
        (lambda net, h: torch.add(h, h, alpha=2), "add", "it is not a plain sum of two tensors"),
        (_reads_again, "elu", "it may write into a tensor that is read again"),
        (_reads_a_view_again, "elu", "it may write into a tensor that is read again"),
        (_writes_elsewhere, "mul_", "it is not in the table"),
        (_computes, "linear", "it is not in the table"),
    ],
)
def test_an_operation_that_is_not_in_the_table_is_named(between, name, why):
    net = Written(between)
    small, kept = reasons(net)
    assert why in kept[name]
    assert f"{name!r} needs them" in kept["first"]
    assert small.first.out_features == 6
    x = torch.randn(5, 4)
    torch.testing.assert_close(small(x), net(x))


def _branches(net, h):
    return h if h.sum() > 0 else -h


def _constant(net, h):
    return h + torch.arange(6.0)


def test_a_model_that_cannot_be_traced_is_kept_whole_and_named():
    for between, why in (
        (_branches, "it cannot be traced: symbolically traced variables cannot be used as inputs"),
        (_constant, "its code computes with tensors that are not its parameters"),
    ):
        net = Written(between)
        small, report = lb.compact(net)
        assert str(report.kept[0]).startswith(f"kept: (the model): {why}")
        assert report.layers == ()
        x = torch.randn(5, 4)
        assert torch.equal(small(x), net(x))


def _asks_for_a_bias(net, h):
    return F.relu(h) if net.second.bias is None else F.elu(h)


@pytest.mark.parametrize(
    "between",
    [
        lambda net, h: F.elu(h, net.first.out_features / 6),
        lambda net, h: F.elu(h, alpha=net.second.in_features / 6),
        lambda net, h: F.relu(h) if net.first.out_features > 5 else F.elu(h),
        lambda net, h: F.elu(h, net.norm.num_features / 6),
        _asks_for_a_bias,
    ],
)
@pytest.mark.parametrize("bayesian", [False, True])
def test_a_model_whose_code_reads_sizes_is_kept_whole_without_an_example(between, bayesian):
    net = Written(between)
    net.second = nn.Linear(6, 3, bias=False)
    net.norm = nn.BatchNorm1d(6)
    net.between = lambda net, h: between(net, net.norm(h.flatten(1)))
    net.eval()
    net.norm.running_mean.normal_()
    if bayesian:
        net = masked(net, lb.MeanField(), lb.priors.Normal(1.0))
    small, report = lb.compact(net, exact=not bayesian)
    x = torch.randn(5, 4)
    torch.testing.assert_close(outputs(small, x), outputs(net, x))
    assert "its code reads sizes of layers" in str(report)


def test_a_layer_that_is_used_twice_or_from_outside_is_kept():
    shared = nn.Linear(4, 4)
    net = nn.Sequential(switched_off(nn.Linear(4, 4), [0]), shared, nn.ReLU(), shared)
    small, why = reasons(net)
    assert why["1"] == "it is used in several places"
    assert_equal(small, net, torch.randn(3, 4))
    tied = nn.Sequential(switched_off(nn.Linear(4, 4), [0]), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    small, why = reasons(tied)
    assert set(why) == {"0", "2"}
    assert small[2].weight is small[0].weight
    hooked = nn.Sequential(switched_off(nn.Linear(4, 4), [0]), nn.ReLU(), nn.Linear(4, 2))
    hooked[2].register_forward_hook(lambda module, x, y: y * x[0].sum())
    small, why = reasons(hooked)
    assert why["2"] == "it has forward hooks"
    assert_equal(small, hooked, torch.randn(3, 4))


def test_outputs_may_be_tuples_and_mappings_and_arguments_may_have_defaults():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = switched_off(nn.Linear(3, 4), [0, 1])
            self.second = nn.Linear(4, 2)

        def forward(self, x, scale=None):
            h = F.relu(self.first(x))
            if scale is not None:
                h = h * scale
            return {"out": self.second(h), "pair": (x, None)}

    small, report = lb.compact(Two(), torch.randn(5, 3))
    assert small.first.out_features == 2
    assert report.kept == ()


def test_an_activation_may_be_used_twice():
    act = nn.ELU()
    net = nn.Sequential(switched_off(nn.Linear(4, 5), [0]), act, nn.Linear(5, 4), act)
    assert lb.compact(net).model[0].out_features == 4


def test_a_batch_norm_after_a_linear_layer_needs_an_example():
    net = nn.Sequential(
        switched_off(nn.Linear(4, 6), [0, 1]), nn.BatchNorm1d(6), nn.ELU(), nn.Linear(6, 2)
    ).eval()
    small, why = reasons(net)
    assert why["1"] == "the rank of its input is not known; give compact an example"
    assert small[1].num_features == 6
    small, why = reasons(net, torch.randn(3, 4))
    assert (small[1].num_features, why) == (4, {})
    assert_equal(small, net, torch.randn(3, 4))


def test_a_batch_norm_by_the_statistics_of_each_batch_is_named():
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    net = nn.Sequential(switched_off(nn.Linear(4, 6), [0, 1]), norm, nn.ELU(), nn.Linear(6, 2))
    x = torch.randn(5, 4)
    small, why = reasons(net.eval(), x)
    assert why["1"] == "it normalizes by each batch"
    assert_equal(small, net, x)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, 2),
        ({"padding": 1}, 3),
        ({"padding": 1, "count_include_pad": False}, 2),
        ({"divisor_override": 3}, 3),
    ],
    ids=["plain", "zeros at the border", "border not counted", "divisor"],
)
def test_constants_pass_an_average_that_keeps_them(options, left):
    """One constant channel stays where the average of constants is not that constant."""
    first, pool = switched_off(nn.Conv2d(1, 4, 3), [0, 2]), nn.AvgPool2d(2, **options)
    net = nn.Sequential(first, nn.ELU(), pool, nn.Conv2d(4, 2, 1))
    small, _ = reasons(net)
    assert_equal(small, net, torch.randn(2, 1, 7, 7))
    assert small[0].out_channels >= left
    assert (small[0].out_channels == 2) == (left == 2)


def test_channels_of_a_sequence_are_not_its_positions():
    """Six positions of six features: the batch norm is over positions."""
    net = nn.Sequential(
        switched_off(nn.Linear(4, 6), [0, 1]), nn.BatchNorm1d(6), nn.ELU(), nn.Linear(6, 2)
    ).eval()
    nn.init.normal_(net[1].weight)
    x = torch.randn(3, 6, 4)
    small, why = reasons(net, x)
    assert why["1"] == "it meets no channels"
    assert_equal(small, net, x)
    flat = nn.Sequential(net[0], nn.ELU(), nn.Flatten(), nn.Linear(36, 2))
    small, why = reasons(flat)
    assert why["3"] == "positions of a sequence were flattened"
    assert_equal(small, flat, x)
    kept, _ = reasons(nn.Sequential(net[0], nn.ELU(), nn.Linear(6, 2)))
    assert kept[0].out_features == 4


def test_outputs_of_the_network_stay():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), switched_off(nn.Linear(4, 5), [0, 4]))
    small, why = reasons(net)
    assert why == {"2": "they are outputs of the network"}
    assert small[2].out_features == 5


@pytest.mark.parametrize("posterior", ["rank1_normal", "mean_field"])
def test_one_layer_is_its_own_input_and_output(posterior):
    spec = POSTERIORS[posterior]
    prior = lb.priors.Normal(1.0, loc=1.0) if posterior == "rank1_normal" else lb.priors.Normal(1.0)
    model = lb.convert(nn.Linear(3, 4), spec, prior)
    small, report = lb.compact(model)
    assert "it is one layer" in str(report)
    assert small is not model
    with pytest.raises(ValueError, match=re.escape("3 is not a model; give an nn.Module")):
        lb.compact(3)


def test_recurrent_layers_and_rank_one_factors_stay_and_are_named():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    model = lb.prune(lb.convert(Recurrent(), lb.MeanField(), lb.priors.Normal(1.0)), keep=0.5)
    _, why = reasons(model)
    assert "is not in the table of operations" in why["lstm"]
    net = nn.Sequential(switched_off(nn.Linear(3, 4), [0]), nn.ELU(), nn.Linear(4, 2))
    rank1 = lb.convert(net, lb.Rank1(1), lb.priors.Normal(0.1, loc=1.0), include=("2",))
    small, why = reasons(rank1)
    assert why["2"] == "Rank1 does not say what parts of it are"
    assert small[0].out_features == 4


def test_a_layer_kind_of_ones_own_is_not_taken_for_another():
    class Doubled(lb.extend.Affine):
        def forward(self, x):
            return super().forward(x + x.sum(-1, keepdim=True))

    net = nn.Sequential(switched_off(nn.Linear(3, 4), [0]), nn.ReLU(), nn.Linear(4, 2))
    model = lb.convert(net, lb.posteriors.Point(), lb.priors.Flat())
    model[2].__class__ = Doubled
    small, why = reasons(model)
    assert why["2"] == "Doubled is not in the table of operations"
    assert_equal(small, model, torch.randn(5, 3))


# Bayesian networks


def two_layers(posterior, prior, act=nn.ReLU, bias=None):
    net = nn.Sequential(nn.Linear(4, 6), act(), nn.Linear(6, 3)).double()
    switched_off(net[0], [1, 2, 5])
    with torch.no_grad():
        net[0].bias[[1, 2, 5]] = -net[0].bias[[1, 2, 5]].abs()
    return masked(net, posterior, prior, bias=bias, bias_prior=lb.priors.Normal(1.0))


KEPT = torch.tensor([0, 3, 4])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_law_of_the_weights_that_are_left_is_theirs(family):
    model = two_layers(FAMILIES[family], lb.priors.GroupARD())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model[0].bias.sub_(1.0)
    small, _ = lb.compact(model)
    for ours, theirs, rows, columns in (
        (small[0], model[0], KEPT, torch.arange(4)),
        (small[2], model[2], torch.arange(3), KEPT),
    ):
        q, whole = ours.posterior(), theirs.posterior()
        assert ours.posterior.spec == FAMILIES[family]
        torch.testing.assert_close(q.mean, whole.mean[rows][:, columns])
        index = (rows.unsqueeze(1) * whole.event_shape[1] + columns).flatten()
        torch.testing.assert_close(q.covariance(), whole.covariance()[index][:, index])
        p, prior = ours.prior(), theirs.prior()
        torch.testing.assert_close(p.row_precision, prior.row_precision[rows])
        torch.testing.assert_close(p.column_precision, prior.column_precision[columns])


@pytest.mark.parametrize("family", ["mean_field", "k_tied", "dropout"])
@pytest.mark.parametrize(
    "prior",
    [lb.priors.Normal(0.5), lb.priors.GroupARD(0.5), lb.priors.ARD(), lb.priors.He()],
    ids=repr,
)
def test_the_kl_loses_what_the_removed_weights_cost(family, prior):
    model = two_layers(FAMILIES[family], prior)
    small, _ = lb.compact(model)
    with torch.no_grad():
        model[2].posterior.mask[:, [1, 2, 5]] = False
    torch.testing.assert_close(lb.kl(small), lb.kl(model))


def test_a_prior_that_layers_share_stays_one():
    model = two_layers(lb.MeanField(), lb.priors.Normal(0.5, learn="model"))
    small, _ = lb.compact(model)
    assert small[0].prior is small[2].prior


def test_constants_that_meet_random_weights_stay_until_these_are_off():
    model = two_layers(lb.MeanField(), lb.priors.Normal(0.5), act=nn.ELU)
    small, report = lb.compact(model)
    assert small[0].posterior().event_shape == (6, 4)
    (kept,) = report.kept
    assert (kept.name, kept.units) == ("0", 3)
    assert kept.why == "their constants meet the random weights of '2'"
    with torch.no_grad():
        model[2].posterior.mask[:, [1, 2, 5]] = False
    assert lb.compact(model).report.kept == ()
    plain = lb.compact(lb.deterministic(two_layers(lb.MeanField(), lb.priors.Normal(0.5), nn.ELU)))
    assert plain.report.kept == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_constants_may_be_folded_by_means_and_then_lose_their_noise(family):
    model = two_layers(FAMILIES[family], lb.priors.Normal(0.5), act=nn.ELU)
    small, report = lb.compact(model, exact=False)
    assert small[0].posterior().event_shape == (3, 4)
    assert report.kept == ()
    assert_equal(small, model, torch.randn(5, 4).double())
    assert (small[2].posterior().variance > 0).all()


def test_a_random_bias_is_no_constant_and_takes_none():
    model = two_layers(lb.MeanField(), lb.priors.Normal(0.5), bias=lb.MeanField())
    small, report = lb.compact(model)
    assert {kept.why for kept in report.kept} == {"their biases are random"}
    with torch.no_grad():
        model[2].posterior.mask[:, [1, 2, 5]] = False
    small, _ = lb.compact(model)
    assert small[0].bias.posterior().event_shape == (3, 1)
    torch.testing.assert_close(small[0].bias.posterior().mean, model[0].bias.posterior().mean[KEPT])
    assert_equal(small, model, torch.randn(5, 4).double())


@pytest.mark.parametrize("family", ["k_tied", "matrix_normal"])
def test_samples_of_both_networks_have_one_law(family):
    """Means and variances of 3,000 draws each; a unit that is lost would move them by far more."""
    model = two_layers(FAMILIES[family], lb.priors.Normal(0.5))
    small, _ = lb.compact(model)
    x = torch.randn(2, 4).double()
    draws = []
    with torch.no_grad():
        for each in (model, small):
            with lb.using(each, lb.estimators.weights):
                draws.append(torch.stack([each(x) for _ in range(3000)]))
    for moment in (lambda y: y, lambda y: (y - y.mean(0)).square()):
        a, b = (moment(each) for each in draws)
        error = ((a.var(0) + b.var(0)) / 3000).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() / error).max() < threshold(12)


def test_training_goes_on_in_the_smaller_network():
    model = two_layers(lb.posteriors.MatrixNormal(0.1), lb.priors.GroupARD())
    small, _ = lb.compact(model)
    optimizer = torch.optim.Adam(small.parameters(), 1e-2)
    x = torch.randn(8, 4).double()
    before = lb.kl(small).item()
    for _ in range(5):
        optimizer.zero_grad()
        (small(x).square().mean() + lb.kl(small)).backward()
        optimizer.step()
    assert lb.kl(small).item() < before


def test_a_smaller_network_is_saved_and_loaded(tmp_path):
    model = two_layers(lb.posteriors.MatrixNormal(0.1), lb.priors.GroupARD())
    small, _ = lb.compact(model)
    path = lb.save(small, tmp_path / "small")
    again = lb.load(lb.deterministic(small), path)
    x = torch.randn(5, 4).double()
    assert_equal(again, small, x)
    torch.testing.assert_close(lb.kl(again), lb.kl(small))
    with pytest.raises(lb.errors.LoadError, match="was saved from another architecture") as caught:
        lb.load(lb.deterministic(model), path)
    assert "\n" not in str(caught.value)
    net = lb.deterministic(model)
    same, _ = lb.compact(lb.load(net, lb.save(model, tmp_path / "masked")))
    assert_equal(same, small, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_stay_halves(dtype):
    model = two_layers(lb.MeanField(), lb.priors.Normal(0.5)).to(dtype)
    x = torch.randn(5, 4, dtype=dtype)
    small, _ = lb.compact(model, x)
    assert {p.dtype for p in small.parameters()} == {dtype}
    assert small[0].posterior().event_shape == (3, 4)
    torch.testing.assert_close(outputs(small, x), outputs(model, x), rtol=2e-2, atol=2e-2)


def test_the_report_is_a_table():
    net = nn.Sequential(switched_off(nn.Linear(30, 40), range(20)), nn.ReLU(), nn.Linear(40, 2))
    report = lb.compact(net, torch.randn(5, 30)).report
    assert str(report).splitlines() == [
        "layer   before    after  multiply-adds  after",
        "0      40 × 30  20 × 30          1,200    600",
        "2       2 × 40   2 × 20             80     40",
        "all                              1,280    640",
    ]
    assert lb.compact(net).report.multiply_adds is None


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_constants_pass_a_batch_norm_with_its_own_eps(eps, affine):
    norm = nn.BatchNorm2d(4, eps=eps, affine=affine)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 0.3)
    first = switched_off(nn.Conv2d(2, 4, 3), [0, 2])
    net = nn.Sequential(first, norm, nn.Sigmoid(), nn.Conv2d(4, 3, 1)).eval()
    small, report = lb.compact(net)
    assert small[1].num_features == 2
    assert report.kept == ()
    assert_equal(small, net, torch.randn(2, 2, 5, 5))
