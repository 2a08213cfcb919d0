"""The papers' networks: parameter counts, conversion by name, one step of each, seeds."""

import math
import re
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
import research.extensions  # noqa: F401
from leanbayes.lab.architectures import ARCHITECTURES
from leanbayes.testing import assert_mean
from research.networks import build
from research.papers.matrix_normal.vae.network import standard_kl

torch.set_num_threads(1)


def images(*shape):
    return lambda: torch.rand(2, *shape)


def indices(top, *shape):
    return lambda: torch.randint(1, top, (2, *shape))


MNIST, CIFAR = images(1, 28, 28), images(3, 32, 32)
TFP_SCALE = lb.posteriors.Scale(
    math.log1p(math.exp(-9)), raw_spread=0.1, stored="softplus", ceiling=math.log(1.2)
)
RANK1 = (lb.Rank1(members=4), lb.priors.Normal(0.1, loc=1.0), lb.estimators.local)
EMBEDDING = {
    "posterior": lb.MeanField(),
    "prior": lb.priors.Normal(0.1),
    "estimator": lb.estimators.weights,
}


@dataclass(frozen=True)
class Case:
    """A small network, inputs for it, and how its paper makes it Bayesian."""

    x: object
    outputs: int
    recipe: tuple
    layers: int | set
    options: dict = field(default_factory=dict)
    convert: dict = field(default_factory=dict)


TIED, MATRIX = (
    (lb.KTied(2), lb.priors.Normal(0.3), lb.estimators.weights),
    (lb.posteriors.MatrixNormal(), lb.priors.ARD(), lb.estimators.local),
)
VARIANCE = (lb.posteriors.ZeroMean(), lb.priors.ARD(), lb.estimators.local)
CASES = {
    "mlp": Case(MNIST, 10, TIED, 6, convert={"bias": lb.MeanField()}),
    "mlp-elu": Case(MNIST, 10, MATRIX, 4),
    "toy": Case(images(2), 4, VARIANCE, {"dense5"}, convert={"include": ("dense5",)}),
    "lenet": Case(
        CIFAR,
        100,
        TIED,
        8,
        convert={"bias": lb.MeanField(), "overrides": {"conv*": {"posterior": lb.MeanField()}}},
    ),
    "lenet5-caffe": Case(MNIST, 10, VARIANCE, {"dense1"}, convert={"include": ("dense1",)}),
    "lenet5-caffe-all-vdo": Case(
        MNIST,
        10,
        (lb.posteriors.VariationalDropout("layer"), lb.priors.LogUniform(), lb.estimators.local),
        {"conv1", "conv2", "dense1", "dense2"},
    ),
    "lenet5-caffe-tanh": Case(
        MNIST, 10, VARIANCE, {"conv2", "dense1"}, convert={"include": ("conv2", "dense1")}
    ),
    "vgg": Case(
        CIFAR,
        10,
        (
            lb.posteriors.VariationalDropout("layer", log_alpha=-10),
            lb.priors.LogUniform(),
            lb.estimators.local,
        ),
        {"conv11", "conv12", "conv13", "dense1"},
        convert={"include": ("conv11", "conv12", "conv13", "dense1")},
    ),
    "small-cnn": Case(CIFAR, 10, VARIANCE, {"dense1"}, convert={"include": ("dense1",)}),
    "vgg-small": Case(
        CIFAR, 10, (lb.posteriors.MatrixNormal(), lb.priors.GroupARD(), lb.estimators.local), 13
    ),
    "fashion-cnn": Case(MNIST, 10, MATRIX, 5),
    "resnet-tfp": Case(
        CIFAR, 10, (lb.MeanField(TFP_SCALE), lb.priors.Normal(1.0), lb.estimators.flipout), 14
    ),
    "resnet-small": Case(MNIST, 10, RANK1, 8),
    "wrn-28": Case(CIFAR, 10, RANK1, 1 + 3 * 9 + 1, {"width": 2}),
    "resnet-50": Case(images(3, 64, 64), 1000, RANK1, 54),
    "imdb-lstm": Case(
        indices(20_000, 80),
        1,
        TIED,
        {"lstm.maps.weight_ih_l0", "lstm.maps.weight_hh_l0"},
        convert={"include": ("lstm",)},
    ),
    "ehr-rnn": Case(
        indices(50, 5, 7),
        1,
        RANK1,
        6,
        {"vocabulary": 50, "ranges": 50, "codes": 4, "measurements": 3},
        convert={"overrides": {"*_embedding": EMBEDDING}},
    ),
    "vae": Case(
        lambda: MNIST().round(), 784, MATRIX, 4, convert={"include": ("decoder.*",), "exclude": ()}
    ),
}


TINY = {
    "lenet": {"size": 8},
    "vgg": {"width": 0.1},
    "resnet-tfp": {"filters": (8, 16)},
    "wrn-28": {"width": 1, "depth": 10},
    "imdb-lstm": {"vocabulary": 50},
    "ehr-rnn": {"rnn_dim": 16},
}


def small(name, **options):
    return build(name, **{**CASES[name].options, **options})


def undrawn(name, **options):
    """A network of zeros, without the time it takes to draw tens of millions of numbers."""
    with torch.device("meta"):
        net = build(name, **options)
    net.to_empty(device="cpu")
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.detach().zero_()
    return net


def trained(module):
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def moving_statistics(model):
    return sum(b.numel() for name, b in model.named_buffers() if "running" in name)


def step(model, x, outputs):
    """One step of SGD on random targets; returns the outputs."""
    y = model(x)
    if isinstance(y, tuple):
        y, q = y
        loss = F.binary_cross_entropy_with_logits(y, x.flatten(1)) + standard_kl(q).mean()
    elif outputs == 1:
        loss = F.binary_cross_entropy_with_logits(y, torch.ones_like(y))
    else:
        loss = F.cross_entropy(y, torch.arange(len(y)) % outputs)
    if any(True for _ in lb.extend.random_maps(model)):
        loss = lb.elbo(loss, lb.kl(model), data_size=50_000).loss
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6)
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    return y


def assert_every_gradient(model):
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name


def test_every_architecture_has_a_case():
    assert set(CASES) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", CASES)
def test_plain_network_takes_a_step(name):
    case, net = CASES[name], small(name)
    y = step(net, case.x(), case.outputs)
    assert y.shape == ((2,) if case.outputs == 1 else (2, case.outputs))
    assert_every_gradient(net)
    assert any(p.grad.any() for p in net.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", CASES)
def test_network_becomes_bayesian_as_in_its_paper_and_takes_a_step(name):
    case = CASES[name]
    model = lb.convert(small(name), *case.recipe, **case.convert)
    maps = dict(lb.extend.random_maps(model))
    assert (set(maps) if isinstance(case.layers, set) else len(maps)) == case.layers
    members = lb.extend.members(model)
    assert members == getattr(case.recipe[0], "members", 1)
    y = step(model, lb.tile(case.x(), members), case.outputs)
    assert len(y) == 2 * members
    assert_every_gradient(model)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"resnet-50"}))
def test_input_shape_is_that_of_one_example(name):
    net = small(name).eval()
    x = torch.ones(2, *net.input_shape)
    y = net(x.long() if name in ("imdb-lstm", "ehr-rnn") else x)
    assert len(y[0] if isinstance(y, tuple) else y) == 2


# published counts


@pytest.mark.checklist("KT4")
@pytest.mark.parametrize("rank", [None, 1, 2, 3])
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mlp", (956_820, 481_614, 484_008, 486_402)),
        ("lenet", (4_405_320, 2_262_188, 2_267_408, 2_272_628)),
        ("imdb-lstm", (2_822_656, 2_692_864, 2_694_144, 2_695_424)),
    ],
)
def test_counts(name, counts, rank):
    posterior = lb.MeanField() if rank is None else lb.KTied(rank)
    model = lb.convert(build(name), posterior, lb.priors.Normal(0.3), **CASES[name].convert)
    left_out = trained(model.dense) if name == "imdb-lstm" else 0
    assert left_out in (0, 129)
    assert lb.count_parameters(model).total - left_out == counts[rank or 0]


@pytest.mark.checklist("KT13")
@pytest.mark.parametrize("rank", [None, 1, 2, 3])
def test_counts_of_the_resnet(rank):
    posterior = lb.MeanField(TFP_SCALE) if rank is None else lb.KTied(rank)
    model = lb.convert(build("resnet-tfp"), posterior, lb.priors.Normal(1.0), lb.estimators.flipout)
    total = lb.count_parameters(model).total + moving_statistics(model)
    assert total == {None: 9_814_026, 1: 4_929_711, 2: 4_946_964, 3: 4_964_217}[rank]


@pytest.mark.checklist("KT13")
@pytest.mark.parametrize("posterior", [lb.MeanField(TFP_SCALE), lb.KTied(2)], ids=repr)
def test_flipout_step(posterior):
    model = lb.convert(build("resnet-tfp"), posterior, lb.priors.Normal(1.0), lb.estimators.flipout)
    with torch.no_grad():
        for _, layer in lb.extend.random_maps(model):
            for name, parameter in layer.posterior.named_parameters():
                if name != "loc":
                    parameter.add_(2.0)  # enough noise to be seen
        model.eval()
        first, second = model(torch.rand(1, 3, 32, 32).expand(2, -1, -1, -1))
    assert not torch.allclose(first, second, rtol=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    step(model.train(), torch.rand(2, 3, 32, 32), 10)
    assert_every_gradient(model)
    assert any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.checklist("KT13")
def test_scales_start_small_and_stop_at_the_cap():
    model = lb.convert(
        build("resnet-tfp"), lb.MeanField(TFP_SCALE), lb.priors.Normal(1.0), lb.estimators.flipout
    )
    posterior = model.block1.conv1.posterior
    raw = torch.log(torch.expm1(posterior().scale.detach().double().flatten()))
    assert_mean(raw, -9.0, "pre-softplus scale")
    assert_mean((raw + 9).square(), 0.1**2, "its spread")
    with torch.no_grad():
        posterior.scale.fill_(5.0)
    cap = F.softplus(torch.tensor(math.log(0.2)))
    torch.testing.assert_close(posterior().scale.max(), cap, atol=1e-6, rtol=0)
    assert round(cap.item(), 4) == 0.1823


@pytest.mark.checklist("KT13")
def test_network_is_that_of_the_example():
    net = build("resnet-tfp")
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.01)}
    assert all(isinstance(net.get_submodule(f"block{i}.shortcut"), nn.Conv2d) for i in range(1, 5))
    assert net.dense.in_features == 512


def thousands(numbers):
    return [float(f"{n / 1000:.1f}") for n in numbers]


@pytest.mark.checklist("MN8")
@pytest.mark.parametrize(
    ("width", "total", "layers"),
    [
        (1, 62_270, [0.3, 0.9, 0.9, 1.8, 3.6, 3.6, 7.2, 14.4, 14.4, 7.2, 3.6, 3.6]),
        (2, 246_940, [0.5, 3.6, 3.6, 7.2, 14.4, 14.4, 28.8, 57.6, 57.6, 28.8, 14.4, 14.4]),
    ],
)
def test_weights_of_the_vgg_like_network(width, total, layers):
    model = lb.convert(build("vgg-small", width=width), *CASES["vgg-small"].recipe)
    shapes = [layer.posterior().event_shape for _, layer in lb.extend.random_maps(model)]
    assert sum(math.prod(shape) for shape in shapes) == total
    assert thousands(math.prod(shape) for shape in shapes[:-1]) == layers
    assert shapes[-1] == (10, 80 * width)


@pytest.mark.checklist("MN8")
def test_rows_and_columns_of_the_wider_network():
    model = lb.convert(build("vgg-small", width=2), *CASES["vgg-small"].recipe)
    shapes = [layer.posterior().event_shape for _, layer in lb.extend.random_maps(model)][:-1]
    rows, columns = [shape[1] for shape in shapes], [shape[0] for shape in shapes]
    assert (sum(rows), sum(columns)) == (4527, 540)
    assert columns == [20] * 3 + [40] * 3 + [80] * 3 + [40] * 3
    assert rows == [9 * 3, *(9 * c for c in columns[:-1])]


def test_flattened_inputs_are_as_many_as_published():
    assert build("lenet").dense1.in_features == 4096
    assert build("fashion-cnn").dense.in_features == 80
    assert build("lenet5-caffe").dense1.weight.numel() == 400_000
    assert trained(build("lenet5-caffe", bias=True, norm="none")) == 431_080


@pytest.mark.checklist("R11")
@pytest.mark.parametrize(
    ("name", "alone", "millions", "factors", "with_four_members"),
    [("wrn-28", 36_479_194, 36.5, 19_581, 36.6), ("resnet-50", 25_557_032, 25.6, 52_139, 26.0)],
)
def test_rank_one_factors_add_little(name, alone, millions, factors, with_four_members):
    net = undrawn(name)
    assert trained(net) == alone
    assert round(alone / 1e6, 1) == millions
    outputs = net.dense.out_features
    model = lb.convert(net, *RANK1, inplace=True)
    counts = lb.count_parameters(model)
    assert counts.scales == 4 * factors
    assert counts.total == alone + 2 * 4 * factors + 3 * outputs  # a bias for every member
    assert round(counts.total / 1e6, 1) == with_four_members


@pytest.mark.checklist("R11")
@pytest.mark.parametrize(("members", "percent"), [(1, 0.41), (4, 1.6), (10, 4.1)])
def test_share_of_factors_in_resnet50(members, percent):
    with torch.device("meta"):
        net = build("resnet-50")
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    ends = sum(m.weight.shape[0] + m.weight.shape[1] for m in layers)
    assert 100 * 2 * members * ends / trained(net) == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize("converted", [False, True])
def test_second_bias_of_the_lstm_stays_zero(converted):
    case, model = CASES["imdb-lstm"], small("imdb-lstm")
    if converted:
        model = lb.convert(model, *case.recipe, **case.convert)
    step(model, case.x(), 1)
    assert not model.lstm.bias_hh_l0.requires_grad
    assert not model.lstm.bias_hh_l0.any()


# determinism


def same(one, two):
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"resnet-50"}))
def test_first_weights_follow_the_global_seed_or_a_generator(name):
    tiny = TINY.get(name, {})

    def seeded(seed):
        torch.manual_seed(seed)
        return small(name, **tiny)

    def generated(seed):
        return small(name, **tiny, generator=torch.Generator().manual_seed(seed))

    assert same(seeded(5), seeded(5))
    assert not same(seeded(5), seeded(6))
    first = generated(5)
    torch.manual_seed(123)
    assert same(first, generated(5))
    assert not same(first, generated(6))


def test_reset_forgets_training():
    net = build("lenet5-caffe", generator=torch.Generator().manual_seed(1))
    fresh = {k: v.clone() for k, v in net.state_dict().items()}
    step(net, MNIST(), 10)
    assert net.conv1_norm.running_mean.any()
    net.reset(torch.Generator().manual_seed(1))
    assert all(torch.equal(v, fresh[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("posterior", [lb.MeanField(), lb.Rank1(2)], ids=repr)
def test_reset_refuses_a_converted_network_and_changes_nothing(posterior):
    model = lb.convert(build("mlp"), posterior, include=("dense2",))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"dense2\.posterior.*call reset before lb\.convert"):
        model.reset()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


# wrong names and options


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("lenet-5", {}, "architecture 'lenet-5' is unknown; did you mean 'lenet'?"),
        ("mlp", {"hiden": (3,)}, "'mlp' has no option 'hiden'; did you mean 'hidden'?"),
        ("mlp", {"activation": "rellu"}, "did you mean 'relu'?"),
        ("mlp", {"hidden": (0,)}, "each must be at least 1"),
        ("mlp", {"start": "fan-in"}, "did you mean 'fan_in'?"),
        ("lenet", {"size": 3}, "images of size 3 are too small"),
        ("lenet5-caffe", {"norm": "dense"}, "did you mean 'dense1'?"),
        ("vgg", {"width": 0.001}, "at least one filter"),
        ("vgg", {"dense1": "variances"}, "did you mean 'variance'?"),
        ("vgg-small", {"width": 0}, "must be at least 1"),
        ("wrn-28", {"depth": 27}, "must be 6n + 4"),
        ("wrn-28", {"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
        ("resnet-small", {"dropout": -0.1}, "dropout is -0.1; it must be at least 0 and below 1"),
        ("resnet-small", {"filters": (8,)}, "give those of the stem and of a stage"),
        ("imdb-lstm", {"kernels": "kera"}, "did you mean 'keras'?"),
    ],
)
def test_wrong_names_and_options_say_what_is_right(name, options, sentence):
    with pytest.raises(ValueError, match=rf"\A[^\n]*{re.escape(sentence)}[^\n]*\Z"):
        build(name, **options)
