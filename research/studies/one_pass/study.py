"""Predict with the same trained networks by samples and by one pass."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.provenance import environment_facts
from research.publishing.study_file import StudyFile, Tell
from research.studies import small_tasks
from research.studies.leaderboard.networks import cnn, mlp
from research.studies.small_tasks import Rows, concrete, judge, likelihood_of

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


def images(name: str, ood: str, seed: int, settings: Settings) -> Rows:
    """Return images in the scale of each channel."""
    return small_tasks.images(name, ood, "channel", seed, settings.images, settings.test)


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
    "concrete": Task("UCI concrete, MLP", lambda seed, _: concrete(seed), partial(table, 8), "2"),
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
    is_table, likelihood = rows.y.is_floating_point(), likelihood_of(rows)
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
