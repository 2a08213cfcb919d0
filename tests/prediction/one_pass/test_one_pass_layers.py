"""One pass of every kind of layer and every posterior, against many samples."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_mean

PRIOR = lb.priors.Normal(1.0)


def image(*shape):
    return torch.randn(2, *shape, dtype=torch.float64)


class Part(nn.Module):
    """A layer of which a part of the output is predicted."""

    def __init__(self, layer, choose):
        super().__init__()
        self.layer, self.choose = layer, choose

    def forward(self, x):
        return self.choose(self.layer, x)


TOKENS = torch.tensor([[1, 2, 3], [0, 4, 1]])
SINGLE = {
    "linear": (nn.Linear(3, 2), image(3)),
    "conv1d": (nn.Conv1d(2, 3, 3, padding="same"), image(2, 4)),
    "conv2d": (nn.Conv2d(2, 4, 2, stride=2, padding=1), image(2, 4, 4)),
    "grouped": (nn.Conv2d(4, 4, 2, groups=2), image(4, 3, 3)),
    "depthwise, circular": (nn.Conv2d(2, 2, 3, 1, 1, 1, 2, True, "circular"), image(2, 3, 3)),
    "conv3d": (nn.Conv3d(1, 2, 2), image(1, 2, 3, 2)),
    "transposed": (nn.ConvTranspose2d(2, 3, 2, 2), image(2, 2, 2)),
    "grouped, transposed": (nn.ConvTranspose1d(2, 4, 3, 2, groups=2), image(2, 3)),
    "embedding": (nn.Embedding(5, 3, padding_idx=0), TOKENS),
    "bilinear": (Part(nn.Bilinear(3, 3, 2), lambda layer, x: layer(x, 2 * x)), image(3)),
}  # fmt: skip
FAMILIES = {
    "k-tied": lb.KTied(2, 0.2),
    "mean field": lb.MeanField(0.2),
    "zero mean": lb.posteriors.ZeroMean(scale=0.2),
    "matrix normal": lb.posteriors.MatrixNormal(0.2),
    "matrix normal, diagonal": lb.posteriors.MatrixNormal(0.2, rank=1, diagonal=True),
    "low rank": lb.posteriors.LowRank(2, 0.2),
    "dropout": lb.posteriors.VariationalDropout(),
    "rank-1": lb.Rank1(2, rate=0.1),
    "rank-1, added": lb.Rank1(2, rate=0.1, perturb="add"),
}


def compare(model, x, samples=6000, **options):
    """Assert that mean and variance of outputs are those of samples."""
    p = lb.predict(model, x, method="moments", **options)
    assert p.fallback is None, p.fallback
    drawn = lb.predict(model, x, samples=samples, seed=1, **options).samples
    drawn = drawn.unflatten(0, (-1, len(p.moments.loc)))
    assert_mean(drawn, p.moments.loc, "mean")
    assert_mean((drawn - p.moments.loc) ** 2, p.moments.variance, "variance")


@pytest.mark.parametrize("kind", SINGLE)
def test_one_layer_of_every_kind_is_exact(kind):
    torch.manual_seed(0)
    layer, x = SINGLE[kind]
    model = lb.convert(layer.double(), lb.KTied(2, 0.2), PRIOR)
    compare(model, x, samples=4000)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_random_inputs(family):
    """What dropout makes of an input is random and independent; a product of two is not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 3)).double()
    prior = () if family == "rank-1" else (PRIOR,)  # its factors are around one
    model = lb.convert(net, FAMILIES[family], *prior)
    if family != "low rank":
        model = lb.mc_dropout(model)
    compare(model, torch.randn(2, 4, dtype=torch.float64), samples=6000)


def test_zero_means_need_no_product():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = lb.convert(net, lb.posteriors.ZeroMean(scale=0.5), PRIOR)
    p = lb.predict(model, torch.randn(2, 4).double(), method="moments")
    assert torch.allclose(p.moments.loc[0], net[2].bias.expand(2, 3))


def body(kind, mode):
    """A recurrent network of which the last state is predicted."""
    layer = getattr(nn, kind)(3, 4, batch_first=True, bidirectional=mode == "both")
    return Part(layer, lambda layer, x: layer(x)[0][:, -1])


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x):
        return (x + self.norm(self.conv(x))).relu_()


def attention(layer, x):
    return layer(x, x, x, need_weights=False)[0].flatten(1)


@dataclass(frozen=True)
class Network:
    """A network and an input, drawn anew by every call.

    Attributes:
        make: makes the network.
        input: makes its input.
        most: factor between geometric means of standard deviations of one pass and of samples. It
            is near 1 where no weight is used twice, and larger where one pass drops covariances.
    """

    make: Callable[[], nn.Module]
    input: Callable[[], torch.Tensor]
    most: float


EXACT, SHARED, STEPS, POSITIONS, NORMS = 1.08, 1.15, 1.35, 1.6, 2.2
"""Nothing dropped; what tokens, steps and positions share; what a norm divides."""


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 2))


def residual():
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)),
    )


def norms():
    return nn.Sequential(
        *(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4), nn.ELU(), nn.InstanceNorm1d(4, affine=True)),
        *(nn.AvgPool1d(3, 2, 1), nn.Flatten(), nn.LayerNorm(12), nn.RMSNorm(12), nn.Linear(12, 2)),
    )


RECURRENT = {
    "LSTM": lambda: body("LSTM", "one"),
    "LSTM, both directions": lambda: body("LSTM", "both"),
    "GRU": lambda: body("GRU", "one"),
    "RNN": lambda: body("RNN", "one"),
    "LSTM cells": Cells,
}
NETWORKS = {
    **{name: Network(make, lambda: image(3, 3), STEPS) for name, make in RECURRENT.items()},
    **{
        f"{name}, one step": Network(make, lambda: image(1, 3), EXACT)
        for name, make in RECURRENT.items()
    },
    "bag": Network(
        lambda: nn.Sequential(nn.EmbeddingBag(5, 4, mode="mean"), nn.Linear(4, 3)),
        lambda: TOKENS,
        EXACT,
    ),
    "attention": Network(
        lambda: Part(nn.MultiheadAttention(8, 2, batch_first=True), attention),
        lambda: image(3, 8),
        SHARED,
    ),
    "transformer": Network(transformer, lambda: image(3, 8), EXACT),
    "residual": Network(residual, lambda: image(2, 6, 6), POSITIONS),
    "norms": Network(norms, lambda: image(2, 5), NORMS),
}


@pytest.mark.filterwarnings("ignore:.*of the parameters stay as they were")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("posterior", [lb.KTied(2, 0.02), lb.MeanField(0.02)], ids=["k-tied", "mf"])
def test_networks_are_near_their_samples(name, posterior):
    """Over several random networks, so that no single output decides."""
    torch.manual_seed(0)
    offsets, ratios = [], []
    for _ in range(5):
        model = lb.convert(NETWORKS[name].make().double(), posterior, PRIOR)
        x = NETWORKS[name].input()
        p = lb.predict(model, x, method="moments")
        assert p.fallback is None, p.fallback
        drawn = lb.predict(model, x, samples=600, seed=0).samples
        std = drawn.std(0)
        offsets.append((p.moments.loc[0] - drawn.mean(0)) / std)
        ratios.append((p.moments.variance[0].sqrt() / std).log())
    assert torch.stack(offsets).abs().median() < 0.2
    ratio, most = torch.stack(ratios).mean().exp(), NETWORKS[name].most
    assert 1 / most < ratio < most


def test_ensembles_and_members_have_one_pass_each():
    torch.manual_seed(0)
    networks = [lb.convert(nn.Linear(3, 2).double(), lb.MeanField(0.3), PRIOR) for _ in range(3)]
    ensemble = lb.DeepEnsemble(networks)
    x = torch.randn(4, 3, dtype=torch.float64)
    p = lb.predict(ensemble, x, method="moments")
    assert p.moments.shape == (3, 4, 2)
    for network, loc in zip(networks, p.moments.loc, strict=True):
        assert torch.allclose(loc, lb.deterministic(network)(x))


def test_mc_dropout_has_its_variance():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.4), nn.Linear(6, 3), nn.Dropout(0.2)).double()
    compare(lb.mc_dropout(net), torch.randn(2, 6, dtype=torch.float64))
    bayesian = lb.mc_dropout(lb.convert(net, lb.MeanField(0.3), PRIOR))
    compare(bayesian, torch.randn(2, 6, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_as_single(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU()),
        *(nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3)),
    )
    model = lb.convert(net, lb.KTied(2, 0.1), PRIOR).to(dtype)
    x = torch.randn(5, 2, 4, 4).to(dtype)
    half = lb.predict(model, x, method="moments")
    single = lb.predict(model.float(), x.float(), method="moments")
    assert half.fallback is None
    assert half.moments.dtype == torch.float32
    assert torch.allclose(half.moments.loc, single.moments.loc, rtol=0.02, atol=0.02)
    assert torch.allclose(half.moments.variance, single.moments.variance, rtol=0.05)


def test_compiled_models_run_their_own_code_once():
    torch.manual_seed(0)
    model = lb.convert(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), lb.KTied(), PRIOR
    )
    x = torch.randn(5, 3)
    plain = lb.predict(model, x, method="moments")
    compiled = lb.predict(torch.compile(model, backend="eager"), x, method="moments")
    assert compiled.fallback is None
    assert torch.equal(plain.moments.loc, compiled.moments.loc)
    assert torch.equal(plain.moments.variance, compiled.moments.variance)


class Drawing(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(torch.zeros(3))


def test_a_network_that_draws_itself_is_sampled():
    model = nn.Sequential(lb.convert(nn.Linear(3, 3), lb.KTied(), PRIOR), Drawing())
    assert "randn_like" in lb.predict(model, torch.randn(2, 3), method="moments").fallback
