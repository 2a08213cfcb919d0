"""Latent numbers that an auto-encoder uses: those whose posterior mean moves with the image."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leanbayes.lab.data import Dataset
from leanbayes.lab.provenance import environment_facts
from research.papers.matrix_normal.vae.folder import VaeFolder
from research.papers.matrix_normal.vae.judge import file_name
from research.papers.matrix_normal.vae.settings import commands
from research.papers.matrix_normal.vae.train import load_images
from research.publishing.cells import Cell, averaged, seeds_of
from research.publishing.paper_blocks import OwnBlocks
from research.publishing.rounding import rounded
from research.publishing.study_file import StudyFile, Tell, read_study
from research.publishing.tables import markdown_table

USED = 0.01
"""Variance of a posterior mean over images from which on a latent number counts as used."""
FILE = Path("studies") / "latent_use.json"
COMMAND = "papers latent-use"


def study_latent_use(
    runs: Sequence[Path], out: Path, *, dataset: Dataset | None = None, tell: Tell | None = None
) -> dict[str, Any]:
    """Measure which latent numbers trained auto-encoders use, on all test images."""
    parts = {
        file_name(VaeFolder(run).settings): partial(_use, VaeFolder(run), dataset) for run in runs
    }
    return StudyFile(out, "latent use", {"used_from": USED}).fill(parts, tell)


@torch.no_grad()
def _use(run: VaeFolder, dataset: Dataset | None) -> dict[str, Any]:
    settings, model = run.settings, run.load()
    images = (dataset or load_images(settings)).test
    means = torch.cat([model.posterior(x).mean for x in images.x.split(500)])
    variances = means.var(0).sort(descending=True).values
    return {
        "settings": settings.to_json(),
        "images": len(images),
        "variances": [rounded(float(value), 4) for value in variances],
        "used": int((variances > USED).sum()),
        **environment_facts(),
    }


def latent_use_blocks(results: Path) -> OwnBlocks:
    """Return the block ``latent-use``; a claim names ``latent/40-diag used`` or ``… share``."""
    file = results / FILE

    def by_row() -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for name, part in read_study(file, COMMAND)["parts"].items():
            found.setdefault(name.rpartition("-seed")[0], []).append(part)
        return found

    def cell(name: str, column: str) -> Cell:
        parts = by_row().get(name, [])
        used = [float(part["used"]) for part in parts]
        numbers = [float(len(part["variances"])) for part in parts]
        return averaged({"used": used, "share": _ratios(used, numbers)}[column])

    def table(_: str) -> str:
        header = ["encoder", "run", "latent numbers", "used", "least and largest variance"]
        rows = by_row()
        shown = markdown_table(header, (_line(name, parts) for name, parts in rows.items()))
        trained = [part["settings"] for parts in rows.values() for part in parts]
        return "\n\n".join((shown, commands(trained, f"{COMMAND} runs/vae-*")))

    return OwnBlocks(tables={"latent-use": table}, cells={"latent": cell})


def _ratios(parts: Sequence[float], wholes: Sequence[float]) -> list[float]:
    return [part / whole for part, whole in zip(parts, wholes, strict=True)]


def _line(name: str, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    settings = parts[0]["settings"]
    run = f"{seeds_of([p['settings']['seed'] for p in parts])}, {settings['epochs']} epochs"
    variances = [value for part in parts for value in part["variances"]]
    used = " and ".join(str(part["used"]) for part in parts)
    spread = f"{min(variances):.2g} and {max(variances):.2g}"
    return [name, run, str(len(parts[0]["variances"])), used, spread]
