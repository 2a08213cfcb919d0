"""The study of one trained run, part after part, as one value that can be written to a file."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import track
from torch import nn

from leanbayes.analysis.log_alpha import alpha_report
from leanbayes.errors import require
from leanbayes.lab.data import Examples
from leanbayes.lab.runs import Run
from leanbayes.lab.train import provenance
from research.papers.variance import measures
from research.papers.variance.densities import densities
from research.papers.variance.split_at_noise import cut, draws, has_dropout, with_batch_statistics
from research.papers.variance.trained import Trained

Parts = dict[str, Callable[[], Any]]

_PUBLISHED_BATCH = 200


def study_run(
    run: str | Path,
    *,
    samples: int = 20,
    draws: int = 200,
    images: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Measure what a trained classifier knows by its means, its noise and its scales.

    Returns:
        ``accuracy``, ``batch_statistics`` (the same with normalization in training mode, as the
        published code has it), ``elbo`` and ``histogram``; of random layers also ``alphas``,
        ``pruning``, ``densities``, ``controls`` and ``antithetic``; ``None`` where a part does not
        apply; and what a result has to say of itself.
    """
    source = Run(run)
    source.check_result()
    model, likelihood = source.load()
    dataset = source.dataset
    require(
        dataset.task == "classification",
        f"{source.folder} is a run of {dataset.task}, and accuracies are studied here; give one "
        "of a classifier",
    )
    test = dataset.test[:images]
    trained = Trained.of(model, test, likelihood, samples=samples, seed=source.recipe.seed)
    parts = _parts(model, trained, source.training_examples, test, draws)
    values, seconds = _measured(parts, progress)
    return {
        "name": source.recipe.name,
        "noise": _noise(trained),
        "images": len(test),
        "data": dataset.preprocessing,
        "samples": samples,
        **values,
        "epochs": source.result.get("epochs"),
        **provenance(source.recipe),
        "seconds": seconds,
    }


def _measured(parts: Parts, progress: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """Return every part, and the seconds that it took."""
    values: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for name, measure in track(parts.items(), "Parts", disable=not progress):
        started = time.monotonic()
        values[name] = measure()
        seconds[name] = round(time.monotonic() - started, 2)
    return values, seconds


def _noise(trained: Trained) -> str:
    """Return what draws: random ``weights``, ``dropout``, or ``none``."""
    if draws(trained.rest):
        return "weights"
    return "dropout" if has_dropout(trained.rest) else "none"


def _parts(
    model: nn.Module, trained: Trained, train: Examples, test: Examples, draws_: int
) -> Parts:
    parts: Parts = {
        "accuracy": partial(measures.accuracies, trained),
        "batch_statistics": partial(_as_published, model, trained, test),
        "elbo": partial(measures.elbo, trained, cut(model).before, train),
        "histogram": partial(measures.histograms, trained, draws_),
    }
    if not draws(trained.rest):
        return parts
    report = alpha_report(trained.rest)
    with_scales = [row.name for row in report.rows if not row.name.endswith("bias")]
    layers = [name for name in with_scales if name in report.variance_layers] or with_scales
    return parts | {
        "alphas": partial(measures.alphas, report, trained.rest),
        "pruning": partial(measures.pruning, trained, layers),
        "densities": partial(densities, trained, layers[-1]),
        "controls": partial(measures.controls, trained, layers),
        "antithetic": partial(measures.antithetic, trained),
    }


def _as_published(model: nn.Module, trained: Trained, test: Examples) -> dict[str, Any] | None:
    """Return accuracies with normalization in training mode, in batches of 200."""
    changed = with_batch_statistics(model)
    if changed is None:
        return None
    again = Trained.of(
        changed,
        test,
        trained.likelihood,
        samples=trained.samples,
        seed=trained.seed,
        batch_size=_PUBLISHED_BATCH,
    )
    return {"batch_size": _PUBLISHED_BATCH, **measures.accuracies(again)}
