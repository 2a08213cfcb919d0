"""Seconds to a bound: the −ELBO of held-out digits over the seconds that training took.

All rows train the k-tied paper's network on MNIST under one prior, with one thread, in the peers'
environment. The seconds are those of a processor, and count training steps alone. A peer is
trained as its documentation has it, and once more from our start and by our schedule, so that what
a library costs and what a start is worth can be told apart.

    python -m research bench quality
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import require_count
from leanbayes.estimators import Estimator
from leanbayes.training.parameter_groups import parameter_groups
from research.benchmarks.networks import mlp
from research.benchmarks.peers import PACKAGES, bayesian_torch_layers, environment, torchbnn_layers
from research.measuring.machine import facts
from research.measuring.schedule import Schedule

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "bench" / "quality.json"
PRIOR, START = 0.1, 0.03
"""Standard deviations: of the prior of all rows, which is torchbnn's, and where ours start."""
BATCH, POINTS, PASSES = 1024, 4, 4
"""Images in a step; how often an epoch is measured; draws of the network for a measurement."""


USUAL, LONG = Schedule(lr=1e-3), 30
OURS, SHORT = Schedule(lr=1e-2, scales=5.0, rise=0.5, falls=True), 5
"""How a network is trained as everybody does, and as we do; and for how many epochs."""


class Network(NamedTuple):
    """A Bayesian network that can be trained.

    Attributes:
        model: from images to logits.
        kl: from the prior, summed over all weights.
        groups: of its parameters, for a rate and a multiplier for standard deviations.
    """

    model: nn.Module
    kl: Callable[[], Tensor]
    groups: Callable[[float, float], list[dict[str, Any]]]


def _ours(posterior: lb.posteriors.Posterior, estimator: Estimator, net: nn.Sequential) -> Network:
    model = lb.convert(net, posterior, lb.priors.Normal(PRIOR), estimator)

    def groups(lr: float, scales: float) -> list[dict[str, Any]]:
        return parameter_groups(model, lr, multipliers={"scales": scales})

    return Network(model, lambda: lb.kl(model), groups)


def _torchbnn(start: float | None, net: nn.Sequential) -> Network:
    import torchbnn as bnn

    model = torchbnn_layers(net, PRIOR)
    if start is not None:
        _start_at(model, net, "weight_mu", "bias_mu", "log_sigma", math.log(start))
    kl = bnn.BKLLoss(reduction="sum")
    return Network(model, lambda: kl(model).squeeze(), partial(_groups, model, "log_sigma"))


def _bayesian_torch(start: float | None, net: nn.Sequential) -> Network:
    """Its own KL is an average over weights, which is not the ELBO's; here it is their sum."""
    plain = [layer for layer in net if isinstance(layer, nn.Linear)]
    model = bayesian_torch_layers(net, PRIOR)
    if start is not None:
        rho = math.log(math.expm1(start))
        _start_at(model, plain, "mu_weight", "mu_bias", "rho_", rho)
    layers = [layer for layer in model if hasattr(layer, "rho_weight")]

    def kl() -> Tensor:
        return torch.stack(
            [
                _normal_kl(getattr(layer, f"mu_{name}"), getattr(layer, f"rho_{name}"))
                for layer in layers
                for name in ("weight", "bias")
            ]
        ).sum()

    return Network(model, kl, partial(_groups, model, "rho_"))


def _normal_kl(mean: Tensor, rho: Tensor) -> Tensor:
    deviation = F.softplus(rho)
    ratio = (mean.square() + deviation.square()) / (2 * PRIOR**2)
    return (math.log(PRIOR) - deviation.log() + ratio - 0.5).sum()


def _start_at(
    model: nn.Module, plain: Any, weight: str, bias: str, deviations: str, value: float
) -> None:
    """Means as torch starts a plain network, standard deviations at one number."""
    layers = [layer for layer in model.modules() if hasattr(layer, weight)]
    linear = [layer for layer in plain if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, like in zip(layers, linear, strict=True):
            getattr(layer, weight).copy_(like.weight)
            getattr(layer, bias).copy_(like.bias)
        for name, parameter in model.named_parameters():
            if deviations in name:
                parameter.fill_(value)


def _groups(model: nn.Module, deviations: str, lr: float, scales: float) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    rates = {False: lr, True: lr * scales}
    return [
        {"params": [p for name, p in named if (deviations in name) is are_scales], "lr": rate}
        for are_scales, rate in rates.items()
    ]


class Row(NamedTuple):
    """What is compared: how a network is made of a plain one, how and how long it is trained."""

    build: Callable[[nn.Sequential], Network]
    schedule: Schedule
    epochs: int


ROWS = {
    "k-tied 2": Row(partial(_ours, lb.KTied(2, scale=START), lb.estimators.auto), OURS, SHORT),
    "mean field, one draw per batch": Row(
        partial(_ours, lb.MeanField(START), lb.estimators.weights), OURS, SHORT
    ),
    "torchbnn": Row(partial(_torchbnn, None), USUAL, LONG),
    "bayesian-torch": Row(partial(_bayesian_torch, None), USUAL, LONG),
    "torchbnn, our start and schedule": Row(partial(_torchbnn, START), OURS, SHORT),
    "bayesian-torch, our start and schedule": Row(partial(_bayesian_torch, START), OURS, SHORT),
    "k-tied 2, Adam at 1e-3 alone": Row(
        partial(_ours, lb.KTied(2), lb.estimators.auto), USUAL, LONG
    ),
}
PEERS = ("torchbnn", "bayesian-torch")


def train(
    row: Row,
    data: Mapping[str, Tensor],
    seed: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Return seconds of training, and NLL and KL of an example after them.

    Args:
        row: what is trained.
        data: images ``x`` and labels ``y`` to learn from, ``held_x`` and ``held_y`` to judge by.
        seed: of weights, noise and the order of images.
        clock: tells seconds.
    """
    torch.manual_seed(seed)
    model, kl, groups = row.build(mlp())
    optimizer = torch.optim.Adam(groups(row.schedule.lr, row.schedule.scales))
    rates = [group["lr"] for group in optimizer.param_groups]
    size = len(data["y"])
    steps = row.epochs * -(-size // BATCH)
    every = max(1, steps // (row.epochs * POINTS))
    curve: dict[str, list[float]] = {"seconds": [], "nll": [], "kl": []}
    number, seconds = 0, 0.0
    for _ in range(row.epochs):
        for index in torch.randperm(size).split(BATCH):
            began = clock()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * row.schedule.rate(number / steps)
            nll = F.cross_entropy(model(data["x"][index]), data["y"][index])
            loss = nll + row.schedule.weight(number / steps) * kl() / size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds += clock() - began
            number += 1
            if number % every == 0 or number == steps:
                curve["seconds"].append(round(seconds, 3))
                curve["nll"].append(_nll(model, data))
                curve["kl"].append(float(kl().detach()) / size)
    return curve


@torch.no_grad()
def _nll(model: nn.Module, data: Mapping[str, Tensor]) -> float:
    drawn = [F.cross_entropy(model(data["held_x"]), data["held_y"]) for _ in range(PASSES)]
    return float(torch.stack(drawn).mean())


def seconds_to(curve: Mapping[str, list[float]], bound: float) -> float | None:
    """The seconds after which the −ELBO stays at or below a bound; ``None`` if it never does.

    Example:
        >>> seconds_to({"seconds": [1, 2, 3], "nll": [2, 0.5, 0.6], "kl": [0.1, 0.1, 0.1]}, 0.7)
        2
    """
    found = None
    for seconds, nll, kl in zip(curve["seconds"], curve["nll"], curve["kl"], strict=True):
        if nll + kl > bound:
            found = None
        elif found is None:
            found = seconds
    return found


def _digits() -> dict[str, Tensor]:
    from leanbayes.lab.data import load_dataset  # the peers' environment has no laboratory

    parts = load_dataset("mnist", download=False)
    held = parts.validation
    assert held is not None
    named = {"x": parts.train.x, "held_x": held.x}
    images = {name: part.float().flatten(1) for name, part in named.items()}
    return {**images, "y": parts.train.y, "held_y": held.y}


def measure_quality(seeds: int, out: Path) -> None:
    """Train every row with every seed that the file lacks."""
    # the peers' environment has no laboratory
    from research.publishing.study_file import StudyFile

    require_count("seeds", seeds, 1)
    schedules = {name: {"epochs": row.epochs, **asdict(row.schedule)} for name, row in ROWS.items()}
    settings = {"prior": PRIOR, "start": START, "batch": BATCH, "passes": PASSES}
    file = StudyFile(out, "seconds to a bound", {**settings, "schedules": schedules})
    digits = _digits()
    python = environment(ROOT / ".venv-bench", ROOT / "constraints.txt")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "digits.safetensors"
        save_file(digits, data)
        parts = {
            f"{name}, seed {seed}": partial(_apart, python, name, seed, data)
            for seed in range(seeds)
            for name in ROWS
        }
        file.fill(parts, lambda key, part: _tell(key, part["curve"]))


def _apart(python: Path, name: str, seed: int, data: Path) -> dict[str, Any]:
    """Return one run in a process of the peers' Python, with this leanbayes."""
    path = os.pathsep.join((str(Path(lb.__file__).parents[1]), str(ROOT)))
    command = [str(python), "-W", "ignore", "-m", "research.benchmarks.quality"]
    command += [name, str(seed), str(data)]
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=True, env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    return {"row": name, "seed": seed, **json.loads(done.stdout.splitlines()[-1])}


def _tell(key: str, curve: Mapping[str, list[float]]) -> None:
    nll, kl, seconds = (curve[name][-1] for name in ("nll", "kl", "seconds"))
    print(f"{key}: −ELBO {nll + kl:.3f}, NLL {nll:.3f}, {seconds:.0f} s", flush=True)


def _one(name: str, seed: str, data: str) -> None:
    """Train one row in this process and print its curve."""
    torch.set_num_threads(1)
    curve = train(ROWS[name], load_file(data), int(seed))
    print(json.dumps({"curve": curve, **facts(*(PACKAGES[peer] for peer in PEERS))}))


if __name__ == "__main__":
    _one(*sys.argv[1:])
