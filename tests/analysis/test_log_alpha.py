"""log α by layer, and the distance to the zero-mean approximation [variance, 4.3; E38, E39]."""

import math

import pytest
import torch
from registry import POSTERIORS, suitable_prior
from scipy import stats
from torch import nn
from torch.distributions import MultivariateNormal

import leanbayes as lb
from leanbayes.testing import assert_mean

ORDINARY = [
    name
    for name, spec in POSTERIORS.items()
    if not isinstance(
        spec, lb.Rank1 | lb.posteriors.LowRank | lb.posteriors.Point | lb.posteriors.ZeroMean
    )
]
CLOSED = [name for name in ORDINARY if name != "matrix_normal_plus_diagonal"]


def layer(posterior, shape=(4, 3), shrink=1.0):
    """A converted layer with numbers that no initialization gives, in double precision."""
    out, columns = shape
    spec = POSTERIORS[posterior] if isinstance(posterior, str) else posterior
    model = lb.convert(nn.Linear(columns, out, bias=False).double(), spec, suitable_prior(spec))
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for mean in model.posterior.tensors("means").values():
            mean.mul_(shrink)
    return model


def only_row(model, **options):
    (row,) = lb.analysis.alpha_report(model, **options).rows
    return row


def dense(model):
    q = model.posterior()
    return q.mean.detach().flatten(), q.covariance().detach()


@pytest.mark.parametrize("posterior", ORDINARY)
def test_log_alpha_is_that_of_means_and_marginal_variances(posterior):
    model = layer(posterior, (3, 3))
    mean, covariance = dense(model)
    log_alpha = (covariance.diagonal() / mean.square()).log()
    row = only_row(model, thresholds=(-1.0, 0.5))
    expected = torch.quantile(log_alpha, torch.tensor([0.25, 0.5, 0.75]).double())
    assert row.weights == 9
    assert row.log_alpha == pytest.approx(expected.tolist())
    assert row.above == tuple((log_alpha > t).double().mean().item() for t in (-1.0, 0.5))


@pytest.mark.parametrize("posterior", CLOSED)
def test_distance_is_the_total_variation_of_two_normals_and_keeps_the_bound(posterior):
    model = layer(posterior, shrink=0.2)
    mean, covariance = dense(model)
    row = only_row(model)
    delta = (mean @ torch.linalg.solve(covariance, mean)).sqrt().item()
    assert row.distance == pytest.approx(2 * stats.norm.cdf(delta / 2) - 1, abs=1e-12)
    assert row.bound == pytest.approx(delta / math.sqrt(2 * math.pi))
    assert row.distance <= row.bound


@pytest.mark.parametrize("posterior", ["dropout_layer", "k_tied_2", "matrix_normal"])
def test_likelihood_ratio_attains_the_distance(posterior):
    """``sup P(A) − P₀(A)`` over events is reached by the one where the first is likelier."""
    model = layer(posterior, shrink=0.1)
    mean, covariance = dense(model)
    laws = MultivariateNormal(mean, covariance), MultivariateNormal(0 * mean, covariance)
    gain = 0.0
    for sign, law in zip((1, -1), laws, strict=True):
        w = law.sample((20_000,))
        gain = gain + sign * (laws[0].log_prob(w) > laws[1].log_prob(w)).double()
    assert_mean(gain, only_row(model).distance, "probability that the two laws differ by")


@pytest.mark.parametrize(
    ("weights", "log_alpha", "bound"),
    [(400_000, 6.9, 8.0), (512 * 512, 12.0, 0.51), (512 * 512 * 9, 15.0, 0.34)],
    ids=["lenet dense", "vgg dense", "vgg convolution"],
)
def test_the_bound_at_the_published_alphas(weights, log_alpha, bound):
    model = lb.convert(
        nn.Linear(weights // 512, 512, bias=False),
        lb.posteriors.VariationalDropout(log_alpha=log_alpha),
        lb.priors.LogUniform(),
    )
    row = only_row(model)
    exact = math.sqrt(row.weights / (2 * math.pi * math.exp(log_alpha)))
    assert row.bound == pytest.approx(exact) == pytest.approx(bound, rel=0.02)
    assert row.bound_says_nothing == (bound > 1)
    assert ("says nothing" in str(lb.analysis.alpha_report(model))) == (bound > 1)
    assert row.distance <= min(1.0, row.bound)


@pytest.mark.parametrize("posterior", CLOSED)
def test_no_input_gives_an_output_more_than_its_snr_and_one_gives_as_much(posterior):
    model = layer(posterior)
    q = model.posterior()
    _, covariance = dense(model)
    blocks = covariance.reshape(4, 3, 4, 3).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    best = torch.linalg.solve(blocks, q.mean.detach().unsqueeze(-1)).squeeze(-1)
    x = torch.cat([best, torch.randn(200, 3).double()])
    y = torch.einsum("bj,ij->bi", x, q.mean.detach())
    std = torch.einsum("bj,ijk,bk->bi", x, blocks, x).sqrt()
    largest = (y.abs() / std).max()
    assert only_row(model).output_snr == pytest.approx(largest.item())


def test_a_matrix_normal_with_a_diagonal_has_no_closed_distance():
    row = only_row(layer("matrix_normal_plus_diagonal"))
    assert (row.output_snr, row.distance, row.bound) == (None, None, None)
    assert not row.is_variance_layer
    assert "–" in str(lb.analysis.alpha_report(layer("matrix_normal_plus_diagonal")))


@pytest.mark.parametrize("noise", ["normal", "bernoulli", "uniform"])
def test_a_layer_without_means_is_a_variance_layer(noise):
    row = only_row(layer(f"zero_mean_{noise}".removesuffix("_normal")))
    assert row.log_alpha == (math.inf,) * 3
    assert row.above == (1.0, 1.0, 1.0)
    assert (row.output_snr, row.distance, row.bound) == (0, 0, 0)
    assert row.is_variance_layer
    assert not row.bound_says_nothing


def test_a_sparse_layer_is_no_variance_layer():
    """Nearly all weights are noise, and the layer lives by the means of the others."""
    net = nn.Linear(100, 20, bias=False)
    model = lb.convert(
        net, lb.posteriors.VariationalDropout("weight", log_alpha=9.0), lb.priors.LogUniform()
    )
    assert lb.analysis.alpha_report(model).variance_layers == ("",)
    with torch.no_grad():
        model.posterior.log_alpha[:, 0] = -13.0
    row = only_row(model)
    assert row.log_alpha.low == 9
    assert not row.is_variance_layer


def test_pruned_weights_do_not_count():
    model = layer("mean_field")
    kept = lb.prune(model, by="snr", keep=0.5)
    q = model.posterior()
    ratios = (q.mean.square() / q.variance).detach().flatten().sort(descending=True).values[:6]
    row = only_row(kept)
    assert row.weights == 6
    assert row.bound == pytest.approx((ratios.sum() / (2 * math.pi)).sqrt().item())
    assert row.log_alpha.median in [pytest.approx(-v) for v in ratios.log().tolist()]


def network():
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    overrides = {
        "0": {"posterior": lb.posteriors.Point(), "prior": lb.priors.Flat()},
        "2": {"posterior": lb.posteriors.VariationalDropout(log_alpha=10.0)},
    }
    return lb.convert(
        net, lb.MeanField(), lb.priors.LogUniform(), bias=lb.MeanField(), overrides=overrides
    )


def test_rows_follow_the_network_and_points_have_none():
    model = network()
    report = lb.analysis.alpha_report(model)
    assert [row.name for row in report.rows] == ["0.bias", "2", "2.bias", "4", "4.bias"]
    assert report.variance_layers == ("2",)
    assert report["2"] is report.rows[1]
    lines = str(report).splitlines()
    assert len(lines) == 1 + 5 + 1
    assert [line.split()[0] for line in lines[1:6]] == [row.name for row in report.rows]
    assert [line.endswith("variance layer") for line in lines[1:6]] == [
        row.name == "2" for row in report.rows
    ]
    with pytest.raises(ValueError, match="layer '3' is unknown"):
        report["3"]


def test_nothing_is_drawn_and_nothing_changes():
    model = network()
    before, state = torch.get_rng_state(), {n: v.clone() for n, v in model.state_dict().items()}
    assert lb.analysis.alpha_report(model) == lb.analysis.alpha_report(model)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(v, state[n]) for n, v in model.state_dict().items())


@pytest.mark.parametrize(
    "posterior", [lb.MeanField(0.1), lb.posteriors.MatrixNormal(0.1)], ids=repr
)
def test_half_precision_is_taken(posterior):
    model = lb.convert(nn.Linear(6, 5), posterior, lb.priors.Normal(1.0)).bfloat16()
    assert only_row(model).distance == pytest.approx(1.0, abs=0.2)


def test_bad_input():
    with pytest.raises(ValueError, match=r"has no Bayesian layer; call lb\.convert"):
        lb.analysis.alpha_report(nn.Linear(3, 2))
    point = lb.convert(nn.Linear(3, 2), lb.posteriors.Point(), lb.priors.Flat())
    with pytest.raises(ValueError, match=r"no layer has standard deviations .* \(Point\(\)\)"):
        lb.analysis.alpha_report(point)
    with pytest.raises(ValueError, match="threshold of log α is NaN"):
        lb.analysis.alpha_report(network(), thresholds=[math.nan])
    model = network()
    with torch.no_grad():
        model[2].posterior.loc[0, 0] = math.nan
    with pytest.raises(ValueError, match="layer '2' has a mean or a standard deviation that is"):
        lb.analysis.alpha_report(model)
