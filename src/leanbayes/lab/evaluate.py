"""Judge a trained model on examples it has not seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leanbayes import metrics
from leanbayes.lab.data import Examples
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Score
from leanbayes.model import kl, random_maps
from leanbayes.predict import predict

__all__ = ["evaluate"]


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
    values = prediction.metrics(examples.y)
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
