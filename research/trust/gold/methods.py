"""Approximate posteriors of a problem, each trained as its documentation says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

import leanbayes as lb
from research.trust.gold.compare import Predicted
from research.trust.gold.problems import Problem

MEMBERS = 4
_PRIOR = lb.priors.Normal(1.0)


@dataclass(frozen=True)
class Training:
    """Settings of trainings and predictions.

    Args:
        steps: Number of steps of full batches.
        lr: Learning rate at the start.
        samples: Number of predictive samples.
    """

    steps: int = 800
    lr: float = 0.05
    samples: int = 200


Method = Callable[[Problem, Training, int], nn.Module]


def _trained(
    model: nn.Module, problem: Problem, training: Training, seed: int,
    *, kl_weight: float | None = 1.0, weight_decay: float = 0.0,
) -> nn.Module:  # fmt: skip
    lb.fit(
        model, (problem.x, problem.y), epochs=training.steps, likelihood=problem.likelihood,
        lr=training.lr, batch_size=len(problem.x), kl_weight=kl_weight, kl_warmup=0.5,
        weight_decay=weight_decay, seed=seed, progress=False,
    )  # fmt: skip
    return model


def _map_estimate(
    problem: Problem, training: Training, seed: int, *, dropout: float = 0.0
) -> nn.Module:
    """The mode under the prior: the KL of a point is half the square of its weights."""
    model = lb.convert(problem.network(dropout=dropout), lb.posteriors.Point(), _PRIOR)
    return lb.deterministic(_trained(model, problem, training, seed))


def _family(
    posterior: lb.posteriors.Posterior,
    problem: Problem,
    training: Training,
    seed: int,
    *,
    kl_weight: float | None = 1.0,
    prior: lb.priors.Prior = _PRIOR,
) -> nn.Module:
    model = lb.convert(problem.network(), posterior, prior)
    return _trained(model, problem, training, seed, kl_weight=kl_weight)


def _members(make: Method, problem: Problem, training: Training, seed: int) -> nn.Module:
    """Networks that are trained apart."""
    made = []
    for member in range(MEMBERS):
        torch.manual_seed(1000 * seed + member)
        made.append(make(problem, training, 1000 * seed + member))
    return lb.DeepEnsemble(made)


def _laplace(kind: str, problem: Problem, training: Training, seed: int) -> nn.Module:
    plain = _map_estimate(problem, training, seed)
    options = {"likelihood": problem.likelihood, "prior_precision": 1.0}
    return lb.laplace(plain, (problem.x, problem.y), kind, **options)  # type: ignore[arg-type]


def _mc_dropout(problem: Problem, training: Training, seed: int) -> nn.Module:
    return lb.mc_dropout(_map_estimate(problem, training, seed, dropout=0.1))


_MEAN_FIELD, _K_TIED = lb.MeanField(0.1), lb.KTied(2, scale=0.1)
_MATRIX_NORMAL = lb.posteriors.MatrixNormal(scale=0.1)
_RANK1 = partial(lb.Rank1, rate=0.1)

METHODS: dict[str, Method] = {
    "mode of the posterior": _map_estimate,
    "mean field": partial(_family, _MEAN_FIELD),
    "k-tied, rank 2": partial(_family, _K_TIED),
    "matrix normal": partial(_family, _MATRIX_NORMAL),
    "rank-1, 1 member": partial(_family, _RANK1(1), prior=lb.priors.Normal(0.1, loc=1.0)),
    "rank-1, 4 members": partial(_family, _RANK1(MEMBERS), prior=lb.priors.Normal(0.1, loc=1.0)),
    "zero mean": partial(_family, lb.posteriors.ZeroMean()),
    "mean field, recommended KL weight": partial(_family, _MEAN_FIELD, kl_weight=None),
    "k-tied, recommended KL weight": partial(_family, _K_TIED, kl_weight=None),
    "Laplace, Kronecker": partial(_laplace, "kfac"),
    "Laplace, diagonal": partial(_laplace, "diagonal"),
    "MC dropout, p = 0.1": _mc_dropout,
    "ensemble of 4": partial(_members, _map_estimate),
    "mixture of 4 mean fields": partial(_members, partial(_family, _MEAN_FIELD)),
    "mixture of 4 k-tied": partial(_members, partial(_family, _K_TIED)),
    "mixture of 4 matrix normals": partial(_members, partial(_family, _MATRIX_NORMAL)),
}


def predictions(method: Method, problem: Problem, training: Training, seed: int) -> Predicted:
    """Train a method and predict the test inputs."""
    torch.manual_seed(seed)
    model = method(problem, training, seed)
    found = lb.predict(
        model, problem.x_test, samples=training.samples, seed=seed, likelihood=problem.likelihood
    )
    if problem.kind == "numbers":
        return Predicted(outputs=found.samples[..., 0].double())
    probs = found.sample_log_probs.double().exp()
    if problem.kind == "binary":
        probs = probs.reshape(len(found.samples), len(problem.x_test), -1)
    return Predicted(probs=probs.mean(0), variance=probs.var(0, correction=0))
