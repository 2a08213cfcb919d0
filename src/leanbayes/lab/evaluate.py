"""Judge a trained model on examples it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    multiclass_calibration_error,
)

from leanbayes import metrics
from leanbayes.lab.data import Examples
from leanbayes.likelihoods import Bernoulli, Categorical, Likelihood
from leanbayes.metrics import Score
from leanbayes.model import kl, random_maps
from leanbayes.predict import Prediction, predict

__all__ = ["evaluate", "summarise"]

_BINS = 15


def evaluate(
    model: nn.Module,
    examples: Examples,
    likelihood: Likelihood,
    *,
    samples: int = 100,
    batch_size: int = 1000,
    seed: int = 42,
    data_size: int | None = None,
) -> dict[str, dict[str, float]]:
    """Every metric of the papers' tables, with its standard error over examples.

    Args:
        model: the trained model.
        examples: inputs and targets.
        likelihood: what the outputs mean.
        samples: how many predictive samples (of every member).
        batch_size: how many examples run at once.
        seed: seed of the noise.
        data_size: how many training examples there were; gives −ELBO per example.
    """
    prediction = predict(
        model,
        _as_trained(model, examples.x),
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        likelihood=likelihood,
    )
    values = summarise(prediction, examples.y)
    if data_size is not None and any(True for _ in random_maps(model)):
        with torch.no_grad():
            per_example = float(kl(model)) / data_size
        gibbs = metrics.average(-likelihood.log_prob(prediction.samples, examples.y).mean(0))
        values["average_nll"] = gibbs
        values["kl"] = Score(per_example, 0.0)
        values["negative_elbo"] = Score(gibbs.value + per_example, gibbs.error)
    return {name: estimate._asdict() for name, estimate in values.items()}


def _as_trained(model: nn.Module, x: Tensor) -> Tensor:
    """Inputs in the precision of the weights; indices stay indices."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), x)
    return x.to(weight.dtype) if x.is_floating_point() else x


def summarise(prediction: Prediction, y: Any) -> dict[str, Score]:
    """The metrics of predictive samples.

    Classes get ``accuracy``, ``brier``, ``ece`` and uncertainties, and how diverse several samples
    are; single binary outcomes get ``accuracy``, ``auc_pr`` and ``auroc``; numbers get
    ``squared_error``. Standard errors of ``ece``, ``auc_pr`` and ``auroc`` are bootstrapped.
    """
    values = {"nll": metrics.average(-prediction.log_likelihood(y))}
    likelihood = prediction.likelihood
    if isinstance(likelihood, Categorical):
        probs = prediction.log_probs.exp()
        ece = partial(multiclass_calibration_error, num_classes=probs.shape[-1], n_bins=_BINS)
        values["accuracy"] = metrics.accuracy(probs, y)
        values["brier"] = metrics.brier(probs, y)
        values["ece"] = metrics.bootstrap(ece, probs, y)
        values["entropy"] = metrics.average(prediction.entropy)
        values["mutual_information"] = metrics.average(prediction.mutual_information)
        values.update(_diversities(prediction.sample_log_probs, y))
    elif isinstance(likelihood, Bernoulli):
        right = (prediction.labels == y).double()
        values["accuracy"] = metrics.average(right.reshape(len(right), -1).mean(-1))
        values.update(_areas(prediction.probs, y))
    else:
        error = (prediction.mean - y).square()
        values["squared_error"] = metrics.average(error.reshape(len(error), -1).mean(-1))
    return values


def _diversities(log_probs: Tensor, y: Tensor) -> dict[str, Score]:
    """How much several samples differ [rank-1, section 3.5]."""
    if len(log_probs) < 2:
        return {}
    values = {
        "disagreement": metrics.disagreement(log_probs),
        "kl_diversity": metrics.kl_diversity(log_probs),
    }
    if bool((log_probs.argmax(-1) != y).any()):
        values["diversity"] = metrics.diversity(log_probs, y)
    return values


def _areas(probs: Tensor, y: Tensor) -> dict[str, Score]:
    """The areas under two curves, where there is one outcome an example, and both occur."""
    truth = y.flatten().long()
    if len(truth) != len(y) or len(truth.unique()) < 2:
        return {}
    areas: dict[str, Callable[..., Tensor]] = {
        "auc_pr": binary_average_precision,
        "auroc": binary_auroc,
    }
    return {
        name: metrics.bootstrap(area, probs.flatten(), truth, strata=truth)
        for name, area in areas.items()
    }
