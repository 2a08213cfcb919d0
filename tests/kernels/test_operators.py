"""The kernels as operators: what they compute, and that compiled graphs call them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.kernels import EAGER, kernels, mode_of, without_native
from leanbayes.kernels.dispatch import normals

pytestmark = [
    pytest.mark.skipif(not kernels().native, reason=f"no native kernels: {kernels().reason}"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own compiler
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of torch 2.15 in its own opcheck
]

SEED = torch.tensor(7)
PRIOR = torch.tensor(0.1), torch.tensor(0.5)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()
    torch.distributions.Distribution.set_default_validate_args(__debug__)


def leaf(*shape: int) -> torch.Tensor:
    return (0.2 + torch.rand(*shape)).requires_grad_()


def noise(variance: torch.Tensor) -> torch.Tensor:
    return variance.sqrt() * normals(variance.shape, int(SEED))


def k_tied(mean, x, u, v):
    return mean + noise(x.square() @ (u.exp().t() @ v.exp()).square().t())


def kl(loc: torch.Tensor | None, scale: torch.Tensor) -> torch.Tensor:
    means = torch.zeros_like(scale) if loc is None else loc
    q, p = torch.distributions.Normal(means, scale), torch.distributions.Normal(*PRIOR)
    return torch.distributions.kl_divergence(q, p).sum()


CASES = {  # an operator, its arguments, and torch's own formula of those that are differentiated
    "noise": (lambda: (leaf(5, 37),), (SEED,), noise),
    "k_tied_noise": (
        lambda: (leaf(5, 37), leaf(5, 21), leaf(2, 37), leaf(2, 21)),
        (SEED, 0.0),
        k_tied,
    ),
    "k_tied_kl": (
        lambda: (leaf(37, 21), leaf(2, 37), leaf(2, 21)),
        (*PRIOR, -0.7),
        lambda loc, u, v: kl(loc, (u - 0.7).exp().t() @ (v - 0.7).exp()),
    ),
    "scaled_kl": (lambda: (leaf(37, 21), leaf(37, 21)), PRIOR, kl),
}


def operator(name: str):
    return getattr(torch.ops.leanbayes, name).default


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_what_torch_computes(name):
    make, rest, formula = CASES[name]
    leaves = make()
    found = operator(name)(*leaves, *rest)
    found = found if isinstance(found, torch.Tensor) else found[0]
    expected = formula(*leaves)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weights = torch.rand_like(expected)
    gradients = (torch.autograd.grad((y * weights).sum(), leaves) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_keeps_torchs_contract(name):
    make, rest, _ = CASES[name]
    torch.library.opcheck(operator(name), (*make(), *rest))


def test_draws_are_unit_normals_of_a_seed():
    like = torch.zeros(37, 21)
    assert torch.equal(operator("normals")(like, SEED), normals(like.shape, int(SEED)))
    torch.library.opcheck(operator("normals"), (like, SEED))


def test_means_may_be_missing():
    scale = leaf(37, 21)
    found, _ = operator("scaled_kl")(None, scale, *PRIOR)
    torch.testing.assert_close(found, kl(None, scale), rtol=1e-5, atol=1e-4)
    torch.library.opcheck(operator("scaled_kl"), (None, scale, *PRIOR))


@pytest.mark.parametrize("name", ["noise", "k_tied_noise", "k_tied_kl", "scaled_kl"])
def test_transposed_inputs_are_as_good(name):
    make, rest, _ = CASES[name]
    leaves = [t.detach() for t in make()]
    strided = [t.t().contiguous().t() for t in leaves]
    ours, others = (operator(name)(*t, *rest) for t in (leaves, strided))
    torch.testing.assert_close(ours, others)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def operators_of(model: nn.Module) -> set[str]:
    """What the compiled graph of a training step calls of ours."""
    called: set[str] = set()

    def backend(graph, _):
        named = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        called.update(name.split(".")[1] for name in named if name.startswith("leanbayes."))
        return graph

    def loss(x, y):
        return lb.elbo(F.cross_entropy(model(x), y), lb.kl(model), data_size=100).loss

    step = torch.compile(loss, fullgraph=True, backend=backend)
    x = torch.randn(8, 6, dtype=next(model.parameters()).dtype)
    step(x, torch.randint(3, (8,))).backward()
    return called


NORMAL = lb.priors.Normal(0.3)


@pytest.mark.parametrize(
    ("posterior", "estimator", "called"),
    [
        (lb.KTied(2), lb.estimators.auto, {"k_tied_noise", "k_tied_kl"}),
        (
            lb.KTied(2, lb.posteriors.Scale(0.1, stored="softplus")),
            lb.estimators.auto,
            {"k_tied_noise", "k_tied_kl"},
        ),
        (lb.KTied(5), lb.estimators.auto, {"noise"}),
        (lb.KTied(2), lb.estimators.weights, {"normals", "k_tied_kl"}),
        (lb.MeanField(), lb.estimators.local, {"noise", "scaled_kl"}),
        (lb.MeanField(), lb.estimators.weights, {"normals", "scaled_kl"}),
        (lb.posteriors.ZeroMean(), lb.estimators.local, {"noise", "scaled_kl"}),
        (lb.Rank1(1), lb.estimators.auto, set()),
    ],
)
def test_compiled_graphs_call_the_kernels(posterior, estimator, called):
    prior = lb.priors.Normal(0.3, loc=1.0) if isinstance(posterior, lb.Rank1) else NORMAL
    model = lb.convert(network(), posterior, prior, estimator)
    assert operators_of(model) == called


def test_graphs_have_torchs_own_operations_without_them():
    model = lb.convert(network(), lb.KTied(2), NORMAL)
    with without_native():
        assert operators_of(model) == set()


@pytest.mark.parametrize(
    ("dtype", "called"),
    [(torch.float64, set()), (torch.bfloat16, {"k_tied_noise", "k_tied_kl"})],
)
def test_kernels_compute_in_float32_alone(dtype, called):
    """Noise of halves is computed in float32, and that of doubles by torch."""
    model = lb.convert(network(), lb.KTied(2), NORMAL).to(dtype)
    assert operators_of(model) == called


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_need_no_library(strict):
    model = lb.convert(network(), lb.KTied(2), NORMAL)
    program = torch.export.export(model, (torch.randn(8, 6),), strict=strict)
    assert not [node for node in program.graph.nodes if "leanbayes" in str(node.target)]


def test_a_map_over_examples_compiles():
    model = lb.convert(network(), lb.KTied(2), NORMAL)

    @torch.compile(fullgraph=True)
    def mapped(x):
        return torch.func.vmap(lambda rows: model(rows), randomness="different")(x)

    assert mapped(torch.randn(4, 2, 6)).shape == (4, 2, 3)


def test_outside_of_a_compiler_kernels_run_at_once():
    assert mode_of(torch.zeros(2)) == EAGER


def test_layers_and_calls_draw_noise_of_their_own():
    model = lb.convert(nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)]), lb.KTied(2, 1.0), NORMAL)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("loc", "bias")):
                parameter.zero_()
        model[1].posterior.load_state_dict(model[0].posterior.state_dict())
    x = torch.ones(8, 6)
    both = torch.compile(lambda: (model[0](x), model[1](x)), fullgraph=True)
    torch.manual_seed(0)
    one, other = both()
    assert not torch.equal(one, other)
    assert not torch.equal(both()[0], one)
    torch.manual_seed(0)
    assert torch.equal(both()[0], one)
    torch.testing.assert_close(
        torch.stack([both()[0] for _ in range(400)]).var(0).mean(),
        (model[0].posterior().variance.sum(1)).mean(),
        rtol=0.1,
        atol=0.0,
    )
