"""What a trained run loses when its standard deviations get a lower rank."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from leanbayes.analysis.spectrum import is_matrix, spectrum
from leanbayes.lab.evaluation import evaluate
from leanbayes.lab.runs import Run
from leanbayes.lab.train import provenance
from leanbayes.models.random_maps import random_maps
from leanbayes.training.parameter_groups import count_parameters
from research.papers.k_tied.low_rank_scales import to_k_tied, truncate
from research.publishing.rounding import rounded

_SHARES = 10
_MAP = 64


def compress_run(
    run: str | Path,
    ranks: Sequence[int] = (1, 2, 3),
    *,
    include: Sequence[str] = ("**",),
    samples: int = 100,
    progress: bool = False,
) -> dict[str, Any]:
    """Evaluate a finished run, its truncations [k-tied, Table 2] and its k-tied versions.

    Returns:
        ``rows`` of metrics and parameter counts by ``full``, ``truncated k`` and ``tied k``;
        ``spectra`` (the first shares of each layer) and ``maps`` (standard deviations of every
        layer, at most 64 rows and columns of them); and what a result has to say of itself.
    """
    started, source = time.monotonic(), Run(run)
    source.check_result()
    model, likelihood = source.load()
    judged = partial(
        evaluate,
        examples=source.dataset.test,
        likelihood=likelihood,
        data_size=source.data_size,
        **source.drawing(samples),
    )
    changes: dict[str, Callable[[], nn.Module]] = {"full": lambda: model}
    for rank in ranks:
        changes[f"truncated {rank}"] = partial(truncate, model, rank, include=include)
        changes[f"tied {rank}"] = partial(to_k_tied, model, rank, include=include)
    rows = {}
    for name, change in track(changes.items(), "Ranks", disable=not progress):
        changed = change()
        rows[name] = {"metrics": judged(changed), "parameters": count_parameters(changed).total}
    return {
        "name": source.recipe.name,
        "include": list(include),
        "samples": samples,
        "rows": rows,
        **_standard_deviations(model),
        **provenance(source.recipe),
        "seconds": time.monotonic() - started,
    }


def _standard_deviations(model: nn.Module) -> dict[str, Any]:
    """Return shares of singular values and small maps of every layer."""
    spectra = {
        name: {"scale": rounded(shares.scale, 4), "mean": rounded(shares.mean, 4)}
        for name, shares in spectrum(model, most=_SHARES).items()
    }
    maps = {
        name: rounded(thin(layer.posterior().variance.sqrt()), 4)
        for name, layer in random_maps(model)
        if is_matrix(layer) and layer.members == 1
    }
    return {"spectra": spectra, "maps": maps}


def thin(matrix: Tensor, most: int = _MAP) -> Tensor:
    """Return evenly chosen rows and columns, at most so many of each.

    Example:
        >>> thin(torch.arange(12.0).view(3, 4), 2)
        tensor([[ 0.,  3.],
                [ 8., 11.]])
    """
    rows, columns = (
        torch.linspace(0, size - 1, min(size, most)).round().long() for size in matrix.shape
    )
    return matrix[rows][:, columns]
