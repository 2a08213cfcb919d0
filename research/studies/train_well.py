"""Blocks of docs/train_well.md, from the files of two studies."""

from pathlib import Path

from research.publishing.pages import Makers
from research.publishing.study_file import read_study
from research.studies.defaults.page import makers as default_makers
from research.studies.kl_weight import page as kl_weight
from research.studies.leaderboard.variants import makers as variant_makers


def makers(results: Path) -> Makers:
    """Return what makes every block of the page, from the folder of results."""
    weights = kl_weight.read(results / "kl_weight")
    return {
        **default_makers(read_study(results / "defaults.json", "page studies")),
        **variant_makers(read_study(results / "variants.json", "studies variants")),
        "kl-weight-found": lambda _: kl_weight.summary(kl_weight.cells(weights), weights),
    }
