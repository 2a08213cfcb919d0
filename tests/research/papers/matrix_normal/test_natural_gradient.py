"""Natural gradients: against the dense Fisher matrix, and linear regression whose end is known."""

import copy
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.optim.lr_scheduler import ExponentialLR

import leanbayes as lb
from leanbayes.distributions import KroneckerNormal, WeightDistribution
from research.papers.matrix_normal.natural_gradient import NaturalGradient
from research.papers.matrix_normal.natural_gradient_rules import (
    lower_gram,
    lower_lower,
    quadratic_exp,
)

NOISE = 0.5
EXACT = {"lr": 1.0, "trust": 0.25, "mean_trust": math.inf}  # for gradients without noise
SHAPES = ((3, 2), (2, 4), (1, 3), (3, 1), (1, 1))
SERVED = {
    "matrix_normal": lb.posteriors.MatrixNormal(0.4),
    "matrix_normal_diagonal_factors": lb.posteriors.MatrixNormal(0.4, rank=0),
    "mean_field": lb.MeanField(0.4),
    "mean_field_log_variance": lb.MeanField(lb.posteriors.Scale(0.4, stored="log_variance")),
    "mean_field_softplus": lb.MeanField(lb.posteriors.Scale(0.4, stored="softplus")),
    "mean_field_signed": lb.MeanField(lb.posteriors.Scale("fan_in", stored="signed")),
    "dropout_additive": lb.posteriors.VariationalDropout("additive", log_alpha=-1.0),
    "zero_mean": lb.posteriors.ZeroMean(),
    "pruned": lb.posteriors.Pruned(lb.MeanField(0.4)),
}
REFUSED = {
    "low_rank": lb.posteriors.MatrixNormal(rank=2),
    "plus_diagonal": lb.posteriors.MatrixNormal(diagonal=True),
    "plus_diagonal_factors": lb.posteriors.MatrixNormal(rank=0, diagonal=True),
    "dropout": lb.posteriors.VariationalDropout("layer"),
    "uniform": lb.posteriors.ZeroMean("uniform"),
    "pruned_matrix_normal": lb.posteriors.Pruned(lb.posteriors.MatrixNormal()),
    "rank1": lb.Rank1(2),
}

over_served = pytest.mark.parametrize("name", SERVED)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def layer_of(spec, out, columns, prior=None, jitter=0.3):
    layer = lb.convert(nn.Linear(columns, out, bias=False), spec, prior or lb.priors.Normal(1.0))
    with torch.no_grad():
        for parameter in layer.posterior.parameters():
            parameter.add_(jitter * torch.randn_like(parameter))
    return layer


def dense(q: WeightDistribution) -> MultivariateNormal:
    return MultivariateNormal(q.mean.flatten().clone(), q.covariance())


def stored(layer):
    """All stored tensors as one vector, and what makes the dense law from such a vector."""
    parameters = dict(layer.posterior.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    def law(vector: Tensor) -> MultivariateNormal:
        parts = vector.split(sizes)
        values = {n: v.view_as(p) for (n, p), v in zip(parameters.items(), parts, strict=True)}
        return dense(torch.func.functional_call(layer.posterior, values, ()))

    return torch.cat([p.detach().flatten() for p in parameters.values()]), law


def fisher(layer) -> Tensor:
    """The Hessian of ``KL(q(old) ‖ q(new))`` at the old parameters, by autograd."""
    here, law = stored(layer)
    fixed = law(here)
    return torch.autograd.functional.hessian(lambda new: kl_divergence(fixed, law(new)), here)


def any_loss(layer):
    """A function of the law alone: not of which of many factors give it."""
    q = layer.posterior()
    out, columns = q.event_shape
    target = torch.linspace(-1, 1, out * columns)
    mixing = torch.linspace(-1, 2, (out * columns) ** 2).view(out * columns, -1).sin()
    curvature = mixing @ mixing.mT + torch.eye(len(mixing))
    mean = q.mean.flatten() - target
    return 0.5 * (mean @ curvature @ mean + (curvature * q.covariance()).sum()) + 0.1 * layer.kl()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@over_served
def test_a_step_is_the_inverse_fisher_matrix_times_the_gradient(name, shape):
    """``F d = −lr g`` for every solution ``d``: F is singular along the scale of two factors."""
    layer = layer_of(SERVED[name], *shape)
    before, law = stored(layer)
    matrix = fisher(layer)
    loss, lr = any_loss(layer), 1e-7
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in layer.posterior.parameters()])
    NaturalGradient(layer, data_size=1, lr=lr).step()
    direction = (stored(layer)[0] - before) / lr
    torch.testing.assert_close(matrix @ direction, -gradient, rtol=1e-5, atol=1e-5)
    least = torch.linalg.pinv(matrix, hermitian=True, rtol=1e-10) @ -gradient
    slope = torch.autograd.functional.jacobian(lambda v: law(v).covariance_matrix, before)
    torch.testing.assert_close(slope @ direction, slope @ least, rtol=1e-5, atol=1e-5)


def test_the_trace_of_the_columns_step_is_free_only_where_rows_are_frozen():
    layer = layer_of(SERVED["matrix_normal"], 3, 2)
    before = layer.posterior.column_scale.sum().item()
    any_loss(layer).backward()
    NaturalGradient(layer, data_size=1, lr=1e-6).step()
    assert layer.posterior.column_scale.sum().item() == pytest.approx(before, abs=1e-12)
    layer.zero_grad()
    layer.posterior.row_scale.requires_grad_(False)
    layer.posterior.row_factor.requires_grad_(False)
    rows = layer.posterior().rows.lower.clone()
    any_loss(layer).backward()
    NaturalGradient(layer, data_size=1, lr=1e-6).step()
    assert torch.equal(layer.posterior().rows.lower, rows)
    assert abs(layer.posterior.column_scale.sum().item() - before) > 1e-8


def test_how_scales_are_stored_does_not_matter():
    """Equal laws make equal steps, to all orders."""
    ways = ("log", "log_variance", "softplus", "signed")
    layers = [
        layer_of(lb.MeanField(lb.posteriors.Scale(0.4, stored=way)), 3, 2, jitter=0.0)
        for way in ways
    ]
    for layer in layers:
        layer.posterior.assign(loc=torch.arange(6.0).view(3, 2))
        optimizer = NaturalGradient(layer, data_size=1, lr=0.3)
        for _ in range(5):
            optimizer.zero_grad()
            any_loss(layer).backward()
            optimizer.step()
    first = layers[0].posterior()
    for layer in layers[1:]:
        torch.testing.assert_close(layer.posterior().scale, first.scale, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.posterior().loc, first.loc, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [1.0, 1e3, 1e9])
@pytest.mark.parametrize("trust", [0.05, math.inf])
@over_served
def test_covariances_stay_positive_definite_whatever_the_step(name, trust, length):
    layer = layer_of(SERVED[name], 4, 3)
    optimizer = NaturalGradient(layer, data_size=1, lr=length, trust=trust)
    for p in layer.posterior.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    q = layer.posterior()
    assert torch.isfinite(q.covariance()).all()
    assert (q.variance > 0).all()
    if isinstance(q, KroneckerNormal) and not q.independent:
        assert (q.rows.lower.diagonal() > 0).all()
        assert (q.columns.lower.diagonal() > 0).all()
    else:
        assert torch.linalg.eigvalsh(q.covariance()).min() > 0


def test_growth_is_positive_and_near_the_exponential():
    x = torch.linspace(-50, 50, 1001)
    assert (quadratic_exp(x) >= 0.5).all()
    small = torch.linspace(-1e-3, 1e-3, 11)
    torch.testing.assert_close(quadratic_exp(small), small.exp(), rtol=0, atol=2e-10)


@pytest.mark.parametrize("trust", [1e-4, 1e-2])
@pytest.mark.parametrize("rank", [None, 0])
def test_a_step_goes_no_further_than_trusted(trust, rank):
    """The KL of new from old, exactly: out · in · trust of means, in and out · trust of factors."""
    layer = layer_of(lb.posteriors.MatrixNormal(0.4, rank=rank), 3, 4)
    old = dense(layer.posterior())
    for p in layer.posterior.parameters():
        p.grad = 1e3 * torch.randn_like(p)
    NaturalGradient(layer, data_size=1, lr=1.0, trust=trust).step()
    new = dense(layer.posterior())
    whole = kl_divergence(new, old).item()
    assert whole == pytest.approx(trust * (12 + 3 + 4), rel=10 * math.sqrt(trust))


def test_means_may_have_a_trust_of_their_own():
    layer = layer_of(lb.posteriors.MatrixNormal(0.4), 3, 4)
    old = dense(layer.posterior())
    for p in layer.posterior.parameters():
        p.grad = 1e3 * torch.randn_like(p)
    NaturalGradient(layer, data_size=1, lr=1.0, trust=1e-6, mean_trust=1e-2).step()
    whole = kl_divergence(dense(layer.posterior()), old).item()
    assert whole == pytest.approx(12 * 1e-2, rel=0.01)


def test_a_step_of_independent_weights_goes_no_further_than_trusted():
    layer, trust = layer_of(lb.MeanField(0.4), 3, 4), 1e-4
    old = layer.posterior()
    old = Normal(old.loc.detach().clone(), old.scale.detach().clone())
    for p in layer.posterior.parameters():
        p.grad = 1e3 * torch.randn_like(p)
    NaturalGradient(layer, data_size=1, lr=1.0, trust=trust).step()
    new = layer.posterior()
    each = kl_divergence(Normal(new.loc, new.scale), old)
    torch.testing.assert_close(each, torch.full((3, 4), 2 * trust), rtol=0.05, atol=0)


# Linear regression, whose posterior and evidence are known


@dataclass
class Regression:
    """``y = W x + ε`` with the prior ``N(0, 1)`` on all weights."""

    x: Tensor
    y: Tensor
    noise: float = NOISE

    @property
    def precision(self) -> Tensor:
        return self.x.mT @ self.x / self.noise**2 + torch.eye(self.x.shape[1])

    @property
    def posterior(self) -> MultivariateNormal:
        v = torch.linalg.inv(self.precision).contiguous()
        mean = self.y.mT @ self.x @ v / self.noise**2
        return MultivariateNormal(mean.flatten(), torch.kron(torch.eye(self.y.shape[1]), v))

    @property
    def log_evidence(self) -> float:
        size = len(self.x)
        covariance = self.x @ self.x.mT + self.noise**2 * torch.eye(size)
        law = MultivariateNormal(torch.zeros(size), covariance)
        return law.log_prob(self.y.mT).sum().item()

    @property
    def best_of_independent_weights(self) -> float:
        gap = self.precision.diagonal().log().sum() - torch.logdet(self.precision)
        return self.log_evidence - 0.5 * self.y.shape[1] * gap.item()

    def loss(self, layer) -> Tensor:
        """The negative ELBO for one example, in closed form."""
        op, size = lb.ops.Linear(), len(self.x)
        moments = layer.posterior().moments(self.x, op)
        variance = moments.covariance(op).diagonal(dim1=-2, dim2=-1)
        at_mean = Normal(moments.mean, self.noise).log_prob(self.y)
        nll = (0.5 * variance / self.noise**2 - at_mean).sum() / size
        return lb.elbo(nll, lb.kl(layer), data_size=size).loss

    def train(self, layer, steps, **options):
        optimizer = NaturalGradient(layer, data_size=len(self.x), **options)
        for _ in range(steps):
            optimizer.zero_grad()
            self.loss(layer).backward()
            optimizer.step()
        return -len(self.x) * self.loss(layer).item()


@pytest.fixture
def regression(_seed, _float64) -> Regression:
    x = torch.randn(30, 5) @ (torch.eye(5) + 0.7)
    return Regression(x, x @ torch.randn(5, 2) + NOISE * torch.randn(30, 2))


@pytest.mark.checklist("MN6")
@pytest.mark.parametrize("start", [0.01, 0.3, 3.0])
def test_a_linear_layer_reaches_the_exact_posterior_in_forty_steps(regression, start):
    layer = layer_of(lb.posteriors.MatrixNormal(start), 2, 5, jitter=0.0)
    exact = regression.posterior
    assert kl_divergence(dense(layer.posterior()), exact) > 100
    elbo = regression.train(layer, 40, **EXACT)
    assert kl_divergence(dense(layer.posterior()), exact) <= 1e-8
    assert elbo == pytest.approx(regression.log_evidence, abs=1e-8)


@pytest.mark.parametrize(
    "spec",
    [lb.MeanField(0.1), lb.KTied(2, 0.1), lb.posteriors.MatrixNormal(0.1, rank=0)],
    ids=str,
)
def test_independent_weights_reach_their_own_optimum_below_the_evidence(regression, spec):
    """Rows share a precision, so that diagonal factors hold the best independent weights.

    The Fisher matrix does not know that inputs are correlated, so that steps are shorter.
    """
    layer = layer_of(spec, 2, 5, jitter=0.0)
    elbo = regression.train(layer, 400, lr=0.3, trust=0.25)
    assert elbo < regression.log_evidence - 1
    assert elbo == pytest.approx(regression.best_of_independent_weights, abs=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("start", [0.01, 3.0])
def test_tied_scales_reach_their_optimum_in_forty_steps(regression, rank, start):
    """With more terms than the optimum needs the Fisher matrix loses rank, and nothing breaks."""
    layer = layer_of(lb.KTied(rank, start), 2, 5, jitter=0.0)
    best = torch.linalg.diagonal(regression.precision).rsqrt().expand(2, 5)
    assert (layer.posterior().scale / best).log().abs().max() > 1
    regression.train(layer, 40, lr=1.0, trust=0.25)
    scale = layer.posterior().scale
    torch.testing.assert_close(scale, best, rtol=1e-5, atol=0)
    adam = layer_of(lb.KTied(rank, start), 2, 5, jitter=0.0)
    optimizer = torch.optim.Adam(adam.parameters(), 0.1)
    for _ in range(40):
        optimizer.zero_grad()
        regression.loss(adam).backward()
        optimizer.step()
    assert (adam.posterior().scale / best).log().abs().max() > 1e-2


@pytest.mark.checklist("MN6")
@pytest.mark.parametrize("folder", ["bostonHousing", "concrete", "energy"])
def test_on_real_data_the_matrix_normal_reaches_the_evidence_and_diag_does_not(folder):
    root = os.environ.get("LEANBAYES_DATA")
    file = Path(root or "", "uci", folder, "data.txt")
    if root is None or not file.is_file():
        pytest.skip(f"LEANBAYES_DATA has no uci/{folder}/data.txt")
    table = torch.from_numpy(np.loadtxt(file))
    columns = {"bostonHousing": 13}.get(folder, 8)
    chosen = table[:, : columns + 1]
    chosen = (chosen - chosen.mean(0)) / chosen.std(0)
    regression = Regression(chosen[:, :-1], chosen[:, -1:])
    full = regression.train(
        layer_of(lb.posteriors.MatrixNormal(0.01), 1, columns, jitter=0.0), 40, **EXACT
    )
    assert full == pytest.approx(regression.log_evidence, abs=1e-6)
    independent = regression.train(
        layer_of(lb.MeanField(0.01), 1, columns, jitter=0.0), 500, lr=0.3, trust=0.25
    )
    best = regression.best_of_independent_weights
    assert best - 3 < independent <= best + 1e-6
    assert best < regression.log_evidence - 1


# The optimizer


def network(spec=None, dtype=torch.float64):
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ELU(), nn.Flatten(), nn.Linear(27, 4))
    return lb.convert(net, spec or lb.posteriors.MatrixNormal(0.05), lb.priors.GroupARD()).to(dtype)


def batch(step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 1, 5, 5, generator=generator, dtype=dtype)
    return x, (x.flatten(1).sum(1) > 0).long()


def loss_of(model, x, y):
    nll = nn.functional.cross_entropy(model(x), y)
    return lb.elbo(nll, lb.kl(model), data_size=100).loss


def run(model, optimizer, steps, scheduler=None, first=0):
    for step in range(first, first + steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = loss_of(model, *batch(step))
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return loss.item()


def optimizer_of(model, **options):
    return NaturalGradient(model, data_size=100, **{"lr": 0.1, **options})


@pytest.mark.parametrize(
    "spec",
    [
        lb.posteriors.MatrixNormal(0.05),
        lb.posteriors.MatrixNormal(0.05, rank=0),
        lb.MeanField(0.05),
    ],
    ids=str,
)
def test_a_network_learns_and_all_its_parameters_move(spec):
    model = network(spec)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = run(model, torch.optim.SGD(model.parameters(), 0.0), 1)
    last = run(model, optimizer_of(model), 40)
    assert last < 0.8 * first
    still = [n for n, p in model.named_parameters() if p.numel() and torch.equal(p, before[n])]
    assert not still


@pytest.mark.parametrize(
    "others",
    [torch.optim.Adam, partial(torch.optim.SGD, lr=0.01, momentum=0.9), torch.optim.Adagrad],
    ids=["adam", "sgd", "adagrad"],
)
def test_a_resumed_run_ends_in_the_same_bits(others, tmp_path):
    def begin():
        torch.manual_seed(0)
        model = network()
        optimizer = optimizer_of(model, others=others)
        return model, optimizer, ExponentialLR(optimizer, 0.9)

    whole, optimizer, scheduler = begin()
    run(whole, optimizer, 8, scheduler)
    part, optimizer, scheduler = begin()
    run(part, optimizer, 4, scheduler)
    states = part.state_dict(), optimizer.state_dict(), scheduler.state_dict()
    torch.save(states, tmp_path / "state.pt")
    weights, own, rates = torch.load(tmp_path / "state.pt", weights_only=True)
    again, optimizer, scheduler = begin()
    run(again, optimizer, 1)
    again.load_state_dict(weights)
    optimizer.load_state_dict(own)
    scheduler.load_state_dict(rates)
    run(again, optimizer, 4, scheduler, first=4)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx(
        [0.1 * 0.9**8, 0.1 * 0.9**8, optimizer.param_groups[2]["initial_lr"] * 0.9**8]
    )


def test_accumulated_gradients_are_those_of_the_whole_batch():
    x, y = batch(0)
    models = [network() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [optimizer_of(model) for model in models]
    for model, parts in zip(models, (1, 4), strict=True):
        with lb.using(model, lb.estimators.mean):
            for part in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (loss_of(model, *part) / parts).backward()
    for optimizer in optimizers:
        optimizer.step()
    for one, four in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, four, rtol=1e-9, atol=1e-9)


def test_a_closure_is_called_once_and_its_loss_returned():
    model, calls = network(), []
    optimizer = optimizer_of(model)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, *batch(0))
        loss.backward()
        calls.append(loss.item())
        return loss

    before = model[0].posterior.loc.detach().clone()
    assert optimizer.step(closure).item() == calls[0]
    assert len(calls) == 1
    assert not torch.equal(model[0].posterior.loc, before)


def test_a_copy_of_model_and_optimizer_trains_alike_and_apart():
    model = network()
    optimizer = optimizer_of(model)
    run(model, optimizer, 2)
    other, same = copy.deepcopy((model, optimizer))
    run(model, optimizer, 3, first=2)
    run(other, same, 3, first=2)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert one is not two


def test_half_precision_is_stepped_in_single():
    torch.manual_seed(0)
    exact = network(dtype=torch.float32)
    half = copy.deepcopy(exact).bfloat16()
    for model in (exact, half):
        for name, p in model.named_parameters():
            torch.manual_seed(len(name))
            p.grad = torch.randn(p.shape, dtype=torch.float32).mul_(1e-3).to(p.dtype)
        optimizer_of(model, others=torch.optim.SGD).step()
    for one, two in zip(exact.parameters(), half.parameters(), strict=True):
        torch.testing.assert_close(one, two.float(), rtol=0.02, atol=0.02)


def test_frozen_and_unused_parameters_stay():
    model = network(lb.MeanField(0.05))
    model[0].posterior.loc.requires_grad_(False)
    model[3].posterior.scale.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    run(model, optimizer_of(model), 2)
    still = [name for name, value in model.state_dict().items() if torch.equal(value, before[name])]
    assert still == ["0.posterior.loc", "3.posterior.scale"]
    optimizer_of(network()).step()


def test_pruned_weights_stay_where_they_are():
    layer = layer_of(lb.posteriors.Pruned(lb.MeanField(0.4)), 3, 2)
    layer.posterior.mask[0] = False
    before = layer.posterior.loc.detach().clone()
    loss = layer.posterior().mean.square().sum() + layer.kl()
    loss.backward()
    NaturalGradient(layer, data_size=1, lr=0.1).step()
    assert torch.equal(layer.posterior.loc[0], before[0])
    assert (layer.posterior.loc[1:] != before[1:]).all()


@pytest.mark.parametrize("name", REFUSED)
def test_a_posterior_that_is_not_served_is_named_with_a_remedy(name):
    prior = lb.priors.Normal(1.0, loc=1.0) if name == "rank1" else lb.priors.Normal(1.0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    overrides = {"2": {"posterior": REFUSED[name], "prior": prior}}
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0), overrides=overrides)
    with pytest.raises(ValueError, match=r"layer '2' has the posterior .*exclude=\('2',\)"):
        NaturalGradient(model, data_size=10)
    optimizer = NaturalGradient(model, data_size=10, exclude=("2",))
    given = {p for group in optimizer.param_groups[2:] for p in group["params"]}
    assert {*model[2].parameters(), model[0].bias} == given


def test_point_estimates_go_to_the_other_optimizer():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    overrides = {"1": {"posterior": lb.posteriors.Point()}}
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0), overrides=overrides)
    optimizer = NaturalGradient(model, data_size=10)
    assert model[1].posterior.loc in set(optimizer.param_groups[2]["params"])


def test_groups_keep_their_settings_and_lose_what_moves_naturally():
    model, noise = network(), nn.Parameter(torch.zeros(()))
    groups = [
        {"role": "model", "params": list(model.parameters()), "lr": 0.5, "weight_decay": 0.1},
        {"role": "means", "params": [model[0].posterior.loc], "lr": 0.6},
        {"role": "likelihood", "params": [noise], "lr": 0.7},
    ]
    optimizer = NaturalGradient(model, groups, data_size=10, scale_lr=0.03)
    assert [(g["role"], g["lr"]) for g in optimizer.param_groups] == [
        ("means", 0.2),
        ("scales", 0.03),
        ("model", 0.5),
        ("likelihood", 0.7),
    ]
    assert optimizer.param_groups[2]["weight_decay"] == 0.1
    count = sum(len(g["params"]) for g in optimizer.param_groups)
    assert count == len(list(model.parameters())) + 1


def test_more_parameters_can_be_added():
    model, more = network(), nn.Parameter(torch.ones(2))
    optimizer = optimizer_of(model)
    optimizer.add_param_group({"params": [more], "lr": 0.01})
    more.grad = torch.ones(2)
    optimizer.step()
    assert (more < 1).all()
    assert len(optimizer.state_dict()["param_groups"]) == 4
    with pytest.raises(ValueError, match="trained already"):
        optimizer.add_param_group({"params": model[0].posterior.loc})
    alone = lb.convert(nn.Linear(2, 2, bias=False), lb.MeanField(), lb.priors.Normal(1.0))
    with pytest.raises(ValueError, match="make a new NaturalGradient"):
        NaturalGradient(alone, data_size=1).add_param_group({"params": [more]})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lr": 0.0}, "lr is 0.0; it must be positive"),
        ({"scale_lr": -1.0}, "scale_lr is -1.0; it must be positive"),
        ({"trust": 0.0}, "trust is 0.0; it must be positive, or math.inf"),
        ({"trust": math.nan}, "trust is nan; it must be positive"),
        ({"mean_trust": -1.0}, "mean_trust is -1.0; it must be positive"),
        ({"data_size": 0}, "data_size is 0; it must be at least 1"),
        ({"others": lambda groups: None}, "others made None; give what makes a torch optimizer"),
        ({"others": torch.optim.LBFGS}, "L-BFGS takes several steps at once"),
        ({"exclude": ("9",)}, "pattern '9' matches no layer"),
        ({"exclude": ("**",)}, "no posterior with a natural gradient"),
    ],
)
def test_wrong_arguments_get_a_sentence(options, sentence):
    model = lb.convert(nn.Linear(2, 2), lb.MeanField(), lb.priors.Normal(1.0))
    with pytest.raises(ValueError, match=sentence):
        NaturalGradient(model, **{"data_size": 10, **options})


def test_a_factor_is_frozen_whole_or_not():
    model = lb.convert(nn.Linear(3, 2), lb.posteriors.MatrixNormal(), lb.priors.Normal(1.0))
    model.posterior.row_factor.requires_grad_(False)
    with pytest.raises(ValueError, match="row_scale and row_factor are one factor"):
        NaturalGradient(model, data_size=10)
    with pytest.raises(ValueError, match="no posterior with a natural gradient"):
        NaturalGradient(nn.Linear(2, 2), data_size=10)


@pytest.mark.parametrize("n", [1, 2, 7, 40, 321])
def test_products_of_two_triangles(n):
    a, b = (torch.randn(n, n, dtype=torch.float64).tril() for _ in range(2))
    assert torch.allclose(lower_lower(a, b), a @ b)
    assert torch.allclose(lower_gram(a, b), (a.mT @ b).tril())
