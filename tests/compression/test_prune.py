"""Pruning, and what it costs [variance, figure 5 and section 7]."""

import copy
import math
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from digits import images, train
from registry import POSTERIORS, suitable_prior
from torch import nn
from torch.distributions import Distribution, MultivariateNormal, Normal, kl_divergence
from torch_layers import LAYERS

import leanbayes as lb
from leanbayes.compression.prune import CRITERIA
from leanbayes.testing import assert_mean
from research.papers.variance.ablation import permute_scales, zero_means

UNSCALED = lb.Rank1 | lb.posteriors.LowRank | lb.posteriors.Point | lb.posteriors.Pruned
SCALED = [n for n, s in POSTERIORS.items() if not isinstance(s, UNSCALED)]
CORRELATED = ["matrix_normal", "matrix_normal_low_rank", "matrix_normal_plus_diagonal"]


def shaken(model, size=0.3):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return model


def converted(posterior="mean_field", module=None, prior=None, **options):
    spec = POSTERIORS[posterior] if isinstance(posterior, str) else posterior
    net = nn.Linear(6, 5) if module is None else module
    return shaken(lb.convert(net.double(), spec, prior or suitable_prior(spec), **options))


def two_layers(**options):
    return converted(lb.MeanField(0.3), nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1)), **options)


def mask_of(model):
    return model.posterior.mask


# which weights go


def scores(model, by):
    """Large ones stay."""
    q = model.posterior()
    mean, std = q.mean.detach(), q.variance.sqrt().detach()
    return {"scale": std, "snr": mean.abs() / std, "log_alpha": (mean / std).square().log()}[by]


@pytest.mark.parametrize("by", ["scale", "snr", "log_alpha"])
@pytest.mark.parametrize("posterior", [n for n in SCALED if not n.startswith("zero_mean")])
def test_the_largest_scores_stay(posterior, by):
    model = converted(posterior)
    pruned = lb.prune(model, by=by, keep=0.4)
    score = scores(model, by)
    kept = score[mask_of(pruned)]
    assert len(kept) == 12
    if posterior != "dropout_layer" or by == "scale":  # one α for all ranks nothing
        assert kept.min() >= score.flatten().sort(descending=True).values[11] - 1e-12
    assert lb.compression.density(pruned) == {"": 0.4}
    assert lb.compression.density(model) == {"": 1.0}


@pytest.mark.parametrize(("by", "cut"), [("scale", 0.3), ("snr", 0.5), ("log_alpha", 0.7)])
def test_a_threshold_is_in_the_units_of_its_criterion(by, cut):
    model = converted()
    pruned = lb.prune(model, by=by, threshold=cut)
    score = scores(model, by)
    assert torch.equal(mask_of(pruned), -score <= cut if by == "log_alpha" else score >= cut)
    assert 0 < lb.compression.density(pruned)[""] < 1


@pytest.mark.parametrize("noise", ["normal", "bernoulli", "uniform"])
def test_a_variance_layer_is_pruned_by_its_scales(noise):
    model = converted(lb.posteriors.ZeroMean(noise))
    pruned = lb.prune(model, keep=0.1)
    assert set(model.posterior().variance[mask_of(pruned)].tolist()) == set(
        model.posterior().variance.flatten().topk(3).values.tolist()
    )


def test_ranking_is_within_each_layer_or_once_over_the_model():
    model = two_layers()
    with torch.no_grad():
        model[1].posterior.loc.fill_(100.0)
    by_layer = lb.prune(model, by="snr", keep=0.4)
    assert lb.compression.density(by_layer) == {"0": 0.4, "1": 0.4}
    once = lb.prune(model, by="snr", keep=0.4, scope="model")
    assert lb.compression.density(once)["1"] == 1
    assert sum(int(mask_of(layer).sum()) for _, layer in lb.extend.random_maps(once)) == 14


def test_ties_are_broken_at_random_and_always_alike():
    model = lb.convert(
        nn.Linear(40, 30), lb.MeanField(lb.posteriors.Scale(0.1)), lb.priors.Normal(1.0)
    )
    first, again = (mask_of(lb.prune(model, keep=0.5)) for _ in range(2))
    assert torch.equal(first, again)
    rows = first.double().mean(1)
    assert 0.1 < rows.min() < rows.max() < 0.9


def test_pruning_further_keeps_a_part_of_what_was_kept():
    model = converted()
    half = lb.prune(model, keep=0.5)
    assert torch.equal(mask_of(lb.prune(half, keep=0.5)), mask_of(half))
    assert torch.equal(mask_of(lb.prune(half, keep=0.9)), mask_of(half))
    tenth = lb.prune(half, by="snr", keep=0.1)
    assert mask_of(tenth).sum() == 3
    assert not (mask_of(tenth) & ~mask_of(half)).any()
    assert (
        tenth.posterior.spec
        == half.posterior.spec
        == lb.posteriors.Pruned(POSTERIORS["mean_field"])
    )
    assert not (mask_of(lb.prune(half, threshold=-1.0)) & ~mask_of(half)).any()


def test_biases_and_points_are_left_and_one_output_is_not():
    model = two_layers(bias=lb.MeanField(), overrides={"0": {"posterior": lb.posteriors.Point()}})
    assert lb.compression.density(lb.prune(model, keep=0.2)) == {
        "0": 1,
        "0.bias": 1,
        "1": 0.2,
        "1.bias": 1,
    }


def test_a_copy_is_pruned_unless_it_is_to_be_in_place():
    model = converted()
    before = copy.deepcopy(model.state_dict())
    lb.prune(model, keep=0.3)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    parameters = list(model.parameters())
    assert lb.prune(model, keep=0.3, inplace=True) is model
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


def test_a_criterion_of_ones_own_sees_posterior_and_prior():
    @lb.extend.register_criterion("size", keeps="small")
    def size(q, p):
        return q.mean.abs() / p.scale

    try:
        model = converted()
        kept = lb.prune(model, by="size", threshold=0.2).mean_weight
        assert (kept != 0).any()
        assert torch.equal(kept != 0, model.mean_weight.abs() / 0.5 <= 0.2)
    finally:
        CRITERIA.unregister("size")


# what a pruned layer is


@pytest.mark.parametrize(
    "estimator", [lb.estimators.weights, lb.estimators.local, lb.estimators.flipout]
)
@pytest.mark.parametrize("posterior", ["k_tied_2", "dropout_neuron"])
def test_outputs_have_the_law_of_the_kept_weights(posterior, estimator):
    model, x = lb.prune(converted(posterior), keep=0.3), torch.randn(2, 6).double()
    mask, q = mask_of(model), model.posterior().base
    with torch.no_grad(), lb.using(model, estimator):
        y = torch.stack([model(x) for _ in range(1500)])
        mean = x @ (q.mean * mask).T + model.bias
        variance = x.square() @ (q.variance * mask).T
    assert_mean(y, mean, "mean of the outputs")
    assert_mean((y - mean).square(), variance, "variance of the outputs")


@pytest.mark.parametrize("posterior", [n for n in SCALED if n not in CORRELATED])
def test_a_pruned_weight_costs_nothing_and_feels_no_force(posterior):
    model = lb.prune(converted(posterior), keep=0.4)
    mask, q, value = mask_of(model), model.posterior().base, lb.kl(model)
    if q.normal_marginals:
        single = kl_divergence(Normal(q.mean, q.variance.sqrt()), Normal(0.0, 0.5))
        torch.testing.assert_close(value, single[mask].sum())
    loss = value + model(torch.randn(3, 6).double()).square().sum()
    loss.backward()
    for name, parameter in model.posterior.named_parameters():
        if parameter.shape == mask.shape:
            assert not parameter.grad[~mask].any(), name
            assert parameter.grad[mask].all(), name


@pytest.mark.parametrize(
    "prior", [lb.priors.Normal(0.5), lb.priors.ARD(), lb.priors.Laplace(0.5)], ids=repr
)
def test_a_scale_of_exactly_zero_is_harmless_once_it_is_pruned(prior):
    model = converted("mean_field_signed", prior=prior)
    with torch.no_grad():
        model.posterior.scale[0, :3] = 0.0
    model = lb.prune(model, keep=0.9)
    lb.kl(model).backward()
    assert lb.kl(model).isfinite()
    assert model.posterior().entropy().isfinite()
    assert all(p.grad.isfinite().all() for p in model.posterior.parameters())


@pytest.mark.parametrize(
    "prior", [lb.priors.Normal(0.5), lb.priors.ARD(), lb.priors.Laplace(0.5)], ids=repr
)
@pytest.mark.parametrize("posterior", CORRELATED)
def test_the_kl_of_correlated_weights_lies_between_the_truth_and_that_of_all(posterior, prior):
    whole = converted(posterior, prior=prior)
    model = lb.prune(whole, keep=0.5)
    q, kept = model.posterior(), mask_of(model).flatten()
    assert lb.kl(model) < lb.kl(whole)
    if isinstance(prior, lb.priors.Normal):
        dense = MultivariateNormal(q.mean.flatten()[kept], q.covariance()[kept][:, kept])
        n = int(kept.sum())
        truth = kl_divergence(
            dense, MultivariateNormal(torch.zeros(n).double(), 0.25 * torch.eye(n).double())
        )
        assert truth < lb.kl(model)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_can_be_pruned_and_goes_back_to_torch(name):
    net, x = LAYERS[name].module(), LAYERS[name].input()
    model = lb.prune(lb.convert(net, lb.KTied(2), lb.priors.Normal(0.5)), by="snr", keep=0.5)
    model(*x)
    for layer in (layer for _, layer in lb.extend.random_maps(model)):
        q = layer.posterior()
        assert int((q.mean != 0).sum()) <= round(0.5 * q.mean.numel())
    plain = lb.deterministic(model)
    with lb.using(model, lb.estimators.mean):
        ours, theirs = model(*x), plain(*x)
    first = (lambda y: y) if isinstance(ours, torch.Tensor) else (lambda y: y[0])
    torch.testing.assert_close(first(ours), first(theirs))


@pytest.mark.parametrize("posterior", SCALED)
def test_masks_are_saved(posterior, tmp_path):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    whole = converted(posterior, net, bias=None)
    model, x = lb.prune(whole, keep=0.3, include=["0"]), torch.randn(4, 6).double()
    again = lb.load(net, lb.save(model, tmp_path / "m"))
    assert torch.equal(mask_of(again[0]), mask_of(model[0]))
    assert [layer.posterior.spec for _, layer in lb.extend.random_maps(again)] == [
        lb.posteriors.Pruned(POSTERIORS[posterior]),
        POSTERIORS[posterior],
    ]
    torch.manual_seed(0)
    expected = model(x), lb.kl(model)
    torch.manual_seed(0)
    assert all(map(torch.equal, (again(x), lb.kl(again)), expected))


@pytest.mark.parametrize(
    ("posterior", "scales"),
    [
        ("mean_field", 9),
        ("zero_mean", 9),
        ("k_tied_2", 2 * (5 + 6)),
        ("dropout_layer", 1),
        ("matrix_normal_plus_diagonal", 9 + 5 * 6 // 2 + 6 * 7 // 2),
    ],
)
def test_pruned_weights_do_not_count(posterior, scales):
    counts = lb.count_parameters(lb.prune(converted(posterior), keep=0.3))
    assert counts == (0 if posterior == "zero_mean" else 9, scales, 5)


def test_training_goes_on_with_the_same_optimizer_and_pruned_weights_stay_zero():
    model, x = converted(), torch.randn(20, 6).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        lb.elbo(model(x).square().mean(), lb.kl(model), data_size=20).loss.backward()
        optimizer.step()

    step()
    lb.prune(model, keep=0.3, inplace=True)
    before, mask = model.mean_weight.detach().clone(), mask_of(model).clone()
    for _ in range(3):
        step()
    assert torch.equal(mask_of(model), mask)
    assert not model.mean_weight[~mask].any()
    assert (model.mean_weight != before)[mask].all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("posterior", ["k_tied_2", "matrix_normal"])
def test_a_pruned_layer_compiles_to_one_graph(posterior):
    model = lb.prune(converted(posterior), keep=0.4)
    x = torch.randn(4, 6).double()

    def loss(x):
        return model(x).square().mean() + lb.kl(model)

    try:
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        torch.manual_seed(0)
        value = compiled(x)
        torch.manual_seed(0)
        torch.testing.assert_close(value, loss(x))
    finally:
        torch._dynamo.reset()
        Distribution.set_default_validate_args(__debug__)  # the compiler switches it off for good


def test_a_pruned_layer_moves_and_is_copied():
    model = lb.prune(converted(), keep=0.4)
    single = copy.deepcopy(model).float()
    assert mask_of(single).dtype == torch.bool
    assert single(torch.randn(3, 6)).dtype == torch.float32
    assert torch.equal(single.posterior().mean != 0, mask_of(model))


def test_group_relevances_count_the_kept_weights_and_an_empty_group_keeps_its_own():
    model = lb.prune(converted(prior=lb.priors.GroupARD(0.5)), keep=0.5)
    with torch.no_grad():
        mask_of(model)[0] = False
    before = model.prior().row_precision[0].item()
    lb.training.update_priors(model, rounds=200)
    assert model.prior().row_precision[0].item() == pytest.approx(before)
    gradients = torch.autograd.grad(lb.kl(model), list(model.prior.parameters()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-6


# bad input


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "keep is None and threshold is None; give one of them"),
        ({"keep": 0.5, "threshold": 1.0}, "keep is 0.5 and threshold is 1.0; give one of them"),
        ({"keep": 0.0}, "keep is 0.0; it is a share of the weights, in (0, 1]"),
        ({"keep": 1.5}, "keep is 1.5; it is a share of the weights, in (0, 1]"),
        ({"keep": math.nan}, "keep is nan; it is a share of the weights, in (0, 1]"),
        ({"threshold": math.nan}, "threshold is nan; give a finite number"),
        ({"threshold": 50.0}, "threshold 50 would prune every weight: the largest scale is 0."),
        (
            {"by": "log_alpha", "threshold": -50.0},
            "threshold -50 would prune every weight: the smallest log_alpha is -",
        ),
        ({"by": "sclae", "keep": 0.5}, "'sclae' is unknown; did you mean 'scale'?"),
        ({"scope": "network", "keep": 0.5}, "scope 'network' is unknown"),
        ({"include": ["x"], "keep": 0.5}, "pattern 'x' matches no layer"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        lb.prune(converted(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Linear(3, 2), "the model has no Bayesian layer; call lb.convert(model, …) first"),
        (
            lb.convert(nn.Linear(3, 2), lb.posteriors.Point(), lb.priors.Flat()),
            "single weights (Point()); convert",
        ),
        (
            lb.convert(nn.Linear(3, 2), lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0)),
            "no layer has standard deviations of single weights (Rank1(",
        ),
    ],
    ids=["plain", "point", "rank-one"],
)
def test_a_model_without_scales_is_refused(model, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        lb.prune(model, keep=0.5)


def test_a_scale_that_is_nan_is_refused_and_nothing_changes():
    model = two_layers()
    with torch.no_grad():
        model[1].posterior.scale[0, 0] = math.nan
    with pytest.raises(
        ValueError, match="layer '1' has a mean or a standard deviation that is NaN"
    ):
        lb.prune(model, keep=0.5, inplace=True)
    assert lb.compression.density(model) == {"0": 1.0, "1": 1.0}


def test_a_criterion_without_a_score_for_each_weight_is_refused():
    lb.extend.register_criterion("rows")(lambda q, p: q.mean.sum(1))
    try:
        with pytest.raises(ValueError, match=r"criterion 'rows' gave scores of shape \(5,\)"):
            lb.prune(converted(), by="rows", keep=0.5)
    finally:
        CRITERIA.unregister("rows")


@pytest.mark.parametrize("base", [lb.Rank1(2), lb.posteriors.Pruned(), "MeanField"], ids=repr)
def test_what_cannot_be_masked_is_refused(base):
    with pytest.raises(ValueError, match="give the spec of a posterior of single weights"):
        lb.posteriors.Pruned(base)


def test_a_layer_that_loses_everything_is_named():
    model = two_layers()
    with torch.no_grad():
        model[1].posterior.scale.sub_(9.0)
    with pytest.warns(UserWarning, match="layer '1' keeps no weight"):
        pruned = lb.prune(model, keep=0.2, scope="model")
    assert lb.compression.density(pruned)["1"] == 0
    assert lb.kl(pruned).isfinite()


# a trained variance layer


@pytest.fixture(scope="module")
def digits(request):
    torch.manual_seed(request.config.getoption("--seed"))
    x, y = images()
    order = torch.randperm(len(x))
    x, y = (x[order] + 1) / 2, y[order]
    return x[:1300], y[:1300], x[1300:], y[1300:]


@pytest.fixture(
    scope="module",
    params=[lb.posteriors.ZeroMean(), lb.posteriors.VariationalDropout("weight", 8.0)],
    ids=repr,
)
def variance_layer(request, digits):
    """A network whose second layer is a variance layer, by design or because it started as one."""
    torch.manual_seed(request.config.getoption("--seed"))
    hidden, head = nn.Linear(100, 100, bias=False), nn.Linear(100, 10)
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), hidden, nn.ReLU(), head)
    model = lb.convert(net, request.param, lb.priors.LogUniform(), include=("2",))
    train(model, *digits[:2], steps=250, lr=5e-3)
    assert lb.analysis.alpha_report(model).variance_layers == ("2",)
    return model


def accuracy(model, digits):
    _, _, x, y = digits
    return (lb.predict(model, x, samples=20, seed=0).labels == y).double().mean().item()


@pytest.mark.checklist("VN15")
def test_most_of_a_variance_layer_is_pruned_by_scale(variance_layer, digits):
    pruned = (lb.prune(variance_layer, keep=share) for share in (1.0, 0.2, 0.05))
    whole, fifth, twentieth = (accuracy(model, digits) for model in pruned)
    assert whole > 0.9
    assert fifth > whole - 0.01
    assert twentieth > whole - 0.03


@pytest.mark.checklist("VN22")
def test_signal_to_noise_destroys_a_variance_layer(variance_layer, digits):
    """It keeps what hardly varies; where all means are zero it ranks nothing."""
    exact = isinstance(variance_layer[2].posterior.spec, lb.posteriors.ZeroMean)
    for by in ("snr", "log_alpha"):
        with pytest.warns(UserWarning, match="layer '2' is a variance layer: its information"):
            pruned = lb.prune(variance_layer, by=by, keep=0.01 if exact else 0.05)
        assert accuracy(pruned, digits) < (0.5 if exact else 0.2)
    if exact:
        with (
            pytest.warns(UserWarning, match="is a variance layer"),
            pytest.raises(ValueError, match="would prune every weight: the largest snr is 0"),
        ):
            lb.prune(variance_layer, by="snr", threshold=1e-9)


@pytest.mark.checklist("VN19")
def test_what_a_variance_layer_knows_is_in_the_place_of_its_scales(variance_layer, digits):
    whole = accuracy(variance_layer, digits)
    assert accuracy(permute_scales(variance_layer), digits) < 0.3
    assert accuracy(zero_means(variance_layer), digits) > whole - 0.02
    with lb.using(variance_layer, lb.estimators.mean):
        assert accuracy(variance_layer, digits) < whole - 0.2


def test_pruning_an_ordinary_layer_by_signal_to_noise_warns_of_nothing(digits):
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(0.3))
    x, y = digits[:2]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pruned = lb.prune(model, by="snr", keep=0.5)
    assert accuracy(pruned, digits) > accuracy(lb.prune(model, by="scale", keep=0.5), digits)


@pytest.mark.parametrize(("groups", "dim"), [("row", 1), ("column", 0)])
@pytest.mark.parametrize("by", ["snr", "log_alpha", "scale"])
def test_a_group_is_as_important_as_its_best_weight(by, groups, dim):
    """One large weight among small ones outweighs many of middling size."""
    model = lb.convert(nn.Linear(4, 4), lb.MeanField(0.1), lb.priors.Normal(1.0))
    sizes = torch.full((4, 4), 0.5)
    sizes[1] = 0.01
    sizes[1, 3] = 0.9
    sizes = sizes if dim == 1 else sizes.T
    with torch.no_grad():
        stored = dict(model.posterior.named_parameters())
        stored["scale" if by == "scale" else "loc"].copy_(sizes.log() if by == "scale" else sizes)
    pruned = lb.prune(model, by=by, groups=groups, keep=0.25)
    assert mask_of(pruned).all(dim).tolist() == [False, True, False, False]
    assert int(mask_of(pruned).sum()) == 4
