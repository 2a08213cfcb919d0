"""Every kernel of the table computes what the formula of its family says."""

import copy
from types import NoneType

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import leanbayes as lb
from leanbayes.distributions import (
    FRESH,
    FreshNoise,
    KTiedNormal,
    LocationScale,
    LogUniformDensity,
    Moments,
    Rank1Mixture,
    RelevanceNormal,
)
from leanbayes.distributions.base import STAND_INS
from leanbayes.distributions.kl import divergence, total_divergence
from leanbayes.kernels import (
    EAGER,
    FORMULA,
    GRAPH,
    Sharing,
    kernel,
    mode_of,
    without_native,
)
from leanbayes.kernels import divergence as kl_kernels
from leanbayes.kernels.dispatch import TABLE
from leanbayes.ops import Conv, ConvTranspose, Linear, Lookup, Usage
from leanbayes.testing.assertions import assert_mean

OUT, IN, DRAWS = 3, 8, 20_000
OTHERS = {
    NoneType: lambda: None,
    Linear: Linear,
    Conv: lambda: Conv((2, 2)),
    ConvTranspose: lambda: ConvTranspose((2, 2)),
    Lookup: Lookup,
    Normal: lambda: Normal(torch.tensor(0.1), torch.tensor(0.5)),
    RelevanceNormal: RelevanceNormal,
    LogUniformDensity: LogUniformDensity,
}


def family(kind, dtype=torch.float32, op=None):
    """A member of a family that has kernels."""
    op = op or Linear()
    torch.manual_seed(0)
    loc, scale = torch.randn(OUT, IN).to(dtype), (0.2 + torch.rand(OUT, IN)).to(dtype)
    if kind is LocationScale:
        return LocationScale(loc, scale)
    if kind is KTiedNormal:
        u, v = (0.3 * torch.randn(2, n) - 0.5 for n in (OUT, IN))
        return KTiedNormal(loc, u.to(dtype), v.to(dtype), log_unit=0.0)
    if kind is Rank1Mixture:
        sizes = OUT, op.input_channels(IN)
        r, s = (Normal(torch.ones(1, n, dtype=dtype), 0.3) for n in sizes)
        return Rank1Mixture(loc, r, s, op)
    assert kind is FreshNoise, f"{kind.__name__} has a kernel; say here how one is made"
    return FRESH


def formula_of(q):
    """The same distribution as a subclass, which has no kernels."""
    twin = copy.copy(q)
    twin.__class__ = type(f"Own{type(q).__name__}", (type(q),), {})
    return twin


def inputs(op, batch):
    if isinstance(op, Lookup):
        return torch.tensor([[6, 1, 6]]).expand(batch, 3)
    shape = {Linear: (IN,), Conv: (2, 3, 3), ConvTranspose: (2, 3, 3)}[type(op)]
    return (0.5 + torch.rand(1, *shape)).expand(batch, *shape)


def keys(question):
    found = [key for key in TABLE if key[0] == question]
    assert found
    ids = [f"{kind.__name__}-{other.__name__}" for _, kind, other in found]
    return pytest.mark.parametrize("key", found, ids=ids)


def assert_same_law(found, expected, what):
    """Means and squares of draws agree with those of other draws."""
    center = expected.mean(0)
    for power in (1, 2):
        mine, theirs = (((y - center) ** power).flatten(1).double() for y in (found, expected))
        difference = mine - theirs
        assert_mean(difference, torch.zeros_like(difference[0]), f"{what} to the power {power}")


def test_questions_are_known_and_every_kernel_has_a_test_here():
    questions = {"draw", "local", "samples", "entries", "kl", "noise"}
    assert {question for question, _, _ in TABLE} == questions
    for _, kind, other in TABLE:
        family(kind)
        OTHERS[other]()


@pytest.mark.usefixtures("branch")
@keys("draw")
def test_draws_have_the_law_of_the_formula(key):
    q = family(key[1])
    found = torch.stack([q.rsample() for _ in range(DRAWS // 4)])
    assert_same_law(found, formula_of(q).rsample((DRAWS // 4,)), "a draw")


@pytest.mark.usefixtures("branch")
@keys("local")
def test_outputs_have_the_law_of_the_formula(key):
    op = OTHERS[key[2]]()
    q, x, bias = family(key[1], op=op), inputs(op, DRAWS), torch.randn(OUT)
    bias = None if key[1] is Rank1Mixture else bias
    found, expected = (
        each.local_map(op, DRAWS)(x) if bias is None else each.local(x, op, bias)
        for each in (q, formula_of(q))
    )
    assert_same_law(found, expected, "an output")


@pytest.mark.usefixtures("branch")
@keys("samples")
def test_samples_of_predictions_have_the_law_of_the_formula(key):
    q, op = family(key[1]), OTHERS[key[2]]()
    samples, bias = DRAWS // 2, torch.randn(OUT)
    x = inputs(op, samples)
    drawn = TABLE[key][EAGER](q, op, x[:2], bias, Sharing(samples, 2, 10))
    found = drawn.unflatten(0, (samples, 2))[:, 0]
    expected = formula_of(q).local(x, op, bias)
    assert_same_law(found, expected, "a sample")


@pytest.mark.usefixtures("branch")
@keys("entries")
def test_entries_have_the_law_of_a_table_that_is_drawn_whole(key):
    q, op, x = family(key[1]), Lookup(), torch.tensor([[6, 1], [1, 6]])
    usage = op.usage(x)
    found = torch.stack([lb.estimators.weights(q, op, usage)(x) for _ in range(DRAWS // 8)])
    whole = formula_of(q).rsample((DRAWS // 8,)).mT
    assert torch.equal(found[:, 0, 0], found[:, 1, 1])  # one draw of an entry for all its uses
    assert_same_law(found[:, 0], whole[:, [6, 1]], "an entry")


@keys("entries")
def test_entries_that_follow_leave_those_that_were_drawn(key):
    q, op, x = family(key[1]), Lookup(padding_index=1), torch.tensor([6, 1])
    drawn = lb.estimators.weights(q, op, op.usage(x))
    first, everything = drawn(x), drawn(torch.arange(IN))
    assert torch.equal(everything[[6, 1]], first)
    assert not first[1].any()
    assert torch.equal(everything, drawn(torch.arange(IN)))
    assert torch.equal(op(x, drawn.weight), first)


@keys("entries")
def test_entries_are_drawn_alone_and_have_the_gradient_of_the_whole_table(key):
    """A table of which few entries are used costs what these cost."""
    q, op, x = family(key[1]), Lookup(), torch.tensor([3, 3, 5])
    loc = q.loc.requires_grad_()
    drawn = lb.estimators.auto(q, op, Usage(None, reused=False, entries=x))
    assert drawn.drawn.numel() == 2 * OUT
    (slope,) = torch.autograd.grad(drawn(x).sum(), loc)
    counts = torch.zeros(IN).index_add_(0, x, torch.ones(3))
    assert torch.equal(slope, counts.expand(OUT, IN))


@pytest.mark.usefixtures("branch")
@keys("kl")
def test_kls_and_their_gradients_are_those_of_the_formula(key):
    q, exact = (family(key[1], dtype) for dtype in (torch.float32, torch.float64))
    zero = isinstance(q, LocationScale) and key[2] is LogUniformDensity
    if zero:
        q, exact = (LocationScale(None, each.scale) for each in (q, exact))
    found = []
    for each, p in ((q, OTHERS[key[2]]()), (formula_of(exact), OTHERS[key[2]]())):
        leaves = [t.requires_grad_() for t in vars(each).values() if isinstance(t, torch.Tensor)]
        total = divergence(each, p) if each is not q else total_divergence([(each, p)])
        grads = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        found.append([total.double(), *(g.double() for g in grads)])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("branch")
def test_noise_of_given_variances():
    law = Moments(torch.randn(1, OUT).expand(DRAWS, OUT), torch.rand(1, OUT).expand(DRAWS, OUT))
    expected = torch.addcmul(law.mean, law.variance.sqrt(), torch.randn(DRAWS, OUT))
    assert_same_law(law.rsample(Linear()), expected, "noise")


@pytest.mark.parametrize("key", [key for key in TABLE if GRAPH in TABLE[key]], ids=str)
def test_a_kernel_of_graphs_has_an_eager_one(key):
    assert EAGER in TABLE[key]


# ---- the look-up


def test_subclasses_are_not_in_the_table():
    class Quiet(KTiedNormal):
        def moments(self, x, op):
            return super().moments(x, op)._replace(variance=None)

    class Free(LocationScale):
        def draw(self, sample_shape=()):
            return self.mean.expand(*sample_shape, *self.event_shape)

    tied, free = family(KTiedNormal), family(LocationScale)
    tied.__class__, free.__class__ = Quiet, Free
    x, p = inputs(Linear(), 5), OTHERS[Normal]()
    assert torch.equal(tied.local(x, Linear()), Linear()(x, tied.loc))
    assert torch.equal(free.rsample(), free.mean)
    expected = divergence(family(KTiedNormal), p)
    torch.testing.assert_close(total_divergence([(tied, p)]), expected, rtol=1e-5, atol=1e-5)


def test_a_registered_kernel_is_used_for_its_exact_family_and_op():
    class Mine(LocationScale):
        pass

    class MyLinear(Linear):
        pass

    q = family(LocationScale)
    q.__class__ = Mine
    x = inputs(Linear(), 5)
    try:

        @kernel("local", Mine, Linear)
        def seven(q, op, x, bias):
            return None if x.ndim == 3 else torch.full((len(x), OUT), 7.0)

        assert (q.local(x, Linear()) == 7).all()
        assert not (q.local(x.unsqueeze(0), Linear()) == 7).any()
        assert not (q.local(x, MyLinear()) == 7).any()
    finally:
        del TABLE["local", Mine, Linear], STAND_INS["local", Mine, Linear]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit.trace
def test_modes():
    t = torch.zeros(2)
    assert mode_of(t, None, 3, "text", nn.Parameter(t)) == EAGER
    assert mode_of(t.to_sparse()) == FORMULA
    assert mode_of(t.as_subclass(type("Own", (torch.Tensor,), {}))) == FORMULA
    modes = []
    torch.func.vmap(lambda x: modes.append(mode_of(x)) or x)(torch.zeros(2, 2))
    torch.jit.trace(lambda x: modes.append(mode_of(x)) or x + 1, t, check_trace=False)
    with torch.autograd.forward_ad.dual_level():
        modes.append(mode_of(t))
    assert set(modes) == {FORMULA}


# ---- the report


def rows(model):
    return {(row.layer, row.question): row for row in lb.kernels(model).rows}


def test_the_report_has_a_row_for_every_random_map_and_question():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Embedding(5, 4))
    overrides = {"1": {"posterior": lb.posteriors.MatrixNormal()}}
    model = lb.convert(net, lb.KTied(2), lb.priors.Normal(0.3), overrides=overrides)
    found = rows(model)
    assert len(found) == 3 * 4
    with without_native():
        torch_rows = rows(model)
    assert {torch_rows["0", q].kernel for q in ("draw", "local", "samples", "kl")} == {"torch"}
    assert torch_rows["0", "kl"].reason == "switched off"
    assert found["1", "kl"].kernel is None
    assert found["1", "kl"].reason == "formula: no kernel for KroneckerNormal"
    assert found["2", "local"].reason == "formula: no kernel for KTiedNormal with Lookup"
    text = str(lb.kernels(model))
    assert text.splitlines()[1].split() == ["layer", "question", "kernel", "reason"]
    assert repr(lb.kernels(model)) == text


@pytest.mark.skipif(not lb.kernels().native, reason=lb.kernels().reason)
def test_the_report_names_native_kernels_and_reasons_against_them():
    model = lb.convert(nn.Linear(3, 4), lb.KTied(2), lb.priors.Normal(0.3))
    assert rows(model)["", "local"].kernel == "native"
    assert rows(model)["", "local"].reason == lb.kernels().reason
    row = rows(model.double())["", "local"]
    assert (row.kernel, row.reason.split(", got ")[1]) == ("torch", "torch.float64 on cpu")
    signs = lb.convert(nn.Linear(3, 4), lb.posteriors.ZeroMean("bernoulli"), lb.priors.Flat())
    assert rows(signs)["", "draw"].reason == "formula: no kernel for bernoulli noise"


@pytest.mark.skipif(not lb.kernels().native, reason="native kernels were not built")
@pytest.mark.parametrize("kind", [KTiedNormal, LocationScale])
def test_the_kl_of_a_table_has_a_native_kernel(kind, monkeypatch):
    """Its means lie in memory as torch stores them, transposed."""
    monkeypatch.setattr(kl_kernels, "squares", None)  # what the kernel of torch's operations calls
    q, p = family(kind), OTHERS[Normal]()
    q.loc = q.loc.t().contiguous().requires_grad_().t()
    total = total_divergence([(q, p)])
    torch.testing.assert_close(total, divergence(formula_of(q), p), rtol=1e-5, atol=1e-5)
    (slope,) = torch.autograd.grad(total, q.loc)
    torch.testing.assert_close(slope, (q.loc - p.loc) / p.scale**2)
