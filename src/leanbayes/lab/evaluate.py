"""Judge a trained model on examples it has not seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchmetrics.functional.classification import multiclass_calibration_error

from leanbayes import metrics
from leanbayes.lab.data import Examples
from leanbayes.likelihoods import Bernoulli, Categorical, Likelihood
from leanbayes.metrics import Estimate
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
        examples.x,
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
        values["kl"] = Estimate(per_example, 0.0)
        values["negative_elbo"] = Estimate(gibbs.value + per_example, gibbs.error)
    return {name: estimate._asdict() for name, estimate in values.items()}


def summarise(prediction: Prediction, y: Any) -> dict[str, Estimate]:
    """The metrics of predictive samples."""
    values = {"nll": metrics.average(-prediction.log_likelihood(y))}
    likelihood = prediction.likelihood
    if isinstance(likelihood, Categorical):
        probs = prediction.log_probs.exp()
        ece = multiclass_calibration_error(probs, y, probs.shape[-1], n_bins=_BINS)
        values["accuracy"] = metrics.accuracy(probs, y)
        values["brier"] = metrics.brier(probs, y)
        values["ece"] = Estimate(float(ece), 0.0)
        values["entropy"] = metrics.average(prediction.entropy)
        values["mutual_information"] = metrics.average(prediction.mutual_information)
    elif isinstance(likelihood, Bernoulli):
        right = (prediction.labels == y).double()
        values["accuracy"] = metrics.average(right.reshape(len(right), -1).mean(-1))
    else:
        error = (prediction.mean - y).square()
        values["squared_error"] = metrics.average(error.reshape(len(error), -1).mean(-1))
    return values
