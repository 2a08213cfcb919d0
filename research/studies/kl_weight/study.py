"""Train and judge a network for every data set, weight of the KL and seed."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.data import Dataset
from leanbayes.lab.evaluation import foreign_auroc
from leanbayes.lab.files import write_json
from leanbayes.lab.provenance import environment_facts
from leanbayes.metrics.numbers import Coverage
from research.data import load_dataset

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


@dataclass(frozen=True)
class Task:
    """Data to learn from and to be judged on.

    Attributes:
        x: training inputs.
        y: training targets.
        test_x: test inputs.
        test_y: test targets.
        foreign: inputs that are unlike both.
        likelihood: what outputs mean.
        outputs: how many there are.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    foreign: Tensor
    likelihood: lb.likelihoods.Likelihood
    outputs: int


def concrete(seed: int, settings: Settings) -> Task:
    """A standard split of UCI concrete; foreign rows have each column in a separate order."""
    data = load_dataset("concrete", download=False, split=seed)
    test = data.test.x[: settings.test]
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(test.shape, generator=generator).argsort(0)
    return Task(
        data.train.x[: settings.examples].float(),
        data.train.y[: settings.examples].float(),
        test.float(),
        data.test.y[: settings.test].float(),
        test.gather(0, order).float(),
        lb.likelihoods.Gaussian(0.5, "learned"),
        1,
    )


def images(name: str, foreign: str) -> Callable[[int, Settings], Task]:
    """Return some images of a data set, other ones for each seed; foreign ones are of another."""

    def load(seed: int, settings: Settings) -> Task:
        data, other = (_loaded(each) for each in (name, foreign))
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(data.train), generator=generator)[: settings.examples]
        x, y = data.train.take(chosen)
        test, away = data.test[: settings.test], other.test[: settings.test]
        flat = (part.flatten(1).float() for part in (x, test.x, away.x))
        x, test_x, foreign_x = flat
        return Task(x, y, test_x, test.y, foreign_x, lb.likelihoods.Categorical(), 10)

    return load


@cache
def _loaded(name: str) -> Dataset:
    return load_dataset(name, download=False, scaling="symmetric")


TASKS: dict[str, tuple[Callable[[int, Settings], Task], Settings]] = {
    "concrete": (concrete, Settings(50, 927, 103, 4000, seeds=5)),
    "mnist": (images("mnist", "fashion-mnist"), Settings(100, 5000, 2000, 2000, lr=0.003)),
    "fashion-mnist": (images("fashion-mnist", "mnist"), Settings(100, 5000, 2000, 2000, lr=0.003)),
}


def network(inputs: int, outputs: int, hidden: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def train(
    task: Task, settings: Settings, weight: float
) -> tuple[nn.Module, list[dict[str, float]]]:
    """Return a k-tied network with learned prior scales, after Adam on the weighted ELBO."""
    net = network(task.x.shape[1], task.outputs, settings.hidden)
    model = lb.convert(net, lb.KTied(2, 0.02), lb.priors.Normal(0.2, learn="layer"))
    parameters = [*model.parameters(), *task.likelihood.parameters()]
    optimizer = torch.optim.Adam(parameters, settings.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    history = []
    for step in range(settings.steps):
        now = weight * min(1.0, (step + 1) / (settings.warmup * settings.steps))
        chosen = torch.randint(len(task.x), (settings.batch,))
        nll = task.likelihood.nll(model(task.x[chosen]), task.y[chosen])
        parts = lb.elbo(nll, lb.kl(model), data_size=len(task.x), weight=now)
        optimizer.zero_grad()
        parts.loss.backward()
        optimizer.step()
        scheduler.step()
        history.append({"nll": nll.item(), "kl": parts.kl.item(), "weight": now})
    return model, history


def judge(model: nn.Module, task: Task, settings: Settings, seed: int) -> dict[str, float]:
    """Return NLL, calibration error, coverage of what should hold 90%, and AUROC of OOD data."""
    options: dict[str, Any] = {"samples": settings.samples, "seed": seed}
    options["likelihood"] = task.likelihood
    with torch.no_grad():
        own, foreign = (lb.predict(model, x, **options) for x in (task.test_x, task.foreign))
        scores = own.metrics(task.test_y)
        found = {"nll": scores["nll"].value}
        if own.has_classes:
            found["accuracy"], found["ece"] = scores["accuracy"].value, scores["ece"].value
            found["coverage"] = credible_sets(own.probs, task.test_y)
            doubts = own.entropy, foreign.entropy
        else:
            curve = own.calibration(task.test_y)
            assert isinstance(curve, Coverage)
            found["rmse"] = scores["rmse"].value
            found["ece"] = float((curve.observed - curve.nominal).abs().mean())
            found["coverage"] = scores["coverage_90"].value
            doubts = own.variance.flatten(), foreign.variance.flatten()
    found["auroc"] = foreign_auroc(*doubts)
    return found


def credible_sets(probs: Tensor, y: Tensor, level: float = 0.9) -> float:
    """Return how often the true class is among the most probable ones that together reach a level.

    Example:
        >>> credible_sets(torch.tensor([[0.6, 0.35, 0.05]]).repeat(3, 1), torch.arange(3))
        0.6666666666666666
    """
    ordered, order = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    inside = (order == y[:, None]) & (before < level)
    return float(inside.any(-1).double().mean())


def one(name: str, weight: float, seed: int, settings: Settings) -> dict[str, Any]:
    """Train and judge one network."""
    begin = time.monotonic()
    torch.manual_seed(seed)
    task = TASKS[name][0](seed, settings)
    model, history = train(task, settings, weight)
    metrics = judge(model, task, settings, seed)
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
