"""Lightning on two processes: one KL, separate noise, the gradient of one process."""

import json
import os
import socket
import time
import warnings
from pathlib import Path

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributions import Normal, kl_divergence

import leanbayes as lb
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.train import train
from leanbayes.lightning import BayesianModule, PriorUpdates
from leanbayes.testing import assert_mean

PROCESSES, DATA_SIZE, LR, PRIOR_SCALE = 2, 50, 0.3, 0.5
DRAWS = 400
STANDSTILL = 1e-300
"""A learning rate that changes no weight: every step draws another gradient of the same ones."""


def build(posterior, prior, estimator=lb.estimators.auto):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return lb.convert(net, posterior, prior, estimator)


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, dtype=torch.float64, generator=generator)
    return x, torch.randint(2, (8,), generator=generator)


def quiet():
    return build(lb.MeanField(scale=0.2), lb.priors.Normal(PRIOR_SCALE), lb.estimators.mean)


def noisy():
    return build(lb.KTied(2, scale=0.3), lb.priors.Normal(PRIOR_SCALE))


def relevances():
    return build(lb.MeanField(scale=0.2), lb.priors.GroupARD())


class Watch(L.Callback):
    """Keeps gradients as the optimizer gets them, and what the noise does to one input."""

    def __init__(self):
        self.gradients, self.outputs = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            with torch.no_grad():
                self.outputs.append(pl_module.model(data()[0]))

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.gradients.append(flat([p.grad for p in pl_module.model.parameters()]))


class Repeated:
    """The same batch over and over."""

    def __init__(self, batch, steps):
        self.batch, self.steps = batch, steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        return iter([self.batch] * self.steps)


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def fit(model, rank, *, lr, steps, callbacks=()):
    """Train on this rank's half of the batch."""
    x, y = (part[rank::PROCESSES] for part in data())
    watch = Watch()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy="ddp",
        max_epochs=1,
        callbacks=[watch, *callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
    )
    module = BayesianModule(model, data_size=DATA_SIZE, lr=lr, optimizer=torch.optim.SGD)
    trainer.fit(module, Repeated((x, y), steps))
    return watch


def recipe():
    return check_recipe(
        {
            "name": "digits-two-processes",
            "data": {"name": "digits"},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [16]}},
            "posterior": {"kind": "KTied", "rank": 2},
            "prior": {"kind": "Normal", "scale": 0.3},
            "optimizer": {"lr": 0.02},
            "training": {"epochs": 4, "batch_size": 200},
            "evaluation": {"samples": 5},
        }
    )


def work(rank, folder, port):
    """One process, as torchrun or a cluster would start it."""
    os.environ.update(LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Lightning's hints about data loaders
    model = quiet()
    fit(model, rank, lr=LR, steps=1)
    state = {"quiet": flat(model.parameters())}
    model = noisy()
    watch = fit(model, rank, lr=STANDSTILL, steps=DRAWS)
    state.update(gradients=torch.stack(watch.gradients), outputs=watch.outputs[0])
    state["standstill"] = flat(model.parameters())
    model = noisy()
    fit(model, rank, lr=LR, steps=3)
    state["noisy"] = flat(model.parameters())
    model = relevances()
    fit(model, rank, lr=LR, steps=3, callbacks=[PriorUpdates(every=2)])
    state.update({f"prior.{n}": p.detach() for n, p in model.named_parameters() if "prior" in n})
    save_file({k: v.contiguous() for k, v in state.items()}, f"{folder}/{rank}.safetensors")
    while rank and not Path(f"{folder}/run/recipe.yaml").exists():
        time.sleep(0.01)  # later ranks find a folder that the first one opened
    result = train(recipe(), f"{folder}/run", devices=PROCESSES, progress=False)
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(result, file)
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.start_processes(
        work, (str(folder), port), nprocs=PROCESSES, start_method="fork"
    )
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [load_file(folder / f"{rank}.safetensors") for rank in range(PROCESSES)]


def explicit_step(counts):
    """A step of one process on the whole batch, with the KL counted so often."""
    model = quiet()
    x, y = data()
    loss = F.cross_entropy(model(x), y)
    for layer in (model[0], model[2]):
        q = Normal(layer.posterior().mean, layer.posterior().variance.sqrt())
        loss = loss + counts / DATA_SIZE * kl_divergence(q, Normal(0.0, PRIOR_SCALE)).sum()
    loss.backward()
    return flat([p - LR * p.grad for p in model.parameters()])


def test_the_kl_counts_once_and_the_step_is_that_of_one_process(ranks):
    torch.testing.assert_close(ranks[0]["quiet"], explicit_step(1), rtol=1e-10, atol=1e-12)
    for wrong in (0.5, 2):
        assert not torch.allclose(ranks[0]["quiet"], explicit_step(wrong), rtol=1e-3, atol=1e-3)


def test_the_expected_gradient_is_that_of_one_process(ranks):
    model = noisy()
    x, y = data()
    still = flat(model.parameters()).detach()
    torch.testing.assert_close(ranks[0]["standstill"], still, rtol=0, atol=1e-20)
    alone = []
    for _ in range(DRAWS):
        model.zero_grad()
        lb.elbo(F.cross_entropy(model(x), y), lb.kl(model), data_size=DATA_SIZE).loss.backward()
        alone.append(flat([p.grad for p in model.parameters()]))
    difference = ranks[0]["gradients"] - torch.stack(alone)
    assert_mean(difference, 0.0, "gradient of two processes against one")


def test_every_rank_has_the_same_gradient_from_noise_of_its_own(ranks):
    assert not torch.equal(ranks[0]["outputs"], ranks[1]["outputs"])
    assert torch.equal(ranks[0]["gradients"], ranks[1]["gradients"])
    assert ranks[0]["gradients"].std(0).max() > 1e-3


def test_parameters_agree_after_noisy_steps(ranks):
    assert torch.equal(ranks[0]["noisy"], ranks[1]["noisy"])
    assert not torch.equal(ranks[0]["noisy"], ranks[0]["standstill"])


def test_group_relevances_agree_after_block_updates(ranks):
    names = [name for name in ranks[0] if name.startswith("prior.")]
    assert len(names) == 4
    for name in names:
        assert torch.equal(ranks[0][name], ranks[1][name])
        assert ranks[0][name].abs().max() > 0.1  # they start at zero


def test_a_run_on_two_processes_writes_one_result(folder):
    first, second = (json.loads((folder / f"{r}.json").read_text()) for r in range(PROCESSES))
    assert second == {}
    assert json.loads((folder / "run" / "result.json").read_text()) == first
    assert first["epochs"] == 4
    assert first["metrics"]["accuracy"]["value"] > 0.8
    assert len((folder / "run" / "metrics.csv").read_text().splitlines()) == 5
