"""The example registry: every public posterior, prior, op and estimator, at least once.

Tests are parametrized over it; ``test_conformance.py`` fails if a public class is missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.estimators import ESTIMATORS
from leanbayes.layers.matrix_layers import OuterProduct
from leanbayes.layers.transformers import TransposedLinear
from leanbayes.ops import Conv, ConvTranspose, Linear, LinearOp, Lookup

POSTERIORS: dict[str, lb.posteriors.Posterior] = {
    "point": lb.posteriors.Point(),
    "mean_field": lb.MeanField(scale=0.3),
    "mean_field_published": lb.MeanField(),
    "mean_field_softplus": lb.MeanField(
        lb.posteriors.Scale(1.234e-4, raw_spread=0.1, stored="softplus", ceiling=math.log(1.2))
    ),
    "mean_field_log_variance": lb.MeanField(
        lb.posteriors.Scale(math.exp(-5), stored="log_variance")
    ),
    "mean_field_signed": lb.MeanField(lb.posteriors.Scale("fan_in", stored="signed")),
    "k_tied_1": lb.KTied(rank=1, scale=lb.posteriors.Scale(0.3, raw_spread=0.3)),
    "k_tied_2": lb.KTied(rank=2, scale=lb.posteriors.Scale(0.3, raw_spread=0.3)),
    "k_tied_3": lb.KTied(rank=3),
    "matrix_normal": lb.posteriors.MatrixNormal(scale=0.3),
    "matrix_normal_low_rank": lb.posteriors.MatrixNormal(scale=0.3, rank=2),
    "matrix_normal_diagonal_factors": lb.posteriors.MatrixNormal(scale=0.3, rank=0),
    "matrix_normal_plus_diagonal": lb.posteriors.MatrixNormal(scale=0.3, diagonal=True),
    "low_rank": lb.posteriors.LowRank(rank=2, scale=0.3),
    "low_rank_full": lb.posteriors.LowRank(rank=40, scale=0.1),
    "zero_mean": lb.posteriors.ZeroMean(),
    "zero_mean_bernoulli": lb.posteriors.ZeroMean("bernoulli"),
    "zero_mean_uniform": lb.posteriors.ZeroMean("uniform"),
    "dropout_layer": lb.posteriors.VariationalDropout("layer", log_alpha=-1.0),
    "dropout_neuron": lb.posteriors.VariationalDropout("neuron", log_alpha=-1.0),
    "dropout_weight": lb.posteriors.VariationalDropout("weight", log_alpha=-1.0),
    "dropout_additive": lb.posteriors.VariationalDropout("additive", log_alpha=-1.0),
    "pruned": lb.posteriors.Pruned(lb.MeanField(scale=0.3)),
    "rank1_normal": lb.Rank1(members=3, rate=0.1),
    "rank1_single": lb.Rank1(members=1, rate=0.1),
    "rank1_cauchy": lb.Rank1(members=2, factors="cauchy"),
    "rank1_lognormal": lb.Rank1(members=2, factors="lognormal"),
    "rank1_halfcauchy": lb.Rank1(members=2, factors="halfcauchy"),
    "rank1_fixed": lb.Rank1(members=2, factors="fixed"),
    "rank1_outputs": lb.Rank1(members=2, factors=("normal", "none"), rate=0.1),
    "rank1_inputs": lb.Rank1(members=2, factors=("none", "normal"), rate=0.1),
}
"""Posteriors over matrices; the additive rank-one form is affine and is tested on its own."""

PRIORS: dict[str, lb.priors.Prior] = {
    "normal": lb.priors.Normal(0.5),
    "normal_shifted": lb.priors.Normal(0.5, loc=1.0),
    "normal_learned": lb.priors.Normal(0.5, learn="layer"),
    "normal_shared": lb.priors.Normal(0.5, learn="model"),
    "he": lb.priors.He(),
    "centered": lb.priors.Centered(0.5),
    "hierarchical": lb.priors.Hierarchical(0.8, 0.5),
    "ard": lb.priors.ARD(),
    "group_ard": lb.priors.GroupARD(scale=0.5),
    "log_uniform": lb.priors.LogUniform(),
    "log_uniform_exact": lb.priors.LogUniform(exact=True),
    "student_t": lb.priors.StudentT(df=3.0),
    "cauchy": lb.priors.Cauchy(0.5),
    "half_cauchy": lb.priors.HalfCauchy(0.5),
    "log_normal": lb.priors.LogNormal(0.5),
    "laplace": lb.priors.Laplace(0.5),
    "scale_mixture": lb.priors.ScaleMixture(),
    "flat": lb.priors.Flat(),
}

ESTIMATORS = dict(ESTIMATORS)


@dataclass(frozen=True)
class OpExample:
    """An op, the shape of a weight in torch's own layout, and how to make an input."""

    op: LinearOp
    weight_shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    columns: int

    def weight(self, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(self.weight_shape, dtype=dtype)

    def input(self, dtype: torch.dtype = torch.float64) -> Tensor:
        if isinstance(self.op, Lookup):
            return torch.randint(self.weight_shape[0], self.input_shape)
        return torch.randn(self.input_shape, dtype=dtype)


OPS: dict[str, OpExample] = {
    "linear": OpExample(Linear(), (4, 3), (6, 3), 3),
    "linear_wide": OpExample(Linear(), (20, 3), (6, 3), 3),
    "linear_sequence": OpExample(Linear(), (4, 3), (6, 2, 3), 3),
    "linear_transposed": OpExample(TransposedLinear(), (3, 4), (6, 3), 3),
    "outer_product": OpExample(OuterProduct((3, 2)), (4, 3, 2), (6, 6), 6),
    "conv1d": OpExample(Conv((3,)), (4, 2, 3), (6, 2, 5), 6),
    "conv2d": OpExample(Conv((2, 2)), (4, 2, 2, 2), (6, 2, 3, 3), 8),
    "conv2d_odd": OpExample(
        Conv((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (4, 2, 3, 2), (6, 2, 5, 4), 12
    ),
    "conv2d_same": OpExample(Conv((3, 3), padding="same"), (4, 1, 3, 3), (6, 1, 4, 4), 9),
    "conv2d_circular": OpExample(
        Conv((3, 3), padding=(1, 1), padding_mode="circular"), (4, 1, 3, 3), (6, 1, 4, 4), 9
    ),
    "conv2d_grouped": OpExample(Conv((2, 2), groups=2), (4, 1, 2, 2), (6, 2, 3, 3), 4),
    "conv3d": OpExample(Conv((2, 2, 2)), (4, 1, 2, 2, 2), (6, 1, 2, 2, 2), 8),
    "conv_transpose1d": OpExample(ConvTranspose((3,), stride=(2,)), (2, 4, 3), (6, 2, 3), 6),
    "conv_transpose2d": OpExample(
        ConvTranspose((2, 2), stride=(2, 2), output_padding=(1, 1)), (2, 4, 2, 2), (6, 2, 2, 2), 8
    ),
    "conv_transpose2d_grouped": OpExample(
        ConvTranspose((2, 2), groups=2), (2, 2, 2, 2), (6, 2, 2, 2), 4
    ),
    "conv_transpose3d": OpExample(ConvTranspose((1, 2, 2)), (2, 4, 1, 2, 2), (6, 2, 1, 2, 2), 8),
    "lookup": OpExample(Lookup(), (5, 4), (6,), 5),
    "lookup_sequence": OpExample(Lookup(), (5, 4), (6, 3), 5),
    "lookup_padded": OpExample(Lookup(padding_index=0), (5, 4), (6, 3), 5),
}


def suitable_prior(posterior: lb.posteriors.Posterior) -> lb.priors.Prior:
    """A prior that this posterior has a finite KL from."""
    if isinstance(posterior, lb.posteriors.ZeroMean) and posterior.noise == "bernoulli":
        return lb.priors.Flat()
    if isinstance(posterior, lb.Rank1):
        if posterior.factors == "cauchy":
            return lb.priors.Cauchy(0.5, loc=1.0)
        positive = posterior.factors in ("lognormal", "halfcauchy")
        return lb.priors.LogNormal(0.5) if positive else lb.priors.Normal(0.5, loc=1.0)
    return lb.priors.Normal(0.5)
