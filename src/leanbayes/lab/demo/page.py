"""The page that ends the demo: all families in one table, two of them looked at closely."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from leanbayes.lab import plots
from leanbayes.lab.demo.families import CLOSELY, FAMILIES, Settings
from leanbayes.lab.demo.results import COLUMNS, Result, legend
from leanbayes.lab.report import write_report
from leanbayes.lab.report.html import Html, element, figure, grid, section, table

__all__ = ["write_page"]


def write_page(
    results: Sequence[Result], settings: Settings, folder: Path, out: Path, *, seconds: float
) -> Path:
    """Write the page, with all that ``leanbayes report`` says about the families of ``CLOSELY``.

    Args:
        results: what came out.
        settings: what it was run with.
        folder: where the run folders lie.
        out: the page.
        seconds: how long it took.
    """
    names = {result.name for result in results} & set(CLOSELY)
    families = [family for family in FAMILIES if family.name in names]
    return write_report(
        [folder / recipe.name for family in families for recipe in family.recipes(settings)],
        out,
        title="leanbayes: the demo",
        opening=[_introduction(), _families(results, settings, seconds)],
    )


def _introduction() -> Html:
    return element(
        "p",
        "A perceptron 64-128-128-10 learns the 1797 handwritten digits of scikit-learn, split into "
        "1257 images for training, 180 for validation and 360 for test, once for every family of "
        "posteriors that leanbayes knows. The first table compares them. Then come some of these "
        "runs with everything that leanbayes report has to say.",
    )


def _families(results: Sequence[Result], settings: Settings, seconds: float) -> Html:
    header = ["Family", *(column.title for column in COLUMNS)]
    rows = [[r.name, *(column.text(r) + column.more(r) for column in COLUMNS)] for r in results]
    compared = table(header, rows, "All families.")
    figures = grid(
        [
            figure(
                plots.estimates({r.name: (r.nll.value, r.nll.error) for r in results}, "NLL"),
                "Negative log likelihood on 360 test images, ± one standard error; less is better.",
            ),
            figure(
                plots.estimates({r.name: (r.auroc_shuffled, 0.0) for r in results}, "AUROC"),
                "How well the entropy of a prediction tells images with shuffled pixels from "
                "digits; 0.5 is chance, 1 tells all apart.",
            ),
        ]
    )
    return section("Families", compared, element("p", legend(settings, seconds)), figures)
