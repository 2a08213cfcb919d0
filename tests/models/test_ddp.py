"""Training on two processes: one KL, one set of parameters."""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import leanbayes as lb
from research.measuring.processes import together

PROCESSES, DATA_SIZE = 2, 50


def build() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The same model and data in every process."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    model = lb.convert(net, lb.KTied(2), lb.priors.Normal(0.5, learn="model"))
    return model, torch.randn(8, 3, dtype=torch.float64), torch.randint(2, (8,))


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    kl = lb.kl(model)
    lb.elbo(F.cross_entropy(model(x), y), kl, data_size=DATA_SIZE).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return kl.detach()


def work(rank: int, folder: str) -> None:
    model, x, y = build()
    shared = DistributedDataParallel(model)
    shard = slice(rank * 4, rank * 4 + 4)
    with lb.using(shared, lb.estimators.mean):
        kl = step(shared, x[shard], y[shard])
    state = {f"quiet.{n}": p.detach().clone() for n, p in model.named_parameters()}
    torch.manual_seed(rank)
    state["outputs"] = shared(x).detach().contiguous()
    step(shared, x[shard], y[shard])
    state.update({f"noisy.{n}": p.detach().clone() for n, p in model.named_parameters()})
    save_file({**state, "kl": kl}, f"{folder}/{rank}.safetensors")


def test_a_converted_network_trains_on_two_processes(tmp_path):
    together(work, str(tmp_path))
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(PROCESSES))
    model, x, y = build()
    with lb.using(model, lb.estimators.mean):
        kl = step(model, x, y)
    assert torch.equal(first["kl"], kl)
    for name, parameter in model.named_parameters():  # as one process with the whole batch
        torch.testing.assert_close(first[f"quiet.{name}"], parameter.detach())
    assert not torch.equal(first.pop("outputs"), second.pop("outputs"))  # separate noise
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    moved = [n for n in first if n.startswith("noisy.")]
    assert all(not torch.equal(first[n], first[n.replace("noisy", "quiet")]) for n in moved)
