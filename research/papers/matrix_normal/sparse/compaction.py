"""A group-sparse run made smaller: multiply-adds and accuracy, before and after."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from leanbayes.analysis.log_alpha import scaled_layers
from leanbayes.compression.compaction import Compacted, compact
from leanbayes.compression.prune import prune
from leanbayes.conversion.convert import deterministic
from leanbayes.estimators import mean
from leanbayes.lab.runs import Run
from leanbayes.lab.train import provenance
from leanbayes.models.random_maps import using
from leanbayes.prediction.eval_mode import evaluating
from leanbayes.training.parameter_groups import count_parameters
from research.papers.matrix_normal.sparse.study import Judge, empty_layers_allowed, relevance_of

COMPACTED = (2.0, 3.0, 4.0, 5.0, 6.0)
"""Thresholds of log α from which on groups become zero."""
MOST_LOST = 0.005
"""The threshold that is chosen costs at most this much accuracy on training images."""
_TRAINING, _BATCH = 5000, 256


def group_pruned(model: nn.Module, log_alpha: float) -> nn.Module:
    """Set to zero the rows and columns without relevance; outputs of the last layer stay."""
    threshold, layers = relevance_of(log_alpha), list(scaled_layers(model))
    with empty_layers_allowed():
        rows = prune(model, "relevance", groups="row", threshold=threshold, include=layers[:-1])
        return prune(rows, "relevance", groups="column", threshold=threshold, inplace=True)


def smaller(
    model: nn.Module, example: Tensor, log_alpha: float
) -> dict[str, tuple[nn.Module, Compacted[nn.Module]]]:
    """Return the masked network and its compaction, ``bayesian`` and ``plain`` (the means alone).

    Constants of dead units are folded by means in both, so that both lose the same units.
    """
    pruned = group_pruned(model, log_alpha)
    plain = deterministic(pruned)
    return {
        "bayesian": (pruned, compact(pruned, example, exact=False)),
        "plain": (plain, compact(plain, example)),
    }


def study_compaction(
    run: str | Path,
    *,
    samples: int = 20,
    images: int | None = None,
    log_alphas: Sequence[float] = COMPACTED,
    progress: bool = False,
) -> dict[str, Any]:
    """Compact a trained network at several thresholds, and judge it before and after.

    Returns:
        ``whole`` by kind of network, ``sweep`` with sizes, accuracy and the largest difference
        between masked and smaller outputs by threshold and kind, ``log_alpha``, the lowest of the
        thresholds that costs the means no more than half a point of accuracy on training images,
        and what a result has to say of itself.
    """
    source = Run(run)
    source.check_result()
    model, likelihood = source.load()
    started, test = time.monotonic(), source.dataset.test[:images]
    seen = Judge(source, likelihood, 1, source.training_examples[:_TRAINING])
    judges = {kind: Judge(source, likelihood, n, test) for kind, n in _samples(samples).items()}
    whole = {"bayesian": model, "plain": deterministic(model)}
    sweep = []
    for log_alpha in track(sorted(log_alphas), "Thresholds", disable=not progress):
        found = smaller(model, test[:_BATCH].x, log_alpha)
        point = {kind: _compared(*found[kind], test[:_BATCH].x, judges[kind]) for kind in found}
        learned = seen(found["plain"][1].model)["accuracy"]["value"]
        sweep.append({"log_alpha": log_alpha, "learned": learned, **point})
    learned = seen(whole["plain"])["accuracy"]["value"]
    return {
        "name": source.recipe.name,
        "images": len(test),
        "samples": samples,
        "log_alpha": _chosen(sweep, learned),
        "learned": learned,
        "whole": {kind: judges[kind](network) for kind, network in whole.items()},
        "parameters": {kind: _size(network) for kind, network in whole.items()},
        "sweep": sweep,
        "epochs": source.result.get("epochs"),
        **provenance(source.recipe),
        "duration": round(time.monotonic() - started, 2),
    }


def _samples(samples: int) -> dict[str, int]:
    """Return how many draws a prediction takes, by kind of network."""
    return {"bayesian": samples, "plain": 1}


def _chosen(sweep: Sequence[Mapping[str, Any]], learned: float) -> float:
    """The lowest threshold that costs little on training images; the highest, if all cost more."""
    good = [p["log_alpha"] for p in sweep if p["learned"] >= learned - MOST_LOST]
    return float(min(good, default=max(p["log_alpha"] for p in sweep)))


def _compared(
    masked: nn.Module, made: Compacted[nn.Module], example: Tensor, judge: Judge
) -> dict[str, Any]:
    small, report = made
    return {
        "multiply_adds": list(report.multiply_adds or ()),
        "parameters": _size(small),
        "layers": {row.name: [list(row.before), list(row.after)] for row in report.layers},
        "kept": [str(kept) for kept in report.kept],
        "difference": _difference(masked, small, example),
        **judge(small),
    }


def _size(model: nn.Module) -> int:
    return sum(count_parameters(model))


@torch.no_grad()
def _difference(masked: nn.Module, small: nn.Module, example: Tensor) -> float:
    """Return the largest difference of outputs on means, relative to the largest output."""
    outputs = []
    for model in (masked, small):
        with evaluating(model), using(model, mean):
            outputs.append(model(example))
    return float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max())
