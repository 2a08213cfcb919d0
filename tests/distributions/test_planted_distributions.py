"""Errors that ``python -m research trust mutants`` planted, and no test noticed."""

import math

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from leanbayes.distributions import KroneckerNormal, LocationScale, Masked, Triangular
from leanbayes.distributions.base import in_blocks
from leanbayes.distributions.gauss_hermite import normal_moments


def test_a_mean_of_zero_has_a_finite_log_alpha_where_its_scale_is_zero():
    q = LocationScale(None, torch.tensor([[0.0, 2.0]]))
    tiny = math.log(torch.finfo(torch.float32).tiny)
    torch.testing.assert_close(q.log_inverse_alpha(), torch.full((1, 2), tiny))


def test_the_kl_of_kept_correlated_weights_lacks_the_marginals_of_the_others():
    torch.manual_seed(0)
    rows, columns = (Triangular(torch.eye(n) + 0.3 * torch.ones(n, n).tril(-1)) for n in (2, 3))
    base = KroneckerNormal(torch.randn(2, 3), rows, columns)
    p = Normal(torch.zeros(2, 3), 0.7)
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    marginals = kl_divergence(Normal(base.mean, base.variance.sqrt()), p)
    expected = kl_divergence(base, p) - marginals[mask == 0].sum()
    torch.testing.assert_close(kl_divergence(Masked(base, mask), p), expected)


def test_the_variance_of_a_function_of_a_normal_is_around_its_mean():
    loc, variance = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.1])
    mean, spread = normal_moments(torch.exp, loc, variance)
    torch.testing.assert_close(mean, torch.exp(loc + variance / 2))
    torch.testing.assert_close(spread, torch.expm1(variance) * torch.exp(2 * loc + variance))


class Blocks(nn.Module):
    def forward(self, x, factor):
        return in_blocks(factor, x.shape[0])


def test_blocks_of_members_in_a_graph_for_any_batch():
    factor = torch.arange(24.0).view(2, 3, 4)
    sizes = {"x": {0: 2 * torch.export.Dim("half", min=2)}, "factor": None}
    graph = torch.export.export(Blocks(), (torch.zeros(6, 1), factor), dynamic_shapes=sizes)
    for rows in (4, 10):
        x = torch.zeros(rows, 1)
        assert torch.equal(graph.module()(x, factor), factor.repeat_interleave(rows // 2, 0))
