"""Methods of the leaderboard, each as its library documents it, with equal epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.likelihoods import Likelihood
from leanbayes.prediction.prediction import Prediction
from leanbayes.training.laplace import Kind
from research.studies.leaderboard.tasks import Rows, Task

SAMPLES = 20
RATES = (0.1, 0.3)
"""Dropout rates, between which validation rows choose."""
MEMBERS = 5
WARMUP = 0.8
DECAY = 5e-4


class Job(NamedTuple):
    """One training: a task, its rows and seed; plain networks are kept in a folder."""

    name: str
    task: Task
    rows: Rows
    seed: int
    states: Path

    def network(self, dropout: float = 0.0, seed: int | None = None) -> nn.Module:
        """Make the network; its first weights depend on the seed alone."""
        torch.manual_seed(self.seed if seed is None else seed)
        return self.task.network(self.rows.x[0].numel(), dropout)


class Trained(NamedTuple):
    """A prediction for inputs, the number of stored numbers, and passes per prediction."""

    predict: Callable[[Tensor], Prediction]
    parameters: int
    passes: int
    choice: Mapping[str, Any] = MappingProxyType({})


def count(model: nn.Module) -> int:
    """Count the parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def batches(job: Job) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield the share of the training that is done, inputs and targets."""
    rows, batch = job.rows, job.task.batch
    generator = torch.Generator().manual_seed(job.seed)
    steps = len(rows.x) // batch
    for epoch in range(job.task.epochs):
        order = torch.randperm(len(rows.x), generator=generator)[: steps * batch]
        for step, chosen in enumerate(order.split(batch)):
            x = rows.x[chosen]
            x = rows.augment(x, generator) if rows.augment else x
            yield (epoch + step / steps) / job.task.epochs, x, rows.y[chosen]


def cosine(optimizer: torch.optim.Optimizer, done: float) -> None:
    """Set the learning rates after a share of the training."""
    for group in optimizer.param_groups:
        group.setdefault("first", group["lr"])
        group["lr"] = group["first"] * (0.5 + 0.5 * math.cos(math.pi * done))


def own_loop(job: Job, model: nn.Module, kl_weight: float | None = None) -> None:
    """Train by the user's own SGD; a converted model changes the line of its loss only."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=job.task.lr, momentum=0.9, weight_decay=DECAY
    )
    likelihood, size = lb.likelihoods.Categorical(), len(job.rows.x)
    converted = bool(lb.named_kl(model))
    model.train()
    for done, x, y in batches(job):
        loss = likelihood.nll(model(x), y)
        if converted:
            loss = lb.elbo(loss, model, data_size=size, weight=kl_weight).loss
        cosine(optimizer, done)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(job: Job, model: nn.Module, seed: int | None = None) -> Likelihood:
    """Train a plain or converted model in place and return its likelihood."""
    task, seed = job.task, job.seed if seed is None else seed
    likelihood = task.likelihood()
    torch.manual_seed(seed)
    if task.sgd:
        own_loop(job._replace(seed=seed), model)
    else:
        options: dict[str, Any] = {"lr": task.lr, "batch_size": task.batch, "seed": seed}
        pair = (job.rows.x, job.rows.y)
        lb.fit(model, pair, epochs=task.epochs, likelihood=likelihood, progress=False, **options)
    return likelihood


def sampled(
    job: Job, model: nn.Module, likelihood: Likelihood, samples: int = SAMPLES, **options: Any
) -> Callable[[Tensor], Prediction]:
    """Return a function that predicts with samples."""
    model.eval()
    options = {"samples": samples, "seed": job.seed, "batch_size": 500, **options}
    return partial(lb.predict, model, likelihood=likelihood, **options)


def trained_plain(job: Job, seed: int | None = None) -> tuple[nn.Module, Likelihood]:
    """Train a plain network, or load the one that an earlier method has trained.

    A network of another split has seen test rows of this one, so splits share none.
    """
    seed = job.seed if seed is None else seed
    model = job.network(seed=seed)
    split = "" if job.task.classes else f"-split{job.seed}"
    return model, trained_once(job, model, f"{job.name}{split}-{seed}", seed)


def trained_once(job: Job, model: nn.Module, name: str, seed: int | None = None) -> Likelihood:
    """Train a model in place, or load its state if an earlier run has trained it."""
    file, likelihood = job.states / f"{name}.pt", job.task.likelihood()
    both = nn.ModuleList([model, likelihood])
    if file.exists():
        both.load_state_dict(torch.load(file, weights_only=True))
    else:
        likelihood.load_state_dict(train(job, model, seed).state_dict())
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(both.state_dict(), file)
    model.eval()
    return likelihood


def plain(job: Job) -> Trained:
    """Return the network itself."""
    model, likelihood = trained_plain(job)
    return Trained(sampled(job, model, likelihood, 1), count(model), 1)


def dropout(job: Job) -> Trained:
    """Return MC dropout, with the rate of lower NLL on validation rows."""
    found: dict[float, tuple[float, Trained]] = {}
    for rate in RATES:
        model = job.network(rate)
        likelihood = train(job, model)
        predict = sampled(job, lb.mc_dropout(model), likelihood)
        log_likelihood = predict(job.rows.validation_x).log_likelihood(job.rows.validation_y)
        nll = -float(log_likelihood.mean())
        found[rate] = nll, Trained(predict, count(model), SAMPLES, {"rate": rate})
    return min(found.values(), key=lambda each: each[0])[1]


def ensemble(job: Job) -> Trained:
    """Train five networks from other weights and batches; neighboring seeds share some."""
    members = [trained_plain(job, job.seed + member) for member in range(MEMBERS)]

    def predict(x: Tensor) -> Prediction:
        return mixture([sampled(job, *member, 1)(x) for member in members])

    return Trained(predict, sum(count(model) for model, _ in members), MEMBERS)


def mixture(predictions: list[Prediction]) -> Prediction:
    """Average the predictions of members; the noise of a number is their mean variance."""
    samples = torch.cat([p.samples for p in predictions])
    if predictions[0].has_classes:
        return Prediction(samples)
    noise = torch.stack([p.aleatoric.mean() for p in predictions]).mean().sqrt()
    return Prediction(samples, lb.likelihoods.Gaussian(float(noise)))


def k_tied(job: Job) -> Trained:
    """Return ``lb.convert(net)``, nothing else."""
    return _converted(job, lb.convert(job.network()), "k-tied")


def one_pass(job: Job) -> Trained:
    """Return the network of :func:`k_tied` with moments of outputs instead of samples."""
    found = _converted(job, lb.convert(job.network()), "k-tied", method="moments")
    return found._replace(passes=1)


def rank1(job: Job) -> Trained:
    """Return a mixture of four members that share the batch."""
    model = lb.convert(job.network(), lb.Rank1(members=4, batch="split"))
    return _converted(job, model, "rank1", samples=1, passes=4)


def _converted(
    job: Job,
    model: nn.Module,
    name: str,
    samples: int = SAMPLES,
    passes: int = SAMPLES,
    **options: Any,
) -> Trained:
    likelihood = trained_once(job, model, f"{job.name}-{name}-{job.seed}")
    return Trained(sampled(job, model, likelihood, samples, **options), count(model), passes)


def laplace(kind: Kind, job: Job, *, calibrated: bool = False) -> Trained:
    """Return ``lb.laplace`` of the plain network; linearized if every layer is random.

    If calibrated, held-out rows fit a softmax temperature, or the scale of the noise.
    """
    model, likelihood = trained_plain(job)
    bayesian = lb.laplace(model, (job.rows.x, job.rows.y), kind, likelihood=likelihood)
    if calibrated:
        held_out = (job.rows.validation_x, job.rows.validation_y)
        likelihood = lb.calibrate(bayesian, held_out, likelihood=likelihood, seed=job.seed)
    predict = sampled(job, bayesian, likelihood, linearized=kind != "last-layer")
    return Trained(predict, count(bayesian), SAMPLES)


METHODS: dict[str, Callable[[Job], Trained]] = {
    "plain": plain,
    "k-tied": k_tied,
    "k-tied, one pass": one_pass,
    "MC dropout": dropout,
    "rank-1 mixture": rank1,
    "lb.laplace": partial(laplace, "kfac"),
    "lb.laplace, last layer": partial(laplace, "last-layer"),
    "lb.laplace, calibrated": partial(laplace, "last-layer", calibrated=True),
    "ensemble of 5": ensemble,
}
