"""Train a dense, a convolutional and a recurrent network from several starts, seed by seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import require_count
from leanbayes.lab.provenance import environment_facts
from leanbayes.training.parameter_groups import parameter_groups
from research.data import load_dataset
from research.measuring.schedule import Schedule
from research.publishing.study_file import StudyFile, Tell


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on.

    Args:
        images: of MNIST to learn from.
        held: images to judge by.
        batch: images in a step.
        epochs: of every run, so that all take the same number of steps.
        prior: the standard deviation of all weights.
        points: how often the −ELBO is measured.
        passes: draws of the network for a measurement.
    """

    images: int = 10_000
    held: int = 2_000
    batch: int = 128
    epochs: int = 10
    prior: float = 0.1
    points: int = 20
    passes: int = 4

    def __post_init__(self) -> None:
        for name in ("images", "held", "batch", "epochs", "points", "passes"):
            require_count(name, getattr(self, name), 1)


class Way(NamedTuple):
    """Where standard deviations start, and how the network is trained."""

    start: float
    schedule: Schedule


_USUAL = Schedule(lr=1e-3)
_QUICK = Schedule(lr=1e-2, scales=5.0, rise=0.5, falls=True)
WAYS = {
    "0.01, Adam at 1e-3": Way(0.01, _USUAL),
    "0.1, Adam at 1e-3": Way(0.1, _USUAL),
    "0.01, quick schedule": Way(0.01, _QUICK),
    "0.03, quick schedule": Way(0.03, _QUICK),
    "0.1, quick schedule": Way(0.1, _QUICK),
    "0.03, quick schedule, whole KL": Way(0.03, replace(_QUICK, rise=0.0)),
}


class Rows(nn.Module):
    """An LSTM that reads an image row by row, and a dense layer on its last state."""

    def __init__(self, units: int = 64) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, units, batch_first=True)
        self.head = nn.Linear(units, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x.flatten(1, 2))[0][:, -1])
        return logits


def _mlp() -> nn.Module:
    hidden = (nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, 10))


def _cnn() -> nn.Module:
    first = (nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"dense": _mlp, "convolutional": _cnn, "LSTM": Rows}


def train(
    network: Callable[[], nn.Module],
    way: Way,
    data: Mapping[str, Tensor],
    settings: Settings,
    seed: int,
) -> dict[str, Any]:
    """Return the −ELBO over steps, and accuracy, NLL and KL at the end."""
    torch.manual_seed(seed)
    model = lb.convert(network(), lb.KTied(2, scale=way.start), lb.priors.Normal(settings.prior))
    schedule, size = way.schedule, len(data["y"])
    groups = parameter_groups(model, schedule.lr, multipliers={"scales": schedule.scales})
    optimizer = torch.optim.Adam(groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    orders = [torch.randperm(size).split(settings.batch) for _ in range(settings.epochs)]
    batches = [index for order in orders for index in order]
    every = max(1, len(batches) // settings.points)
    curve: dict[str, list[float]] = {"steps": [], "negative_elbo": []}
    judged: dict[str, float] = {}
    for number, index in enumerate(batches):
        done = number / len(batches)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule.rate(done)
        nll = F.cross_entropy(model(data["x"][index]), data["y"][index])
        parts = lb.elbo(nll, lb.kl(model), data_size=size, weight=schedule.weight(done))
        optimizer.zero_grad()
        parts.loss.backward()
        optimizer.step()
        if (number + 1) % every == 0 or number + 1 == len(batches):
            judged = _judge(model, data, settings.passes)
            curve["steps"].append(number + 1)
            curve["negative_elbo"].append(round(judged["nll"] + judged["kl"], 5))
    return {**curve, **judged}


@torch.no_grad()
def _judge(model: nn.Module, data: Mapping[str, Tensor], passes: int) -> dict[str, float]:
    logits = [model(data["held_x"]) for _ in range(passes)]
    nll = torch.stack([F.cross_entropy(each, data["held_y"]) for each in logits]).mean()
    mean = torch.stack([each.softmax(-1) for each in logits]).mean(0)
    accuracy = (mean.argmax(-1) == data["held_y"]).float().mean()
    kl = lb.kl(model) / len(data["y"])
    return {"nll": float(nll), "kl": float(kl), "accuracy": float(accuracy)}


def _digits(settings: Settings) -> dict[str, Tensor]:
    data = load_dataset("mnist", download=False)
    assert data.validation is not None
    parts = {"": data.train[: settings.images], "held_": data.validation[: settings.held]}
    images = {f"{name}x": part.x.float() for name, part in parts.items()}
    return {**images, **{f"{name}y": part.y for name, part in parts.items()}}


def study_starts(
    settings: Settings, out: str | Path, *, seeds: int = 5, tell: Tell | None = None
) -> dict[str, Any]:
    """Train every network in every way with every seed that the file lacks."""
    require_count("seeds", seeds, 1)
    file = StudyFile(out, "starts", asdict(settings))
    data = _digits(settings)
    parts = {
        f"{network}; {way}; seed {seed}": partial(_part, network, way, data, settings, seed)
        for seed in range(seeds)
        for network in NETWORKS
        for way in WAYS
    }
    return file.fill(parts, tell)


def _part(
    network: str, name: str, data: Mapping[str, Tensor], settings: Settings, seed: int
) -> dict[str, Any]:
    way, began = WAYS[name], time.process_time()
    found = train(NETWORKS[network], way, data, settings, seed)
    spent = round(time.process_time() - began, 2)
    part = {"network": network, "way": name, "start": way.start, "seed": seed}
    return {**part, **asdict(way.schedule), **found, "duration": spent, **environment_facts()}
