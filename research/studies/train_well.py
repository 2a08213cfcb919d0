"""Blocks of docs/train_well.md, from the files of two studies."""

from __future__ import annotations

from pathlib import Path

from research.publishing.pages import Makers
from research.publishing.study_file import read_study
from research.studies.defaults.page import makers as default_makers
from research.studies.kl_weight import page as kl_weight


def makers(results: Path) -> Makers:
    """Return what makes every block of the page, from the folder of results."""
    again = results / "defaults_by_library.json"
    weights = kl_weight.read(results / "kl_weight")
    return {
        **default_makers(
            read_study(results / "defaults.json", "studies defaults"),
            read_study(again, "studies defaults") if again.exists() else None,
        ),
        "kl-weight-found": lambda _: kl_weight.summary(kl_weight.cells(weights), weights),
    }
