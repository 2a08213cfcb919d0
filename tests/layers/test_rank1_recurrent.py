"""The options of rank-one factors on recurrent layers, one by one; packed sequences of members."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import distributions as td
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import leanbayes as lb
from leanbayes.kernels import NormalFactor
from leanbayes.ops import Usage
from leanbayes.testing import assert_mean
from leanbayes.training.parameter_groups import parameter_groups, parameter_roles

MEMBERS, IN, HIDDEN = 3, 5, 8
PRIOR = lb.priors.Normal(0.1, loc=1.0)
GATES = {nn.LSTM: 4, nn.GRU: 3}
MATRICES = ("weight_ih_l0", "weight_hh_l0")

over_kinds = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])


def convert(kind, posterior=None, prior=PRIOR, sizes=(IN, HIDDEN), **options):
    network = kind(*sizes, batch_first=True, **options).double()
    return lb.convert(network, posterior or lb.Rank1(MEMBERS), prior)


def stored(model, name):
    """Factors or scales of both matrices, in one vector."""
    values = [model.map(m).posterior.value(name).detach().flatten() for m in MATRICES]
    return torch.cat(values)


def drawn(model, batch):
    """The factors that every row of a batch meets, by matrix and side."""
    found = {}
    for name in MATRICES:
        one = model.map(name).draw(Usage(batch, reused=True))
        for side in "rs":
            factor = getattr(one, side)
            found[name, side] = factor.rows() if isinstance(factor, NormalFactor) else factor
    return found


# what the four factors of a cell are, and how they start


@pytest.mark.checklist("R5")
@over_kinds
def test_a_cell_has_factors_for_input_gates_state_and_gates_again(kind):
    """alpha, gamma, recurrent alpha and recurrent gamma of the reference code; a bias a member."""
    model, gates = convert(kind), GATES[kind] * HIDDEN
    shapes = {
        (name, side): tuple(model.map(name).posterior.value(f"{side}_loc").shape)
        for name in MATRICES
        for side in "sr"
    }
    assert shapes == {
        ("weight_ih_l0", "s"): (MEMBERS, IN),
        ("weight_ih_l0", "r"): (MEMBERS, gates),
        ("weight_hh_l0", "s"): (MEMBERS, HIDDEN),
        ("weight_hh_l0", "r"): (MEMBERS, gates),
    }
    assert model.bias_ih_l0.shape == model.bias_hh_l0.shape == (MEMBERS, gates)


@pytest.mark.checklist("R5")
@over_kinds
@pytest.mark.parametrize("signs", [0.5, 0.75, -0.5, 0.0])
def test_factors_start_at_random_signs_or_around_one(kind, signs):
    model = convert(kind, lb.Rank1(MEMBERS, signs=signs), sizes=(300, 300))
    for name in ("r_loc", "s_loc"):
        loc = stored(model, name)
        if signs > 0:
            assert set(loc.tolist()) <= {-1.0, 1.0}
            assert_mean(loc, 2 * signs - 1, "signs")
        else:
            assert_mean(loc, 1.0, "mean of first factors")
            assert_mean((loc - 1) ** 2, signs**2, "variance of first factors")


@pytest.mark.checklist("R5")
@over_kinds
@pytest.mark.parametrize("rate", [1e-3, 5e-7, 0.3])
def test_scales_start_at_the_dropout_rate(kind, rate):
    scale = math.sqrt(rate / (1 - rate))
    heavy = convert(kind, lb.Rank1(MEMBERS, "cauchy", rate=rate), lb.priors.Cauchy(0.1, loc=1.0))
    for side in "rs":
        found = stored(heavy, f"{side}_scale")
        torch.testing.assert_close(found, torch.full_like(found, scale), rtol=1e-6, atol=1e-9)
    normal = convert(kind, lb.Rank1(MEMBERS, rate=rate))
    for name in MATRICES:
        raw = normal.map(name).posterior.get_parameter("r_scale").detach()
        jitter = raw - math.log(math.expm1(scale))
        assert 0 < float(jitter.abs().max()) <= 0.2 + 1e-3


# clipping is a choice


@pytest.mark.checklist("R6")
@over_kinds
@pytest.mark.parametrize("factors", ["normal", "cauchy"])
def test_factors_are_clipped_or_not(kind, factors):
    for clip in (10.0, 2.0, None):
        posterior = lb.Rank1(MEMBERS, factors, rate=0.999, clip=clip)
        found = drawn(convert(kind, posterior, lb.priors.Flat()), 300).values()
        highest = max(float(factor.detach().abs().max()) for factor in found)
        assert highest == clip if clip is not None else highest > 10


@pytest.mark.checklist("R6")
@over_kinds
def test_factors_that_are_not_clipped_saturate_gates_and_leave_all_finite(kind):
    posterior = lb.Rank1(MEMBERS, "cauchy", rate=0.9999, clip=None)
    model = convert(kind, posterior, lb.priors.Cauchy(0.1, loc=1.0))
    y, _ = model(100 * torch.randn(600, 7, IN).double())
    assert y.abs().max() <= 1
    y.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


# the KL, summed or averaged; priors on one side or both, around any mean


def closed_form(posterior, prior_loc, prior_scale):
    """The KL of every factor of a posterior, member by member, added over units.

    Of one that is fixed it is minus the log density of the prior.
    """
    total, names = torch.zeros(MEMBERS, dtype=torch.float64), dict(posterior.named_parameters())
    for loc_name in {"r_loc", "s_loc"} & names.keys():
        loc, scale_name = posterior.value(loc_name), loc_name.replace("loc", "scale")
        p = td.Normal(torch.full_like(loc, prior_loc), prior_scale)
        if scale_name in names:
            q = td.Normal(loc, posterior.value(scale_name))
            total = total + td.kl_divergence(q, p).sum(-1)
        else:
            total = total - p.log_prob(loc).sum(-1)
    return total


@pytest.mark.checklist("R9", "R12")
@over_kinds
@pytest.mark.parametrize(
    "factors", ["normal", ("normal", "none"), ("none", "normal"), ("normal", "fixed")]
)
@pytest.mark.parametrize("loc", [1.0, 0.5, -0.25])
def test_the_kl_is_a_sum_or_a_mean_over_members_of_the_sides_that_are_random(kind, factors, loc):
    for how, share in (("sum", 1.0), ("mean", 1 / MEMBERS)):
        model = convert(kind, lb.Rank1(MEMBERS, factors, kl=how), lb.priors.Normal(0.3, loc=loc))
        members = sum(closed_form(model.map(name).posterior, loc, 0.3) for name in MATRICES)
        torch.testing.assert_close(lb.kl(model), share * members.sum())


@pytest.mark.checklist("R4")
@over_kinds
def test_the_kl_of_cauchy_factors_is_its_closed_form(kind):
    model = convert(kind, lb.Rank1(MEMBERS, "cauchy", kl="sum"), lb.priors.Cauchy(0.2, loc=0.5))
    total = 0.0
    for name in MATRICES:
        value = model.map(name).posterior.value
        for side in "rs":
            x, g = value(f"{side}_loc"), value(f"{side}_scale")
            total += (((g + 0.2) ** 2 + (x - 0.5) ** 2) / (4 * g * 0.2)).log().sum()
    torch.testing.assert_close(lb.kl(model), total)


@pytest.mark.checklist("R9")
@over_kinds
def test_the_prior_of_both_shared_matrices_counts_once(kind):
    """An L2 of 1e-4 that is divided by the data, as in the published records code."""
    scale = 1 / math.sqrt(2e-4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = convert(kind)
        torch.manual_seed(0)
        decayed = convert(kind, lb.Rank1(MEMBERS, weight_scale=scale))
    weights = [decayed.map(name).posterior.value("weight") for name in MATRICES]
    expected = sum(-td.Normal(0.0, scale).log_prob(w).sum() for w in weights)
    torch.testing.assert_close(lb.kl(decayed) - lb.kl(plain), expected)
    (slope,) = torch.autograd.grad(lb.kl(decayed), weights[0])
    torch.testing.assert_close(slope, 2e-4 * weights[0])


@pytest.mark.checklist("R12")
@over_kinds
@pytest.mark.parametrize("side", ["r", "s"])
def test_a_factor_on_one_side_leaves_the_other_alone(kind, side):
    factors = ("normal", "none") if side == "r" else ("none", "normal")
    model = convert(kind, lb.Rank1(MEMBERS, factors, signs=0.5, rate=0.3), lb.priors.Flat())
    for (_, which), factor in drawn(model, 6).items():
        assert (factor is None) == (which != side)
    y, _ = model(torch.ones(6, 4, IN).double())
    assert len(set(map(tuple, y.flatten(1).tolist()))) == 6


# learning rates and decay by role


@pytest.mark.checklist("R17", "R21")
@over_kinds
def test_factors_have_a_rate_of_their_own_and_do_not_decay(kind):
    model = convert(kind, num_layers=2)
    groups = parameter_groups(model, 0.1, multipliers={"factors": 0.575}, weight_decay=2e-4)
    rates = {g["role"]: (g["lr"], g["weight_decay"]) for g in groups}
    assert rates == {
        "means": (0.1, 2e-4),
        "factors": (pytest.approx(0.0575), 0.0),
        "scales": (0.1, 0.0),
        "other": (0.1, 2e-4),
    }
    roles = parameter_roles(model)
    found = {name: roles[parameter] for name, parameter in model.named_parameters()}
    for name, role in found.items():
        last = name.rsplit(".", 1)[-1]
        expected = {"weight": "means", "r_loc": "factors", "s_loc": "factors"}
        expected |= {"r_scale": "scales", "s_scale": "scales"}
        assert role == expected.get(last, "other"), name
    assert sum(role == "factors" for role in found.values()) == 8  # two layers, four factors each
    assert sum(role == "other" for role in found.values()) == 4  # biases


@pytest.mark.checklist("R21")
def test_a_multiplier_of_gradients_does_nothing_under_adam():
    """What the published records code does: Adam's steps do not depend on a gradient's length."""
    ends = []
    for factor in (1.0, 0.575):
        parameter = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = torch.optim.Adam([parameter], 0.1, eps=1e-12)
        for step in range(5):
            parameter.grad = factor * (parameter.detach() + step)
            optimizer.step()
        ends.append(parameter.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-3)


# packed sequences


class Reader(nn.Module):
    """Reads sequences that end with zeros, packed."""

    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(IN, HIDDEN, num_layers=2, batch_first=True, bidirectional=True)
        self.dense = nn.Linear(2 * HIDDEN, 1)

    def forward(self, x):
        lengths = x.any(-1).sum(1)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.dense(y.sum(1)).squeeze(-1)


def ragged(count=5):
    x = torch.randn(count, 6, IN).double()
    for row, length in enumerate([2, 6, 1, 4, 3][:count]):
        x[row, length:] = 0
    return x


@over_kinds
def test_packed_members_are_the_networks_they_stand_for(kind):
    """Fixed factors and members' own biases: every block of a tiled batch is one network."""
    posterior = lb.Rank1(MEMBERS, "fixed", signs=-0.5)
    model, x = lb.convert(Reader(kind).double(), posterior, lb.priors.Flat()), ragged()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    y = model(lb.tile(x, MEMBERS)).unflatten(0, (MEMBERS, -1))
    for member in range(MEMBERS):
        torch.testing.assert_close(y[member], lb.deterministic(model, member=member)(x))
    torch.testing.assert_close(lb.predict(model, x, samples=1).samples, y)


@over_kinds
@pytest.mark.parametrize("factors", ["normal", "cauchy"])
def test_packed_members_draw_what_padded_ones_do(kind, factors):
    """With the same noise a sequence does not see how long the others are."""
    posterior = lb.Rank1(MEMBERS, factors, rate=0.1)
    model, x = lb.convert(Reader(kind).double(), posterior, lb.priors.Flat()), ragged()
    torch.manual_seed(0)
    y = model(lb.tile(x, MEMBERS))
    torch.manual_seed(0)
    longer = model(lb.tile(torch.cat([x, torch.zeros(5, 3, IN).double()], 1), MEMBERS))
    torch.testing.assert_close(y, longer)
    assert (lb.predict(model, x, samples=8).samples.std(0) > 0).all()


@over_kinds
def test_packed_sequences_that_members_do_not_divide_are_told_in_a_sentence(kind):
    model = lb.convert(Reader(kind).double(), lb.Rank1(MEMBERS), PRIOR)
    with pytest.raises(ValueError, match=r"batch 5 is not a multiple of 3 members; call tile"):
        model(ragged())


# heavy tails


@pytest.mark.parametrize("clip", [10.0, None], ids=["clipped", "not_clipped"])
@pytest.mark.parametrize("seed", range(5))
def test_cauchy_factors_of_an_lstm_train_without_nan(seed, clip):
    """Published first scales and prior, at a learning rate that is thirty times too high."""
    torch.manual_seed(seed)
    posterior = lb.Rank1(2, "cauchy", signs=0.5, rate=5e-7, kl="sum", clip=clip)
    net = Reader(nn.LSTM).float()
    model = lb.convert(net, posterior, lb.priors.Cauchy(1e-4, loc=0.5))
    optimizer = torch.optim.Adam(parameter_groups(model, 0.03))
    x = torch.randn(64, 6, IN)
    y = (x.sum((1, 2)) > 0).float()
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        nll = F.binary_cross_entropy_with_logits(model(lb.tile(x, 2)), lb.tile(y, 2))
        loss = lb.elbo(nll, lb.kl(model), data_size=64, weight=min(1.0, step / 30)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.83987)
        optimizer.step()
        losses.append(float(nll.detach()))
    assert all(math.isfinite(loss) for loss in losses)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert min(losses) < 0.9 * losses[0]
    assert lb.predict(model, x, samples=5).probs.isfinite().all()
