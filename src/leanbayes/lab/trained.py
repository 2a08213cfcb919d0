"""Finished runs: evaluate them again, on other or on damaged data."""

from __future__ import annotations

from pathlib import Path

from leanbayes.lab.corrupt import corrupt_examples
from leanbayes.lab.data import load
from leanbayes.lab.evaluate import evaluate
from leanbayes.lab.predictions import load_run
from leanbayes.lab.run import load_data

__all__ = ["evaluate_run"]


def evaluate_run(
    folder: str | Path,
    *,
    samples: int = 100,
    data: str | None = None,
    corrupt: str | None = None,
    severity: int = 3,
) -> dict[str, dict[str, float]]:
    """Evaluate a finished run again: with other samples, on other data, on corrupted images.

    Args:
        folder: the run folder.
        samples: how many predictive samples.
        data: another data set, or a CSV or NPZ file; the run's own if not given.
        corrupt: name of a corruption of the test images.
        severity: how strong it is, from 1 to 5.
    """
    recipe, model, likelihood = load_run(folder)
    dataset = load_data(recipe) if data is None else load(data)
    examples = dataset.test
    if corrupt is not None:
        examples = corrupt_examples(examples, corrupt, severity, seed=recipe.seed)
    return evaluate(
        model,
        examples,
        likelihood,
        samples=samples,
        batch_size=recipe.evaluation.batch_size,
        seed=recipe.seed,
        data_size=len(dataset.train[: recipe.training.limit]) if data is None else None,
    )
