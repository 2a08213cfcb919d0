"""Rank-one factors [rank-1] against weights ``W ∘ r sᵀ`` written out; the losses over samples."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import Tensor, nn
from torch import distributions as td

import leanbayes as lb
from leanbayes.distributions import Rank1Mixture
from leanbayes.kernels import NormalFactor
from leanbayes.kernels.rank1 import TableMap
from leanbayes.ops import Linear, Usage
from leanbayes.testing import FAILURE_RATE, assert_mean
from research.papers.rank1.losses import mean_logits_nll, mean_probs_nll

MEMBERS, BATCH = 3, 6
RECIPE = lb.Rank1(MEMBERS, rate=0.1)
LAYERS = {
    "dense": (lambda: nn.Linear(3, 4), (BATCH, 3)),
    "dense_sequence": (lambda: nn.Linear(3, 4), (BATCH, 2, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, dilation=2), (BATCH, 2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, (3, 2), stride=2, padding=1), (BATCH, 2, 5, 4)),
    "conv2d_grouped": (lambda: nn.Conv2d(4, 6, 2, groups=2), (BATCH, 4, 3, 3)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(2, 4, 2, stride=2), (BATCH, 2, 3, 3)),
    "embedding": (lambda: nn.Embedding(5, 4), (BATCH, 2)),
}
over_estimators = pytest.mark.parametrize(
    "estimator",
    [lb.estimators.mean, lb.estimators.weights, lb.estimators.local, lb.estimators.auto],
)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, torch.as_tensor(b), rtol=tolerance, atol=tolerance)


def recording(estimator, drawn: list):
    def record(q, op, usage):
        drawn.append(estimator(q, op, usage))
        return drawn[-1]

    return record


def per_example(factor: Tensor | NormalFactor) -> Tensor:
    """The factor that each example meets: its own, or that of its member's block."""
    if isinstance(factor, NormalFactor):
        factor = factor.rows()
    return factor.repeat_interleave(BATCH // len(factor), 0)


def written_out(layer: nn.Module, r: Tensor, s: Tensor, bias: Tensor | None = None) -> nn.Module:
    """The torch layer itself, with weight ``W ∘ r sᵀ``."""
    layer = copy.deepcopy(layer)
    groups = getattr(layer, "groups", 1)
    rs = r[:, None] * s.reshape(groups, -1).repeat_interleave(len(r) // groups, 0)
    if isinstance(layer, nn.ConvTranspose2d | nn.Embedding):
        rs = rs.mT
    weight = layer.weight.data
    weight.mul_(rs.reshape(*rs.shape, *(1,) * (weight.ndim - 2)))
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


# equation 1


@pytest.mark.checklist("R1")
@over_estimators
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_acts_as_the_weight_written_out(name, estimator):
    make, shape = LAYERS[name]
    layer, drawn = make(), []
    x = torch.randint(5, shape) if name == "embedding" else torch.randn(shape)
    model = lb.convert(layer, RECIPE, lb.priors.Flat(), recording(estimator, drawn))
    biases = [None] * BATCH
    if model.bias is not None:
        nn.init.normal_(model.bias)
        biases = per_example(model.bias.detach())
    y = model(x)
    s = drawn[0].s
    if isinstance(drawn[0], TableMap):  # it draws the factors of the entries it is asked for
        s = drawn[0].of_entries(s, torch.arange(5).expand(BATCH, 5))
    rs = zip(per_example(drawn[0].r), per_example(s), biases, strict=True)
    for n, (r, s, bias) in enumerate(rs):
        close(y[n], written_out(layer, r, s, bias)(x[n : n + 1])[0])


@pytest.mark.checklist("R1")
@pytest.mark.parametrize("name", LAYERS)
def test_drawn_weights_are_the_weight_written_out(name):
    layer = LAYERS[name][0]()
    model = lb.convert(layer, replace(RECIPE, factors="fixed"), lb.priors.Flat())
    q = model.posterior()
    for weight in (model.mean_weight, *model.op.unmatrix(q.rsample((2,)))):
        explicit = [written_out(layer, r, s).weight for r, s in zip(q.r, q.s, strict=True)]
        close(weight, torch.stack(explicit))


@pytest.mark.checklist("R1")
@over_estimators
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_network_acts_as_the_weights_written_out(kind, estimator):
    """One pair of factors a sequence, for the input and for the recurrent matrix of each layer."""
    network = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    drawn, x = [], torch.randn(BATCH, 5, 3)
    model = lb.convert(network, RECIPE, lb.priors.Flat(), recording(estimator, drawn))
    for name, bias in model.named_parameters(recurse=False):
        assert bias.shape == (MEMBERS, *getattr(network, name).shape)
        nn.init.normal_(bias)
    y, state = model(x)
    for n in range(BATCH):
        explicit = copy.deepcopy(network)
        for name, one in zip(model.maps, drawn, strict=True):
            r, s = per_example(one.r)[n], per_example(one.s)[n]
            explicit.get_parameter(name).data.mul_(torch.outer(r, s))
        for name, bias in model.named_parameters(recurse=False):
            explicit.get_parameter(name).data.copy_(per_example(bias)[n])
        expected, expected_state = explicit(x[n : n + 1])
        close(y[n], expected[0])
        final, wanted = (torch.cat(s) if kind is nn.LSTM else s for s in (state, expected_state))
        close(final[:, n], wanted[:, 0])


# factors of its own for every example; a batch tiled for the members


@pytest.mark.checklist("R2")
@pytest.mark.parametrize("name", ["dense", "conv2d", "conv_transpose2d"])
def test_every_example_has_factors_of_its_own(name):
    make, shape = LAYERS[name]
    model = lb.convert(make(), lb.Rank1(MEMBERS, rate=0.3), lb.priors.Normal(0.1, loc=1.0))
    y = model(torch.randn(shape)[:1].expand(shape)).flatten(1)
    assert len(y.unique(dim=0)) == BATCH
    with lb.using(model, lb.estimators.weights):
        y = model(torch.randn(shape)[:1].expand(shape)).flatten(1)
    assert len(y.unique(dim=0)) == MEMBERS
    close(y[::2], y[1::2])


@pytest.mark.checklist("R2")
def test_examples_of_a_member_are_independent_and_each_has_the_law_of_random_weights():
    q = lb.Rank1(1, rate=0.3)(torch.randn(2, 3), Linear())()
    x, samples = torch.randn(3), 20_000
    by_weights = q.rsample((samples,)).detach() @ x
    local = q.local_map(Linear(), 2 * samples)(x.expand(2 * samples, 3)).detach()
    mean = (q.r.mean * F.linear(x * q.s.mean, q.weight))[0].detach()
    first, second = (local - mean).unflatten(0, (samples, 2)).unbind(1)
    assert_mean(first, 0.0, "mean of local outputs")
    assert_mean(by_weights - mean, 0.0, "mean of outputs of drawn weights")
    local, shared = (y[:, :, None] * y[:, None, :] for y in (first, by_weights - mean))
    assert_mean(local - shared, 0.0, "covariance of outputs")
    assert_mean(first * second, 0.0, "covariance of two examples")


@pytest.mark.checklist("R2")
def test_a_tiled_batch_meets_every_member_in_turn():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = lb.convert(net, lb.Rank1(MEMBERS, "fixed", signs=0.5), lb.priors.Flat())
    x = torch.randn(2, 3)
    blocks = model(lb.tile(x, lb.extend.members(model))).unflatten(0, (MEMBERS, 2))
    for k in range(MEMBERS):
        q = [model[i].posterior() for i in (0, 2)]
        w = [layer.weight * torch.outer(layer.r[k], layer.s[k]) for layer in q]
        hidden = F.linear(x, w[0], net[0].bias).tanh()
        close(blocks[k], F.linear(hidden, w[1], net[2].bias))
    close(lb.predict(model, x, samples=1).samples, blocks.detach())
    with pytest.raises(ValueError, match=r"batch 2 is not a multiple of 3 members; call tile"):
        model(x)


# kinds of factors and their KL


SCIPY = {
    "normal": stats.norm,
    "cauchy": stats.cauchy,
    "lognormal": lambda loc, scale: stats.lognorm(scale, scale=math.exp(loc)),
    "halfcauchy": lambda loc, scale: stats.halfcauchy(scale=scale),
}
PRIORS = {
    "normal": lb.priors.Normal(0.5, loc=1.0),
    "cauchy": lb.priors.Cauchy(0.5, loc=1.0),
    "lognormal": lb.priors.LogNormal(0.5, loc=1.0),
    "halfcauchy": lb.priors.HalfCauchy(0.5),
}


def quadrature_kl(q, p) -> float:
    """``E_q log(q/p)`` as an integral over the quantiles of ``q``."""

    def integrand(u):
        return q.logpdf(q.ppf(u)) - p.logpdf(q.ppf(u))

    return integrate.quad(integrand, 0, 1, limit=500)[0]


def sum_of_factor_kls(learned: lb.extend.Learned, kind: str, prior: str) -> float:
    q, p = learned(), SCIPY[prior](1.0, 0.5)
    numbers = []
    for factor in (q.r, q.s):
        loc = torch.zeros_like(factor.scale) if kind == "halfcauchy" else factor.loc
        numbers += zip(loc.flatten().tolist(), factor.scale.flatten().tolist(), strict=True)
    return sum(quadrature_kl(SCIPY[kind](*pair), p) for pair in numbers)


@pytest.mark.checklist("R3")
@pytest.mark.parametrize("kind", SCIPY)
def test_random_factors_have_the_kl_of_their_kind(kind):
    weight = torch.randn(2, 1)
    learned = lb.Rank1(2, kind, rate=0.2, kl="sum")(weight, Linear())
    shapes = {"r_loc": (2, 2), "r_scale": (2, 2), "s_loc": (2, 1), "s_scale": (2, 1)}
    names = [name for name in shapes if kind != "halfcauchy" or "scale" in name]
    assert {n: p.shape for n, p in learned.named_parameters() if n != "weight"} == {
        n: shapes[n] for n in names
    }
    kl = td.kl_divergence(learned(), PRIORS[kind](weight)())
    close(kl.detach(), sum_of_factor_kls(learned, kind, kind), 1e-6)
    positive = kind in ("lognormal", "halfcauchy")
    assert ((learned().rsample((500,)) / weight).min() > 0) == positive


@pytest.mark.checklist("R3")
@pytest.mark.parametrize(("kind", "prior"), [("normal", "cauchy"), ("lognormal", "halfcauchy")])
def test_factors_of_another_kind_than_their_prior_are_compared_by_sampling(kind, prior):
    learned = lb.Rank1(2, kind, rate=0.2, kl="sum")(torch.randn(2, 1), Linear())
    q, p = learned(), PRIORS[prior](torch.zeros(2, 1))()
    drawn = torch.stack([td.kl_divergence(q, p) for _ in range(1000)]).detach()
    assert_mean(drawn, sum_of_factor_kls(learned, kind, prior), f"KL of {kind} from {prior}")


@pytest.mark.checklist("R3")
def test_fixed_factors_are_batch_ensemble():
    layer, x = nn.Linear(3, 4), torch.randn(BATCH, 3)
    model = lb.convert(layer, lb.Rank1(MEMBERS, "fixed", signs=0.5), lb.priors.Flat())
    q = model.posterior()
    r, s = per_example(q.r), per_example(q.s)
    close(model(x), ((x * s) @ layer.weight.mT) * r + layer.bias)
    assert lb.kl(model) == 0
    map_penalty = -td.Normal(1.0, 0.5).log_prob(torch.cat([q.r, q.s], 1)).sum() / MEMBERS
    close(td.kl_divergence(q, td.Normal(torch.tensor(1.0), torch.tensor(0.5))), map_penalty)


@pytest.mark.checklist("R3")
def test_normal_factors_without_spread_are_batch_ensemble():
    x, weight = torch.randn(BATCH, 3), torch.randn(4, 3)
    r, s = torch.randn(MEMBERS, 4), torch.randn(MEMBERS, 3)
    narrow = Rank1Mixture(weight, td.Normal(r, 1e-12), td.Normal(s, 1e-12))
    expected = ((x * per_example(s)) @ weight.mT) * per_example(r)
    for estimator in (lb.estimators.mean, lb.estimators.weights, lb.estimators.local):
        drawn = estimator(narrow, Linear(), Usage(BATCH, reused=False))
        close(drawn(x), expected, 1e-9)


@pytest.mark.checklist("R3")
@pytest.mark.parametrize(("r", "s"), [("normal", "none"), ("none", "normal"), ("none", "none")])
def test_factors_on_one_side_leave_the_other_alone(r, s):
    q = lb.Rank1(1, (r, s), rate=0.2)(torch.randn(4, 3), Linear())()
    drawn = q.rsample((5,)) / q.weight
    for present, axis in ((r, -2), (s, -1)):
        varies = bool((drawn.std(axis) > 1e-6).any())
        assert varies == (present == "normal")


CAUCHY_PAIRS = [(0.0, 1.0, 0.0, 1.0), (0.3, 0.5, -1.0, 2.0), (5.0, 0.01, 1.0, 0.1)]


@pytest.mark.checklist("R4")
@pytest.mark.parametrize("pair", CAUCHY_PAIRS, ids=str)
def test_cauchy_kl_is_its_closed_form_and_its_integral(pair):
    x0, g0, x1, g1 = (torch.tensor(value) for value in pair)
    q, p = td.Cauchy(x0, g0), td.Cauchy(x1, g1)
    kl = td.kl_divergence(q, p)
    close(kl, (((g0 + g1) ** 2 + (x0 - x1) ** 2) / (4 * g0 * g1)).log())
    close(kl, quadrature_kl(stats.cauchy(*pair[:2]), stats.cauchy(*pair[2:])), 1e-6)
    z = q.sample((50_000,))
    assert_mean(q.log_prob(z) - p.log_prob(z), kl, "Cauchy KL")
    assert (kl == 0) == (pair[:2] == pair[2:])


# first values


@pytest.mark.checklist("R5")
@pytest.mark.parametrize(
    ("rate", "published"), [(1e-3, 0.0316), (1e-6, 1e-3), (0.1, 1 / 3), (0.3, 0.655)]
)
def test_scales_start_at_the_dropout_rate(rate, published):
    weight = torch.zeros(5000, 1)
    heavy = lb.Rank1(1, "cauchy", rate=rate)(weight, Linear()).value("r_scale")
    close(heavy, math.sqrt(rate / (1 - rate)) * torch.ones(1, 5000), 1e-6)
    assert heavy[0, 0].item() == pytest.approx(published, rel=2e-3)
    raw = lb.Rank1(1, rate=rate)(weight, Linear()).get_parameter("r_scale").detach()[0]
    jitter = raw - math.log(math.expm1(math.sqrt(rate / (1 - rate))))
    assert jitter.abs().max() <= 0.2 + 1e-3
    truncated = stats.truncnorm(-2, 2, scale=0.1)
    assert_mean(jitter.square(), truncated.var(), "jitter of the stored scale")


@pytest.mark.checklist("R5")
@pytest.mark.parametrize("shape", [(5000, 1), (1, 5000)], ids=["r", "s"])
@pytest.mark.parametrize("signs", [0.5, 0.75, 1.0, -0.5, -1.0, 0.0])
def test_factors_start_at_random_signs_or_around_one(signs, shape):
    learned = lb.Rank1(2, signs=signs)(torch.zeros(shape), Linear())
    loc = learned.value("r_loc" if shape[0] > 1 else "s_loc").detach().flatten()
    assert len(loc) == 10_000
    if signs > 0:
        assert set(loc.tolist()) <= {-1.0, 1.0}
        assert_mean(loc, 2 * signs - 1, "signs")
    else:
        assert_mean(loc, 1.0, "mean of first factors")
        assert_mean((loc - 1) ** 2, signs**2, "variance of first factors")


# clipping


@pytest.mark.checklist("R6")
@pytest.mark.parametrize("estimator", [lb.estimators.weights, lb.estimators.local])
def test_heavy_tails_are_clipped_at_ten(estimator):
    wide = td.Cauchy(torch.zeros(1, 200), torch.full((1, 200), 30.0).requires_grad_())
    clipped, free = (Rank1Mixture(torch.eye(200), wide, None, clip=c) for c in (10.0, None))
    x, usage = torch.ones(4, 200), Usage(4, reused=False)
    y = estimator(clipped, Linear(), usage)(x)
    assert y.abs().max() == 10
    assert (y.abs() < 10).any()
    assert estimator(free, Linear(), usage)(x).abs().max() > 100
    assert clipped.rsample((10,)).abs().max() == 10
    y.sum().backward()
    assert wide.scale.grad.isfinite().all()
    assert lb.Rank1().clip == 10.0


# the four losses of appendix E

LOSSES = (
    mean_logits_nll,
    mean_probs_nll,
    lb.training.average_nll,
    lb.training.mixture_nll,
)


@pytest.mark.checklist("R7")
def test_losses_are_equations_11_to_14():
    logits, y = 3 * torch.randn(7, 5, 4), torch.randint(4, (5,))
    probs = logits.exp() / logits.exp().sum(-1, keepdim=True)
    of_label = probs[:, torch.arange(5), y]
    of_mean_logits = logits.mean(0).exp() / logits.mean(0).exp().sum(-1, keepdim=True)
    expected = (
        -of_mean_logits[torch.arange(5), y].log().mean(),
        -probs.mean(0)[torch.arange(5), y].log().mean(),
        -of_label.log().mean(),
        -of_label.mean(0).log().mean(),
    )
    for loss, value in zip(LOSSES, expected, strict=True):
        close(loss(logits, y), value)
    close(mean_probs_nll(logits, y), lb.training.mixture_nll(logits, y))
    assert lb.training.mixture_nll(logits, y) < lb.training.average_nll(logits, y)
    same = logits[:1].expand(7, 5, 4)
    for loss in LOSSES:
        close(loss(same, y), F.cross_entropy(logits[0], y))


@pytest.mark.checklist("R7")
def test_averaged_parameters_are_not_the_mixture_in_regression():
    """Two samples at ±3 around the target: their average is right, their mixture is not."""
    outputs, y, likelihood = (
        torch.tensor([[[3.0]], [[-3.0]]]),
        torch.zeros(1, 1),
        lb.likelihoods.Gaussian(1.0),
    )
    normal = td.Normal(0.0, 1.0)
    at_zero, at_three = (-normal.log_prob(torch.tensor(v)) for v in (0.0, 3.0))
    close(mean_logits_nll(outputs, y, likelihood), at_zero)
    close(mean_probs_nll(outputs, y, likelihood), at_zero)
    close(lb.training.average_nll(outputs, y, likelihood), at_three)
    close(lb.training.mixture_nll(outputs, y, likelihood), at_three)
    uneven = torch.tensor([[[0.0]], [[3.0]]])
    mixture = -(0.5 * ((-at_zero).exp() + (-at_three).exp())).log()
    close(lb.training.mixture_nll(uneven, y, likelihood), mixture)
    assert lb.training.mixture_nll(uneven, y, likelihood) < lb.training.average_nll(
        uneven, y, likelihood
    )


@pytest.mark.checklist("R8")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_losses_and_gradients_are_finite_at_logits_of_a_thousand(dtype):
    right, wrong = [1000.0, -1000.0], [-1000.0, 1000.0]
    cases = {
        (0, 0): (0.0, 0.0, 0.0, 0.0),
        (0, 1): (math.log(2), math.log(2), 1000.0, math.log(2)),
        (1, 1): (2000.0, 2000.0, 2000.0, 2000.0),
    }
    for pair, expected in cases.items():
        rows = [[(right, wrong)[k]] for k in pair]
        for loss, value in zip(LOSSES, expected, strict=True):
            logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
            nll = loss(logits, torch.tensor([0]))
            nll.backward()
            assert nll.item() == pytest.approx(value, rel=1e-6)
            assert logits.grad.isfinite().all()


# KL of a mixture


@pytest.mark.checklist("R9")
def test_the_mean_over_members_bounds_the_kl_of_the_mixture():
    """The sum, as in the reference code, is the members times larger."""
    prior = td.Normal(torch.tensor(1.0), torch.tensor(0.5))
    r = td.Normal(torch.tensor([[-1.0], [0.7], [1.2]]), torch.tensor([[0.3], [0.2], [0.4]]))
    average, total = (
        td.kl_divergence(Rank1Mixture(torch.ones(1, 1), r, None, mean_kl=mean), prior)
        for mean in (True, False)
    )
    close(total, td.kl_divergence(r, prior).sum())
    close(average, total / 3)
    z = torch.linspace(-8, 8, 20_001)
    log_q = r.log_prob(z).logsumexp(0) - math.log(3)
    exact = torch.trapezoid(log_q.exp() * (log_q - prior.log_prob(z)), z)
    assert 0 < exact < average - 0.1


@pytest.mark.checklist("R9")
@pytest.mark.parametrize("kl", ["mean", "sum"])
def test_the_prior_of_the_shared_weights_counts_once(kl):
    layer = nn.Linear(3, 4)
    recipes = (
        replace(RECIPE, factors="fixed", signs=0.0, kl=kl, weight_scale=w) for w in (None, 0.5)
    )
    plain, penalized = (lb.convert(layer, recipe, lb.priors.Cauchy(1.0)) for recipe in recipes)
    close(lb.kl(penalized) - lb.kl(plain), -td.Normal(0.0, 0.5).log_prob(layer.weight).sum())


# theorem 1


@pytest.mark.checklist("R10")
def test_multiplicative_noise_in_s_fluctuates_as_noise_in_the_weights():
    """With ``E ΔW_ij ΔW_kl = W_ij Σ_jl W_kl`` (indices j, l; the paper prints j, k)."""
    width, depth = 3, 3
    weights = [torch.randn(width, width) for _ in range(depth)]
    x, a = torch.randn(width), torch.randn(width)
    root = torch.randn(width, width)
    sigma = root @ root.mT

    def score(changed: int, act) -> Tensor:
        h = x
        for layer, w in enumerate(weights):
            h = torch.tanh(act(h) if layer == changed else w @ h)
        return a @ h

    full_rank, rank_one, misprinted = 0.0, 0.0, 0.0
    for layer, w in enumerate(weights):

        def in_weights(v, layer=layer):
            return score(layer, lambda h: v @ h)

        def in_s(s, layer=layer, w=w):
            q = Rank1Mixture(w, torch.ones(1, width), s[None])
            return score(layer, lambda h: q.weight_map(Linear())(h[None])[0])

        hessian = torch.autograd.functional.hessian(in_weights, w)
        rank_one += (sigma * torch.autograd.functional.hessian(in_s, torch.ones(width))).sum()
        full_rank += torch.einsum("ijkl,ij,jl,kl->", hessian, w, sigma, w)
        misprinted += torch.einsum("ijkl,ij,jk,kl->", hessian, w, sigma, w)
    close(rank_one, full_rank)
    assert (misprinted - rank_one).abs() > 1e-6


@pytest.mark.checklist("R10")
def test_sampled_factors_have_that_covariance():
    weight, scale = torch.randn(3, 3), 0.1 + 0.2 * torch.rand(1, 3)
    q = Rank1Mixture(weight, torch.ones(1, 3), td.Normal(torch.ones(1, 3), scale))
    change = q.rsample((20_000,)) - weight
    products = change[:, :, :, None, None] * change[:, None, None, :, :]
    sigma = torch.diag(scale[0] ** 2)
    assert_mean(products, torch.einsum("ij,jl,kl->ijkl", weight, sigma, weight), "covariance")


# the priors that factors induce on weights


def induced(r: td.Distribution, s: td.Distribution | None, sigma: float = 0.7) -> Tensor:
    """Draws of one weight ``N(0, σ²) · r s`` [rank-1, eq. 3], each with factors of its own."""
    q = Rank1Mixture(torch.ones(1, 1), r, s, clip=None)
    return (q.rsample((400_000,)) * sigma * torch.randn(400_000, 1, 1)).flatten()


@pytest.mark.checklist("R20")
@pytest.mark.parametrize(
    ("kind", "factor", "scale"), [("normal", td.Normal, 0.3), ("lognormal", td.LogNormal, 0.15)]
)
def test_factors_give_weights_more_kurtosis_than_a_normal(kind, factor, scale):
    one = torch.ones(1, 1)
    w = induced(factor(one, scale * one), factor(one, scale * one))
    second, fourth = (SCIPY[kind](1.0, scale).moment(order) ** 2 for order in (2, 4))
    assert_mean(w**2, 0.7**2 * second, "variance of weights")
    assert_mean(w**4, 3 * 0.7**4 * fourth, "fourth moment of weights")
    assert fourth / second**2 > 1.1


@pytest.mark.checklist("R20")
@pytest.mark.parametrize("tau", [0.1, 1.0])
@pytest.mark.parametrize("kind", [lb.priors.HalfCauchy, lb.priors.Cauchy])
def test_cauchy_factors_give_the_horseshoe(kind, tau):
    """``w | λ ~ N(0, σ²λ²)``, λ half-Cauchy: mass at zero and in the tails at once."""
    w = induced(kind(tau)(torch.ones(1, 1))().expand((1, 1)), None).abs()
    scales = stats.halfcauchy(scale=0.7 * tau)
    for bound in (0.01 * tau, tau, 30 * tau):
        beyond = integrate.quad(lambda u, b=bound: 2 * stats.norm.sf(b / scales.ppf(u)), 0, 1)[0]
        assert_mean((w > bound).double(), beyond, f"mass beyond {bound}")


@pytest.mark.checklist("R20")
def test_inverse_gamma_factors_give_student_t():
    half = torch.full((1, 1), 1.5)
    root = td.transforms.PowerTransform(torch.tensor(0.5))
    w = induced(td.TransformedDistribution(td.InverseGamma(half, half), [root]), None).abs()
    for bound in (0.5, 2.0, 10.0):
        beyond = 2 * stats.t(3, scale=0.7).sf(bound)
        assert_mean((w > bound).double(), beyond, f"mass beyond {bound}")


# the additive variant


@pytest.mark.checklist("R22")
@over_estimators
@pytest.mark.parametrize("name", ["dense", "dense_sequence", "conv2d", "conv_transpose2d"])
def test_additive_factors_shift_inputs_and_outputs(name, estimator):
    make, shape = LAYERS[name]
    layer, x, drawn = make(), torch.randn(shape), []
    recipe = replace(RECIPE, perturb="add")
    model = lb.convert(layer, recipe, lb.priors.Normal(0.1), recording(estimator, drawn))
    y = model(x)
    for n, (r, s) in enumerate(zip(per_example(drawn[0].r), per_example(drawn[0].s), strict=True)):
        spread = (-1,) if "dense" in name else (-1, 1, 1)
        close(y[n], layer((x[n] + s.reshape(spread))[None])[0] + r.reshape(spread))
    q = model.posterior()
    expected = sum(td.kl_divergence(f, td.Normal(0.0, 0.1)).sum() for f in (q.r, q.s)) / MEMBERS
    close(lb.kl(model), expected)


@pytest.mark.checklist("R22")
@pytest.mark.parametrize("padding", [None, 0])
def test_an_embedding_reads_a_shifted_one_hot_vector_and_keeps_its_padding(padding):
    layer, x, drawn = nn.Embedding(5, 4, padding), torch.arange(BATCH)[:, None] % 5, []
    recipe = replace(RECIPE, perturb="add")
    y = lb.convert(layer, recipe, lb.priors.Normal(0.1), recording(lb.estimators.auto, drawn))(x)[
        :, 0
    ]
    expected = (F.one_hot(x[:, 0], 5) + drawn[0].s) @ layer.weight + drawn[0].r
    close(y, expected if padding is None else expected.masked_fill(x == padding, 0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("half", [False, True])
def test_cauchy_factors_have_their_law_and_finite_gradients(half, dtype):
    """By the test of Kolmogorov and Smirnov, which sees a scale that is 5% off."""
    loc, scale = (torch.tensor([[value]], dtype=dtype, requires_grad=True) for value in (1.0, 0.3))
    factor = td.HalfCauchy(scale) if half else td.Cauchy(loc, scale)
    drawn = Rank1Mixture(torch.ones(1, 1, dtype=dtype), factor, None, clip=None).rsample((200_000,))
    sample = drawn.detach().flatten().double().numpy()

    def p_value(width):
        law = stats.halfcauchy(0, width) if half else stats.cauchy(1.0, width)
        return stats.kstest(sample, law.cdf).pvalue

    assert p_value(0.3) > FAILURE_RATE > p_value(1.05 * 0.3)
    assert drawn.isfinite().all()
    drawn.clamp(-10, 10).sum().backward()
    assert scale.grad.isfinite().all()
