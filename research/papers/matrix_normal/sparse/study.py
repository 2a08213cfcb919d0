"""The study of one sparse run: what thresholds leave of it, and how good that is."""

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import nn

from leanbayes.analysis.log_alpha import scaled_layers
from leanbayes.analysis.sparsity import sparsity_report
from leanbayes.compression.prune import Groups, prune
from leanbayes.errors import require
from leanbayes.lab.data import Examples
from leanbayes.lab.evaluation import evaluate
from leanbayes.lab.runs import Run
from leanbayes.lab.train import provenance
from leanbayes.layers import RandomMap
from leanbayes.likelihoods import Likelihood
from research.publishing.rounding import rounded

LOG_ALPHA = 3.0
"""What becomes zero by default: log α of 3 and more, as in sparse variational dropout."""
LOG_ALPHAS = (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
"""The thresholds of a sweep."""
GROUPS: Mapping[str, Groups] = {"weights": "weight", "rows": "row", "columns": "column"}
_METRICS = ("accuracy", "nll", "average_nll", "kl", "negative_elbo")


def relevance_of(log_alpha: float) -> float:
    """Return ``1 / (1 + α)``: the relevance of a weight with this log α.

    Example:
        >>> relevance_of(0.0)
        0.5
    """
    return 1 / (1 + math.exp(log_alpha))


class Judge:
    """Measures networks on the same examples with the same noise."""

    def __init__(self, run: Run, likelihood: Likelihood, samples: int, examples: Examples) -> None:
        self.data_size, self.likelihood, self.examples = run.data_size, likelihood, examples
        self.drawing = run.drawing(samples)

    def __call__(self, model: nn.Module) -> dict[str, dict[str, float]]:
        """Return accuracy, NLL, KL and −ELBO of an example, with standard errors."""
        values = evaluate(
            model, self.examples, self.likelihood, data_size=self.data_size, **self.drawing
        )
        return {name: values[name] for name in _METRICS if name in values}


def study_sparsity(
    run: str | Path,
    *,
    samples: int = 5,
    images: int | None = None,
    log_alphas: Sequence[float] = LOG_ALPHAS,
    progress: bool = False,
) -> dict[str, Any]:
    """Set to zero what has no relevance, at several thresholds, and judge what is left.

    Returns:
        ``whole`` (the network as it was trained), ``sweep`` (what each threshold leaves of single
        weights, and how good that is), ``groups`` (weights, rows and columns that are left of
        every layer at log α = 3, each zeroed alone), ``noise`` (the median standard deviation of
        every layer, and its total correlation in nats), and what a result has to say of itself.
    """
    source = Run(run)
    source.check_result()
    model, likelihood = source.load()
    require(
        source.recipe.posterior is not None and source.dataset.task == "classification",
        f"{source.folder} has no random weights or no classes; give a run of a Bayesian classifier",
    )
    test, started = source.dataset.test[:images], time.monotonic()
    judge = Judge(source, likelihood, samples, test)
    thresholds = track(sorted(log_alphas), "Thresholds", disable=not progress)
    return {
        "name": source.recipe.name,
        "images": len(test),
        "samples": samples,
        "data_size": source.data_size,
        "log_alpha": LOG_ALPHA,
        "whole": judge(model),
        "sweep": [_at(model, log_alpha, judge) for log_alpha in thresholds],
        "groups": {name: _of_groups(model, name, judge) for name in GROUPS},
        "noise": {name: _noise(layer) for name, layer in scaled_layers(model).items()},
        "epochs": source.result.get("epochs"),
        **provenance(source.recipe),
        "duration": round(time.monotonic() - started, 2),
    }


def _at(model: nn.Module, log_alpha: float, judge: Judge) -> dict[str, Any]:
    """Return what one threshold leaves of single weights."""
    pruned = _pruned(model, "weight", log_alpha)
    left, of = sparsity_report(pruned or model).total.weights
    return {
        "log_alpha": log_alpha,
        "weights": [left if pruned is not None else 0, of],
        **({} if pruned is None else judge(pruned)),
    }


def _of_groups(model: nn.Module, kind: str, judge: Judge) -> dict[str, Any]:
    """Return what is left of every layer if single weights, rows or columns go at log α = 3."""
    pruned = _pruned(model, GROUPS[kind], LOG_ALPHA)
    report = sparsity_report(pruned or model)
    layers = {row.name: list(getattr(row, kind)) for row in report.layers}
    if pruned is None:
        return {"layers": {name: [0, of] for name, (_, of) in layers.items()}}
    return {"layers": layers, **judge(pruned)}


@torch.no_grad()
def _noise(layer: RandomMap) -> dict[str, float]:
    """How far weights scatter, and how much the entropy lacks of that of independent weights.

    The second is the total correlation ``Σ ½ log 2πe σ² − H(q)``; of MN+Diagonal, whose entropy is
    a lower bound, it is an upper one.
    """
    q = layer.posterior()
    apart = 0.5 * (q.variance.double().log() + math.log(2 * math.pi * math.e)).sum()
    return {
        "scale": rounded(float(q.variance.sqrt().median())),
        "total_correlation": rounded(float(apart - q.entropy().double())),
    }


def _pruned(model: nn.Module, groups: Groups, log_alpha: float) -> nn.Module | None:
    """Return a pruned copy; ``None`` if nothing would be left."""
    with empty_layers_allowed():
        try:
            return prune(model, "relevance", groups=groups, threshold=relevance_of(log_alpha))
        except ValueError as error:
            if "would prune every weight" not in str(error):
                raise
            return None


@contextmanager
def empty_layers_allowed() -> Iterator[None]:
    """A layer that keeps nothing is a result here, and no mistake to warn of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(keeps no weight|is a variance layer).*")
        yield
