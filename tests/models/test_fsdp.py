"""Training with sharded parameters (FSDP2) on two processes equals training with one."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

import leanbayes as lb
from research.measuring.processes import together

PROCESSES = 2
WAYS = ("whole", "layers")


def build() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The same model and data in every process."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    ).double()
    model = lb.convert(net, lb.KTied(2), lb.priors.Normal(0.5))
    return model, torch.randn(8, 6, dtype=torch.float64), torch.randint(4, (8,))


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    outputs, kl = model(x), lb.kl(model)
    lb.elbo(F.cross_entropy(outputs, y), kl, data_size=50).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return kl.detach()


def shard(model: nn.Module, way: str) -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for _, layer in lb.extend.random_maps(model) if way == "layers" else ():
        fully_shard(layer, mesh=mesh)
        register_fsdp_forward_method(layer, "kl")
    fully_shard(model, mesh=mesh)


def work(rank: int, folder: str) -> None:
    state = {}
    for way in WAYS:
        model, x, y = build()
        shard(model, way)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        half = slice(rank * 4, rank * 4 + 4)
        with lb.using(model, lb.estimators.mean):
            state[f"{way} kl"] = step(model, x[half], y[half])
        state |= {f"{way} quiet {n}": p.full_tensor() for n, p in model.named_parameters()}
        torch.manual_seed(rank)  # separate noise
        step(model, x[half], y[half])
        state |= {f"{way} noisy {n}": p.full_tensor() for n, p in model.named_parameters()}
    save_file({n: t.detach().clone() for n, t in state.items()}, f"{folder}/{rank}.safetensors")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    together(work, str(folder))
    return [load_file(folder / f"{rank}.safetensors") for rank in range(PROCESSES)]


@pytest.mark.parametrize("way", WAYS)
def test_a_sharded_step_equals_that_of_one_process(states, way):
    model, x, y = build()
    with lb.using(model, lb.estimators.mean):
        kl = step(model, x, y)
    for state in states:
        torch.testing.assert_close(state[f"{way} kl"], kl)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(state[f"{way} quiet {name}"], parameter.detach())


@pytest.mark.parametrize("way", WAYS)
def test_a_sharded_step_with_noise_moves_every_parameter(states, way):
    first, second = states
    noisy = [name for name in first if name.startswith(f"{way} noisy")]
    assert noisy
    for name in noisy:
        assert first[name].isfinite().all()
        assert torch.equal(first[name], second[name])
        assert not torch.equal(first[name], first[name.replace("noisy", "quiet")])
