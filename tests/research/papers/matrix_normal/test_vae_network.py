"""The auto-encoder: its first weights, latent posteriors and the evidence lower bound."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from leanbayes.testing import assert_mean
from research.networks import build
from research.papers.matrix_normal.vae.network import (
    LatentMatrixNormal,
    LatentPosterior,
    standard_kl,
)

torch.set_num_threads(1)


@pytest.mark.parametrize(("part", "inputs"), [("encoder", 784), ("decoder", 40)])
def test_first_weights_are_he_normal(part, inputs):
    net = build("vae")
    values = net.get_submodule(part).dense1.weight.detach().double().flatten()
    assert_mean(values, 0.0, part)
    assert_mean(values.square(), 2 / inputs, f"{part}²")
    assert not net.decoder.dense4.bias.any()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"family": "dig"}, "did you mean 'diag'"),
        ({"family": "mn"}, "family 'mn' needs 2 positive numbers"),
        ({"shape": (20, 2)}, "family 'diag' needs 1 positive number"),
    ],
)
def test_wrong_options_say_what_is_right(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build("vae", **options)


FAMILIES = [
    ("diag", (40,), 80),
    ("mn", (20, 2), 253),
    ("mv", (40,), 860),
    ("diag", (9,), 18),
    ("mn", (3, 3), 21),
    ("mv", (9,), 54),
]


@pytest.mark.parametrize(("family", "shape", "outputs"), FAMILIES)
def test_vae_encoder_outputs_are_as_many_as_published(family, shape, outputs):
    net = build("vae", family=family, shape=shape)
    assert net.encoder(torch.zeros(1, 784)).shape == (1, outputs)
    assert net.decoder.dense1.in_features == math.prod(shape)


@pytest.mark.parametrize(("family", "shape"), [("diag", (6,)), ("mn", (3, 2)), ("mv", (6,))])
def test_latent_posterior_against_a_dense_normal(family, shape):
    latent = LatentPosterior(family, shape)
    q = latent(torch.randn(4, latent.outputs).double() / 2)
    if family == "mn":
        tril = torch.stack([torch.kron(a, b) for a, b in zip(q.rows, q.columns, strict=True)])
    else:
        tril = torch.diag_embed(q.stddev) if family == "diag" else q.scale_tril
    dense = MultivariateNormal(q.mean, scale_tril=tril)
    z = dense.sample((5,))
    for ours, theirs in (
        (q.variance, dense.variance),
        (q.entropy(), dense.entropy()),
        (q.log_prob(z), dense.log_prob(z)),
        (
            standard_kl(q),
            kl_divergence(
                dense, MultivariateNormal(torch.zeros(6).double(), torch.eye(6).double())
            ),
        ),
    ):
        torch.testing.assert_close(ours, theirs)
    centered = q.rsample((20_000,)) - q.mean
    assert_mean(centered.unsqueeze(-1) * centered.unsqueeze(-2), dense.covariance_matrix, family)


def test_MN13_a_column_of_a_matrix_normal_is_a_multivariate_normal():
    latent = LatentPosterior("mv", (5,))
    q = latent(torch.randn(3, latent.outputs).double())
    twin = LatentMatrixNormal(q.mean.unsqueeze(-1), q.scale_tril, torch.ones(3, 1, 1).double())
    z = q.sample()
    torch.testing.assert_close(twin.log_prob(z), q.log_prob(z))
    torch.testing.assert_close(standard_kl(twin), standard_kl(q))


def test_mean_log_weight_is_the_evidence_lower_bound():
    net, x = build("vae", family="mn", shape=(3, 3)).double(), torch.rand(2, 784).round().double()
    for parameter in net.decoder.parameters():
        nn.init.zeros_(parameter)  # every pixel is on with probability one half
    with torch.no_grad():
        bound = -784 * math.log(2) - standard_kl(net.posterior(x))
        assert_mean(net.log_weights(x, 4000), bound, "evidence lower bound")
