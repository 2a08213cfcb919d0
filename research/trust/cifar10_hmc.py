"""CIFAR-10 runs against the public predictions of long HMC chains (Izmailov et al., 2021)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.lab.data.search import own_folders
from leanbayes.lab.provenance import environment_facts
from leanbayes.lab.runs import Run
from research.publishing.study_file import StudyFile, Tell
from research.trust.gold.compare import agreement, total_variation

FILE = Path("cifar-10-hmc") / "probs.npz"
PUBLISHED = {"deep ensemble": (0.917, 0.104), "SGLD": (0.918, 0.106), "SGHMC": (0.922, 0.105)}
"""Agreement and total variation of Izmailov et al. (2021), of the network that HMC sampled."""


def hmc_probs() -> Tensor:
    """Class probabilities of HMC on the test images, ``[10000, 10]``."""
    for folder in own_folders():
        if (folder / FILE).is_file():
            try:
                with np.load(folder / FILE, allow_pickle=False) as file:
                    return torch.from_numpy(file["probs"]).double()
            except (zipfile.BadZipFile, KeyError, ValueError) as error:
                raise ValueError(f"{folder / FILE} does not hold an array probs") from error
    raise FileNotFoundError(
        f"{FILE} was not found; put the predictions of HMC there, and name the folder above it in "
        "LEANBAYES_DATA"
    )


def against_hmc(run: Run, samples: int | None = None) -> dict[str, float]:
    """Agreement and total variation of a finished CIFAR-10 run on the test images."""
    if run.dataset.name != "cifar-10":
        raise ValueError(f"{run.folder} is of {run.dataset.name}; HMC predictions are of cifar-10")
    gold = hmc_probs()
    model, likelihood = run.load()
    examples = run.dataset.test
    if len(examples) != len(gold):
        raise ValueError(f"{run.folder} has {len(examples)} test images instead of {len(gold)}")
    drawing = run.drawing(samples)
    parts = lb.predict_batches(model, examples.x, likelihood=likelihood, **drawing)
    probs = torch.cat([part.probs.double() for part in parts])
    return {
        "agreement": agreement(probs, gold),
        "total_variation": total_variation(probs, gold),
        "accuracy": float((probs.argmax(-1) == examples.y).double().mean()),
        "hmc_accuracy": float((gold.argmax(-1) == examples.y).double().mean()),
    }


def study(folders: list[Path], out: Path, tell: Tell) -> dict[str, Any]:
    """Compare every run, by the name of its recipe."""
    runs = {Run(folder).recipe.name: Run(folder) for folder in folders}

    def part(run: Run) -> Mapping[str, Any]:
        return {**against_hmc(run), **environment_facts()}

    file = StudyFile(out, "agreement with HMC on CIFAR-10", {})
    return file.fill({name: lambda run=run: part(run) for name, run in runs.items()}, tell)  # type: ignore[misc]
