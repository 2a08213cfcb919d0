"""Predict with the same trained networks by samples and by one pass."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import require_count
from leanbayes.lab.data import load_dataset
from leanbayes.lab.evaluation import foreign_auroc
from leanbayes.lab.provenance import environment_facts
from research.publishing.study_file import StudyFile, Tell
from research.studies.leaderboard.networks import cnn, mlp

METHODS = ("mean weights", "20 samples", "200 samples", "one pass")
SUQ = "SUQ 0.1.0"
"""The package suq, where it is installed: mean field on perceptrons."""
REFERENCE, ONE_PASS = "200 samples", "one pass"


@dataclass(frozen=True)
class Settings:
    """Training and evaluation of every network.

    Args:
        images: Number of training images.
        epochs: Number of epochs over them.
        rows_epochs: Number of epochs over a table.
        test: Number of test images, and of OOD images.
        batch: Examples per step.
    """

    images: int = 5000
    epochs: int = 12
    rows_epochs: int = 150
    test: int = 1500
    batch: int = 128

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require_count(name, value, 1)


class Rows(NamedTuple):
    """Training, test and OOD rows."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    ood_x: Tensor


@cache
def _loaded(name: str) -> Any:
    return load_dataset(name, download=False, scaling="channel")


def images(name: str, ood: str, seed: int, settings: Settings) -> Rows:
    """Return training images, which depend on the seed; OOD images are of another data set."""
    data, other = _loaded(name), _loaded(ood)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    x, y = data.train.take(order[: settings.images])
    test, away = data.test[: settings.test], other.test[: settings.test]
    return Rows(x.float(), y, test.x.float(), test.y, away.x.float())


def concrete(seed: int, settings: Settings) -> Rows:
    """Return a standard split; OOD rows have the columns of test rows, shuffled separately."""
    data = load_dataset("concrete", download=False, split=seed)
    test = data.test.x.float()
    order = torch.rand(test.shape, generator=torch.Generator().manual_seed(seed)).argsort(0)
    train = data.train.x.float(), data.train.y.float()
    return Rows(*train, test, data.test.y.float(), test.gather(0, order))


def table(inputs: int) -> nn.Module:
    """Return a network with two hidden layers of 50 units."""
    layers = (nn.Linear(inputs, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
    return nn.Sequential(*layers)


class Task(NamedTuple):
    """A network and its data.

    Attributes:
        title: Title in tables.
        read: Returns rows of a seed.
        network: Makes the plain network.
        hidden: Name of its widest hidden dense layer.
    """

    title: str
    read: Callable[[int, Settings], Rows]
    network: Callable[[], nn.Module]
    hidden: str


TASKS = {
    "fashion-mlp": Task(
        "Fashion-MNIST, MLP",
        partial(images, "fashion-mnist", "mnist"),
        partial(mlp, 400, 784, 0),
        "4",
    ),
    "fashion-cnn": Task(
        "Fashion-MNIST, CNN", partial(images, "fashion-mnist", "mnist"), partial(cnn, 784, 0), "8"
    ),
    "mnist-mlp": Task(
        "MNIST, MLP", partial(images, "mnist", "fashion-mnist"), partial(mlp, 400, 784, 0), "4"
    ),
    "concrete": Task("UCI concrete, MLP", concrete, partial(table, 8), "2"),
}

POSTERIORS: dict[str, Callable[[nn.Module, str], nn.Module]] = {
    "k-tied": lambda net, hidden: lb.convert(net),
    "mean field": lambda net, hidden: lb.convert(net, lb.MeanField()),
    "variance layer": lambda net, hidden: lb.convert(
        net, lb.posteriors.ZeroMean(), lb.priors.LogUniform(), include=(hidden,)
    ),
}
"""How a network is converted, given the name of its hidden layer."""


def trained(
    task: Task, posterior: str, rows: Rows, seed: int, settings: Settings
) -> tuple[nn.Module, lb.likelihoods.Likelihood]:
    """Train by the recommended recipe."""
    torch.manual_seed(seed)
    model = POSTERIORS[posterior](task.network(), task.hidden)
    is_table = rows.y.is_floating_point()
    likelihood = (
        lb.likelihoods.Gaussian(0.5, "learned") if is_table else lb.likelihoods.Categorical()
    )
    lb.fit(
        model,
        (rows.x, rows.y),
        epochs=settings.rows_epochs if is_table else settings.epochs,
        likelihood=likelihood,
        lr=5e-3 if is_table else 1e-3,
        batch_size=settings.batch,
        seed=seed,
        progress=False,
    )
    return model, likelihood


def predicted(
    model: nn.Module, x: Tensor, method: str, likelihood: lb.likelihoods.Likelihood, seed: int
) -> lb.Prediction:
    """Predict by one of :data:`METHODS`."""
    options: dict[str, Any] = {"likelihood": likelihood, "seed": seed, "batch_size": 1000}
    if method == ONE_PASS:
        made = lb.predict(model, x, method="moments", **options)
        assert made.fallback is None, made.fallback
        return made
    if method == "mean weights":
        with lb.using(model, lb.estimators.mean):
            return lb.predict(model, x, samples=1, **options)
    return lb.predict(model, x, samples=int(method.split()[0]), **options)


def by_suq(model: nn.Module) -> Callable[[Tensor], lb.Prediction]:
    """Return the prediction of classes by the package suq, from the same means and variances."""
    for name in ("suq.utils", "suq.utils.utils"):  # left out of its wheel; predictions need none
        vars(sys.modules.setdefault(name, ModuleType(name)))["torch_dataset"] = None
    import suq  # type: ignore[import-not-found]

    kept = nn.Linear, nn.ReLU
    layers = [part for part in lb.deterministic(model).modules() if isinstance(part, kept)]
    variances = []
    for _, layer in lb.extend.random_maps(model):
        variance = layer.posterior().variance.detach()
        variances += [variance.flatten(), torch.zeros(len(variance))]
    made = suq.streamline_mlp(
        nn.Sequential(*layers), torch.cat(variances), "diag", "classification"
    )

    def predict(x: Tensor) -> lb.Prediction:
        with torch.enable_grad():
            probs = made(x.flatten(1)).detach()
        return lb.Prediction(probs.log().unsqueeze(0))

    return predict


def judge(predict: Callable[[Tensor], lb.Prediction], rows: Rows) -> dict[str, float]:
    """Measure NLL, calibration, and AUROC of entropy or predictive variance for OOD rows."""
    own, ood = predict(rows.test_x), predict(rows.ood_x)
    scores = own.metrics(rows.test_y)
    found = {"nll": scores["nll"].value}
    if own.has_classes:
        found |= {"ece": scores["ece"].value, "accuracy": scores["accuracy"].value}
        doubts = own.entropy, ood.entropy
    else:
        curve: Any = own.calibration(rows.test_y)
        found["ece"] = float((curve.observed - curve.nominal).abs().mean())
        found |= {"rmse": scores["rmse"].value, "coverage": scores["coverage_90"].value}
        doubts = own.variance.flatten(), ood.variance.flatten()
    found["auroc"] = foreign_auroc(*doubts)
    return found


def _network(
    name: str, posterior: str, seed: int, settings: Settings, states: Path
) -> tuple[nn.Module, lb.likelihoods.Likelihood]:
    """Return a trained network, from its file if there is one."""
    path = states / f"{name}-{posterior.replace(' ', '-')}-{seed}.pt"
    if path.exists():
        kept: tuple[nn.Module, lb.likelihoods.Likelihood] = torch.load(path, weights_only=False)
        return kept
    task = TASKS[name]
    made = trained(task, posterior, task.read(seed, settings), seed, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(made, path)
    return made


def _part(
    name: str, posterior: str, seed: int, method: str, settings: Settings, states: Path
) -> dict[str, Any]:
    begin = time.process_time()
    model, likelihood = _network(name, posterior, seed, settings, states)
    options: dict[str, Any] = {"method": method, "likelihood": likelihood, "seed": seed}
    predict = by_suq(model) if method == SUQ else partial(predicted, model, **options)
    with torch.no_grad():
        scores = judge(predict, TASKS[name].read(seed, settings))
    cell = {"task": name, "posterior": posterior, "seed": seed, "method": method}
    duration = round(time.process_time() - begin, 1)
    return {**cell, **scores, "duration": duration, **environment_facts()}


def _others(name: str, posterior: str) -> tuple[str, ...]:
    """Return methods of other packages that are installed and can predict with this network."""
    fits = name.endswith("-mlp") and posterior == "mean field"
    return (SUQ,) if fits and find_spec("suq") else ()


def study_one_pass(
    settings: Settings,
    path: Path,
    *,
    seeds: int,
    states: Path,
    tasks: tuple[str, ...] = tuple(TASKS),
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Train and judge what a file lacks; networks that are trained already are read."""
    parts = {
        f"{name}, {posterior}, seed {seed}, {method}": partial(
            _part, name, posterior, seed, method, settings, states
        )
        for seed in range(seeds)
        for name in tasks
        for posterior in POSTERIORS
        for method in (*METHODS, *_others(name, posterior))
    }
    return StudyFile(path, "one pass", asdict(settings)).fill(parts, tell)
