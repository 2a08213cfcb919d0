"""Train and judge a network for every data set, weight of the KL and seed."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from leanbayes.lab.files import write_json
from leanbayes.lab.provenance import environment_facts
from research.studies import small_tasks
from research.studies.small_tasks import Rows, judge, likelihood_of

WEIGHTS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Settings:
    """How one network is trained and judged.

    Attributes:
        hidden: units of the hidden layer.
        examples: training examples.
        test: test examples.
        steps: of Adam, with a rate that falls along a cosine to zero.
        batch: examples a step.
        lr: the first rate.
        samples: predictive samples.
        seeds: how many networks; of concrete, each has another split.
        warmup: over which share of the steps the weight rises to its value.
    """

    hidden: int
    examples: int
    test: int
    steps: int
    batch: int = 100
    lr: float = 0.01
    samples: int = 50
    seeds: int = 3
    warmup: float = 0.8


def images(name: str, ood: str, seed: int, settings: Settings) -> Rows:
    """Return some images of a data set, other ones for each seed."""
    rows = small_tasks.images(name, ood, "symmetric", seed, settings.examples, settings.test)
    flat = (part.flatten(1) for part in (rows.x, rows.test_x, rows.ood_x))
    return rows._replace(**dict(zip(("x", "test_x", "ood_x"), flat, strict=True)))


def concrete(seed: int, settings: Settings) -> Rows:
    """Return a standard split, or the beginning of it."""
    rows, train, test = small_tasks.concrete(seed), settings.examples, settings.test
    return Rows(
        *(part[:size] for part, size in zip(rows, (train, train, test, test, test), strict=True))
    )


_OF_IMAGES = Settings(100, 5000, 2000, 2000, lr=0.003)
TASKS: dict[str, tuple[Callable[[int, Settings], Rows], Settings]] = {
    "concrete": (concrete, Settings(50, 927, 103, 4000, seeds=5)),
    "mnist": (partial(images, "mnist", "fashion-mnist"), _OF_IMAGES),
    "fashion-mnist": (partial(images, "fashion-mnist", "mnist"), _OF_IMAGES),
}


def network(inputs: int, outputs: int, hidden: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def train(
    rows: Rows, likelihood: lb.likelihoods.Likelihood, settings: Settings, weight: float
) -> tuple[nn.Module, list[dict[str, float]]]:
    """Return a k-tied network with learned prior scales, after Adam on the weighted ELBO."""
    outputs = 1 if rows.y.is_floating_point() else 10
    net = network(rows.x.shape[1], outputs, settings.hidden)
    model = lb.convert(net, lb.KTied(2, 0.02), lb.priors.Normal(0.2, learn="layer"))
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimizer = torch.optim.Adam(parameters, settings.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    history = []
    for step in range(settings.steps):
        now = weight * min(1.0, (step + 1) / (settings.warmup * settings.steps))
        chosen = torch.randint(len(rows.x), (settings.batch,))
        nll = likelihood.nll(model(rows.x[chosen]), rows.y[chosen])
        parts = lb.elbo(nll, lb.kl(model), data_size=len(rows.x), weight=now)
        optimizer.zero_grad()
        parts.loss.backward()
        optimizer.step()
        scheduler.step()
        history.append({"nll": nll.item(), "kl": parts.kl.item(), "weight": now})
    return model, history


def one(name: str, weight: float, seed: int, settings: Settings) -> dict[str, Any]:
    """Train and judge one network."""
    begin = time.monotonic()
    torch.manual_seed(seed)
    rows = TASKS[name][0](seed, settings)
    likelihood = likelihood_of(rows)
    model, history = train(rows, likelihood, settings, weight)
    options: dict[str, Any] = {"samples": settings.samples, "seed": seed, "likelihood": likelihood}
    metrics = judge(lambda x: lb.predict(model, x, **options), rows)
    diagnosis = lb.diagnose(model, history)
    return {
        "data": name,
        "weight": weight,
        "seed": seed,
        "config": asdict(settings),
        "metrics": metrics,
        "diagnosis": [finding.name for finding in diagnosis.findings],
        "seconds": round(time.monotonic() - begin, 1),
        **environment_facts(),
    }


def everything(folder: Path, tasks: dict[str, Settings]) -> None:
    """Train and judge what a folder does not hold yet with these settings, and write it there."""
    cells = [(n, s, w) for n in tasks for s in range(1, tasks[n].seeds + 1) for w in WEIGHTS]
    for number, (name, seed, weight) in enumerate(cells, 1):
        path = folder / f"{name}-weight{weight:g}-seed{seed}.json"
        if path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["config"] == asdict(tasks[name]):
                continue
        result = one(name, weight, seed, tasks[name])
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
        told = ", ".join(f"{k} {v:.3f}" for k, v in result["metrics"].items())
        print(f"{number}/{len(cells)} {name}, weight {weight:g}, seed {seed}: {told}", flush=True)
