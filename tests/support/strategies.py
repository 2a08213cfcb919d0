"""Strategies of hypothesis: posteriors, priors, ops and networks of any shape.

``PROPERTIES=long`` in the environment tries 1,250 examples of every property instead of 60.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.ops import Conv, ConvTranspose, Linear, LinearOp, Lookup

COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
QUICK = (Phase.explicit, Phase.generate)
settings.register_profile("suite", max_examples=60, derandomize=True, phases=QUICK, **COMMON)
LONG = int(os.environ.get("PROPERTIES_EXAMPLES", "1250"))
settings.register_profile("long", max_examples=LONG, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("PROPERTIES", "suite"))

SIZES = st.integers(1, 7)
SEEDS = st.integers(0, 2**31)
POSITIVE = st.floats(0.01, 2.0)
RANKS = st.integers(1, 4)
DTYPES = st.sampled_from([torch.float32, torch.float64])

HALVES = st.sampled_from([torch.float16, torch.bfloat16])


@st.composite
def scales(draw) -> lb.posteriors.Scale:
    kinds = st.sampled_from(["log", "log_variance", "softplus", "signed"])
    return lb.posteriors.Scale(draw(POSITIVE), stored=draw(kinds))


def dropouts() -> st.SearchStrategy:
    kinds = st.sampled_from(["layer", "neuron", "weight", "additive"])
    return st.builds(lb.posteriors.VariationalDropout, kinds, log_alpha=st.floats(-6.0, 2.0))


def normals() -> st.SearchStrategy:
    """Posteriors whose weights are jointly normal."""
    return st.one_of(
        st.builds(lb.MeanField, scales()),
        st.builds(lb.KTied, RANKS, scale=POSITIVE),
        st.builds(
            lb.posteriors.MatrixNormal,
            scale=POSITIVE, rank=st.sampled_from([None, 0, 1, 2]), diagonal=st.booleans(),
        ),
        st.builds(lb.posteriors.ZeroMean),
        dropouts(),
    )  # fmt: skip


def rank1s() -> st.SearchStrategy:
    return st.builds(lb.Rank1, st.integers(1, 3), rate=st.floats(0.01, 0.4), batch=st.just("tile"))


def posteriors() -> st.SearchStrategy:
    return st.one_of(
        normals(),
        st.builds(lb.posteriors.Point),
        st.builds(lb.posteriors.LowRank, RANKS, scale=POSITIVE),
        st.builds(lb.posteriors.Pruned, st.builds(lb.MeanField, POSITIVE)),
        rank1s(),
    )  # fmt: skip


def normal_priors() -> st.SearchStrategy:
    return st.one_of(
        st.builds(lb.priors.Normal, POSITIVE, loc=st.floats(-1.0, 1.0)),
        st.builds(lb.priors.Normal, POSITIVE, learn=st.just("layer")),
        st.builds(lb.priors.He),
    )


def priors() -> st.SearchStrategy:
    """Priors with a finite KL from posteriors over all numbers."""
    return st.one_of(
        normal_priors(),
        st.builds(lb.priors.ARD),
        st.builds(lb.priors.Laplace, POSITIVE),
        st.builds(lb.priors.Cauchy, POSITIVE),
        st.builds(lb.priors.StudentT, df=st.floats(2.5, 20.0)),
    )


@dataclass(frozen=True)
class Use:
    """An op with the shapes of a weight in torch's layout and of an input."""

    op: LinearOp
    weight_shape: tuple[int, ...]
    input_shape: tuple[int, ...]

    def weight(self, dtype: torch.dtype) -> Tensor:
        return torch.randn(self.weight_shape, dtype=dtype)

    def input(self, dtype: torch.dtype) -> Tensor:
        if isinstance(self.op, Lookup):
            return torch.randint(self.weight_shape[0], self.input_shape)
        return torch.randn(self.input_shape, dtype=dtype)


@st.composite
def dense_uses(draw) -> Use:
    out, columns, steps = draw(SIZES), draw(SIZES), draw(st.sampled_from([(), (1,), (3,)]))
    return Use(Linear(), (out, columns), (6, *steps, columns))


@st.composite
def convolution_uses(draw) -> Use:
    dims, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    stride = tuple(draw(st.integers(1, 2)) for _ in range(dims))
    padding = tuple(draw(st.integers(0, 1)) for _ in range(dims))
    image = tuple(draw(st.integers(3, 5)) for _ in range(dims))
    ins, outs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    if draw(st.booleans()):
        op = Conv(kernel, stride=stride, padding=padding, groups=groups)
        return Use(op, (outs, ins // groups, *kernel), (6, ins, *image))
    op = ConvTranspose(kernel, stride=stride, groups=groups)
    return Use(op, (ins, outs // groups, *kernel), (6, ins, *image))


@st.composite
def lookup_uses(draw) -> Use:
    entries, width, steps = draw(SIZES), draw(SIZES), draw(st.sampled_from([(), (2,)]))
    return Use(Lookup(), (entries, width), (6, *steps))


def uses() -> st.SearchStrategy:
    return st.one_of(dense_uses(), convolution_uses(), lookup_uses())


@st.composite
def networks(draw) -> tuple[nn.Module, tuple[int, ...]]:
    """A small network and the shape of one example."""
    hidden, outputs = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    activation = draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU]))
    if draw(st.booleans()):
        inputs = draw(SIZES)
        layers = [nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, outputs)]
        return nn.Sequential(*layers), (inputs,)
    channels, size = draw(st.integers(1, 3)), draw(st.integers(3, 6))
    layers = [nn.Conv2d(channels, hidden, 3, padding=1), activation(), nn.Flatten()]
    layers += [nn.Linear(hidden * size * size, outputs, bias=draw(st.booleans()))]
    return nn.Sequential(*layers), (channels, size, size)


def moved(module: nn.Module) -> nn.Module:
    """A module away from its first values, which are too regular."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module
