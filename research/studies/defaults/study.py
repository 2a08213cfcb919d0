"""Plain networks, MC dropout and the recommended recipe on seven tasks, seed by seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import require_count, require_positive
from leanbayes.lab.data import Augmentation, PadCropFlip
from leanbayes.lab.provenance import environment_facts
from leanbayes.likelihoods import Likelihood
from research.data import load_dataset
from research.publishing.study_file import StudyFile, Tell
from research.studies.defaults.runs import DROPOUT, PLAIN, RECOMMENDED

METHODS = (PLAIN, DROPOUT, RECOMMENDED)


@dataclass(frozen=True)
class Settings:
    """How all networks are trained and judged.

    Args:
        batch: images in a step.
        rows: of a table in a step.
        steps: for a table.
        warmup: over which share of the steps the KL comes in.
        samples: of a predicted class.
        number_samples: of a predicted number.
    """

    batch: int = 128
    rows: int = 64
    steps: int = 4000
    warmup: float = 0.8
    samples: int = 20
    number_samples: int = 100

    def __post_init__(self) -> None:
        for name in ("batch", "rows", "steps", "samples", "number_samples"):
            require_count(name, getattr(self, name), 1)
        require_positive(warmup=self.warmup)


class Block(nn.Module):
    """Two convolutions with batch normalization and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            narrow = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(F.relu(self.norms[0](self.first(x))))
        return F.relu(self.norms[1](self.second(hidden)) + self.shortcut(x))


def mlp(units: int, inputs: int, dropout: float) -> nn.Module:
    """Return two hidden layers."""
    first = (nn.Linear(inputs, units), nn.ReLU(), nn.Dropout(dropout))
    second = (nn.Linear(units, units), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(units, 10))


def cnn(inputs: int, dropout: float) -> nn.Module:
    """Return two convolutions and a hidden layer, for images of 28 × 28 pixels."""
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    hidden = (nn.Dropout(dropout), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(*first, *second, nn.Flatten(), *hidden, nn.Linear(128, 10))


def resnet(inputs: int, dropout: float) -> nn.Module:
    """Return three blocks of 16, 32 and 64 filters, for images in color."""
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16, 1, dropout), Block(16, 32, 2, dropout), Block(32, 64, 2, dropout))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, 10))
    return nn.Sequential(*stem, *blocks, *head)


def table(inputs: int, dropout: float) -> nn.Module:
    """Return a hidden layer of 50 units."""
    return nn.Sequential(nn.Linear(inputs, 50), nn.ReLU(), nn.Dropout(dropout), nn.Linear(50, 1))


class Task(NamedTuple):
    """A network and its data.

    Attributes:
        title: in tables.
        data: name of the data set.
        network: by the size of an input and a dropout rate.
        dropout: that rate for MC dropout, as in results/defaults.json.
        lr: the first rate.
        examples: training images; tables are used whole.
        epochs: over them; none for tables, whose steps are counted.
        scaling: of images.
        sgd: SGD with momentum, weight decay, crops and flips instead of AdamW.
    """

    title: str
    data: str
    network: Callable[[int, float], nn.Module]
    dropout: float
    lr: float = 1e-3
    examples: int = 0
    epochs: int = 0
    scaling: str = "channel"
    sgd: bool = False


TASKS = {
    "mlp5k": Task("MLP 5k", "fashion-mnist", partial(mlp, 100), 0.2, 1e-3, 5000, 50),
    "mlp20k": Task("MLP 20k", "fashion-mnist", partial(mlp, 400), 0.2, 1e-3, 20_000, 20, "unit"),
    "cnn": Task("CNN", "fashion-mnist", cnn, 0.1, 1e-3, 10_000, 20),
    "resnet": Task("ResNet-8", "cifar10", resnet, 0.1, 0.1, 5000, 30, sgd=True),
    "concrete": Task("concrete", "concrete", table, 0.1, 0.01),
    "energy": Task("energy", "energy", table, 0.1, 0.01),
    "wine": Task("wine", "wine-quality-red", table, 0.1, 0.01),
}


class Rows(NamedTuple):
    """Training and test rows; ``unit`` is how much 1 is in units of the target."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    unit: float = 1.0
    augment: Augmentation | None = None


def read(task: Task, seed: int) -> Rows:
    """Return the first training images and all test images, or the split of a table."""
    if not task.epochs:
        data = load_dataset(task.data, download=False, split=seed)
        assert data.target_scaling is not None
        test, unit = data.test, float(data.target_scaling.scale)
        return Rows(data.train.x, data.train.y, test.x, test.y, unit)
    data = load_dataset(task.data, download=False, scaling=task.scaling)
    train = data.train[: task.examples]
    augment = PadCropFlip(4, fill=data.black) if task.sgd else None
    return Rows(train.x, train.y, data.test.x, data.test.y, augment=augment)


def train(
    model: nn.Module, likelihood: Likelihood, task: Task, rows: Rows, settings: Settings
) -> nn.Module:
    """Return the user's own loop: cosine decay, and a KL that comes in if the model has one."""
    size, batch = len(rows.x), settings.batch if task.epochs else settings.rows
    whole = lb.training.recommended_kl_weight(model, size)
    bayesian = bool(lb.named_kl(model))
    groups = lb.parameter_groups(model, task.lr, weight_decay=5e-4 if task.sgd else 0.0)
    groups.append({"params": [*likelihood.parameters()], "weight_decay": 0.0})
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, task.lr)
    if task.sgd:
        optimizer = torch.optim.SGD(groups, task.lr, momentum=0.9)
    steps = task.epochs * (size // batch) or settings.steps
    epochs = math.ceil(steps / (size // batch))
    orders = [torch.randperm(size)[: size // batch * batch].split(batch) for _ in range(epochs)]
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    model.train()
    for step, chosen in enumerate([index for order in orders for index in order][:steps]):
        x = rows.x[chosen]
        outputs = model(rows.augment(x, generator) if rows.augment else x)
        loss = likelihood.nll(outputs, rows.y[chosen])
        if bayesian:
            weight = whole * min(1.0, step / (settings.warmup * steps))
            loss = lb.elbo(loss, model, data_size=size, weight=weight).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return model.eval()


def judge(
    model: nn.Module, likelihood: Likelihood, rows: Rows, samples: int, seed: int
) -> dict[str, float]:
    """Return metrics on test rows, of numbers in units of the target."""
    options: dict[str, Any] = {"samples": samples, "seed": seed, "batch_size": 500}
    p = lb.predict(model, rows.test_x, likelihood=likelihood, **options)
    scores = {name: score.value for name, score in p.metrics(rows.test_y).items()}
    if p.has_classes:
        accuracy = 100 * scores["accuracy"]
        return {"accuracy": accuracy, "nll": scores["nll"], "ece": scores["ece"]}
    found = {"rmse": rows.unit * scores["rmse"], "nll": scores["nll"] + math.log(rows.unit)}
    gap = abs(scores["coverage_90"] - 0.9)
    return {**found, "coverage_90": scores["coverage_90"], "coverage_gap": gap}


def one(name: str, method: str, seed: int, settings: Settings) -> dict[str, Any]:
    """Train and judge one network."""
    began, task = time.monotonic(), TASKS[name]
    rows = read(task, seed)
    torch.manual_seed(seed)
    model = task.network(rows.x[0].numel(), task.dropout if method == DROPOUT else 0.0)
    likelihood: Likelihood = lb.likelihoods.Categorical()
    if not task.epochs:
        likelihood = lb.likelihoods.Gaussian(0.5, noise="learned")
    if method == RECOMMENDED:
        model = lb.convert(model)
    train(model, likelihood, task, rows, settings)
    samples = settings.samples if task.epochs else settings.number_samples
    judged = lb.mc_dropout(model) if method == DROPOUT else model
    return {
        "task": name,
        "method": method,
        "settings": {"rate": task.dropout} if method == DROPOUT else {},
        "seed": seed,
        "test": judge(judged, likelihood, rows, 1 if method == PLAIN else samples, seed),
        "duration": round(time.monotonic() - began, 1),
        **environment_facts(),
    }


def study_defaults(
    settings: Settings, out: str | Path, *, seeds: int = 3, tell: Tell | None = None
) -> dict[str, Any]:
    """Train every task in every way with every seed that the file lacks."""
    require_count("seeds", seeds, 1)
    told = ("title", "data", "dropout", "lr", "examples", "epochs", "scaling", "sgd")
    tasks = {name: {key: getattr(task, key) for key in told} for name, task in TASKS.items()}
    file = StudyFile(out, "defaults, by the library", {**asdict(settings), "tasks": tasks})
    parts = {
        f"{name}; {method}; seed {seed}": partial(one, name, method, seed, settings)
        for seed in range(seeds)
        for name in TASKS
        for method in METHODS
    }
    return file.fill(parts, tell)
