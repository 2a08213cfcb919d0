"""A model runs compiled as one graph, exported, and in mixed precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from registry import POSTERIORS, suitable_prior
from torch import nn
from torch.distributions import Distribution
from torch_layers import LAYERS, POSTERIOR, PRIOR, first

import leanbayes as lb

pytestmark = [  # what torch's own compiler warns about
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()
    Distribution.set_default_validate_args(__debug__)  # the compiler switches it off for good


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(8, 6)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    return net, torch.randn(8, 1, 4, 4)


def training_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return lb.elbo(F.cross_entropy(model(x), y), lb.kl(model), data_size=100).loss


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    return found


def silence(model: nn.Module) -> None:
    """Make the noise too small to matter, without changing what is computed."""
    with torch.no_grad():
        for _, layer in lb.extend.random_maps(model):
            layer.posterior.u.fill_(math.log(1e-4))
            layer.posterior.v.fill_(math.log(1e-4))


@pytest.mark.parametrize("build", [mlp, cnn])
def test_training_compiles_to_one_graph(build):
    net, x = build()
    model, y = lb.convert(net, lb.KTied(2), lb.priors.Normal(0.2)), torch.randint(3, (8,))
    compiled = torch.compile(lambda x, y: training_loss(model, x, y), fullgraph=True)
    assert compiled(x, y) != compiled(x, y)  # noise is drawn anew, not baked in
    silence(model)
    loss = compiled(x, y)
    loss.backward()
    found = gradients(model)
    with lb.using(model, lb.estimators.mean):
        expected = training_loss(model, x, y)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("build", [mlp, cnn])
def test_prediction_compiles_to_one_graph(build):
    net, x = build()
    model = lb.convert(net, lb.KTied(2), lb.priors.Normal(0.2))
    compiled = torch.compile(model, fullgraph=True)
    p = lb.predict(compiled, x, samples=5)
    assert p.samples.shape == (5, 8, 3)
    assert p.samples.std(0).max() > 0
    silence(model)
    quiet = lb.predict(compiled, x, samples=2).samples
    torch.testing.assert_close(quiet, net(x).detach().expand(2, 8, 3), rtol=1e-4, atol=1e-5)


FAMILIES = [
    "point",
    "mean_field",
    "mean_field_softplus",
    "matrix_normal",
    "matrix_normal_low_rank",
    "matrix_normal_plus_diagonal",
    "zero_mean",
    "zero_mean_uniform",
    "dropout_neuron",
    "rank1_normal",
    "rank1_cauchy",
]


@pytest.mark.usefixtures("torch_noise")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_compiles_to_one_graph(name):
    recipe = POSTERIORS[name]
    model = lb.convert(nn.Linear(3, 2), recipe, suitable_prior(recipe))
    x = torch.randn(6, 3)

    def loss(x):
        return model(x).square().mean() + lb.kl(model)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    value = compiled(x)
    value.backward()
    found = gradients(model)
    torch.manual_seed(0)
    loss(x).backward()
    for parameter, gradient in gradients(model).items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-5)
    assert (compiled(x) != value) == (name != "point")


@pytest.mark.usefixtures("torch_noise")
@pytest.mark.parametrize("name", ["embedding", "conv_transpose2d", "lstm", "attention"])
def test_every_kind_of_layer_compiles_to_one_graph(name):
    model = lb.convert(LAYERS[name].module(), POSTERIOR, PRIOR)
    x = LAYERS[name].input()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.manual_seed(0)
    y = first(compiled(*x))
    torch.manual_seed(0)
    torch.testing.assert_close(y, first(model(*x)))
    assert not torch.equal(first(compiled(*x)), y)


@pytest.mark.parametrize("name", ["linear", "conv2d", "embedding"])
def test_a_model_can_be_exported(name):
    net, x = LAYERS[name].module(), LAYERS[name].input()
    model = lb.convert(net, lb.KTied(2), PRIOR)
    with lb.using(model, lb.estimators.mean):
        exported = torch.export.export(model, x)
    torch.testing.assert_close(exported.module()(*x), net(*x))
    assert len(exported.state_dict) == len(model.state_dict())


NETWORKS = {
    "mlp": mlp,
    "cnn": cnn,
    "embedding": lambda: (nn.Embedding(5, 3), torch.randint(5, (6, 4))),
    "gru": lambda: (nn.GRU(3, 4), torch.randn(5, 6, 3)),
    "attention": lambda: (LAYERS["transformer_encoder_layer"].make(), torch.randn(6, 5, 8)),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", [*FAMILIES, "k_tied_2"])
def test_mixed_precision_gives_finite_losses(name, network):
    net, x = NETWORKS[network]()
    recipe = POSTERIORS[name]
    model = lb.convert(net, recipe, suitable_prior(recipe))
    with torch.autocast("cpu", torch.bfloat16):
        y = first(
            model(lb.tile(x, lb.extend.members(model)) if network != "gru" else tiled(x, model))
        )
        loss = y.float().square().mean() + lb.kl(model)
    loss.backward()
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in gradients(model).values())


def tiled(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """The members of a time-first sequence, along its second axis."""
    return torch.cat([x] * lb.extend.members(model), 1)
