"""The page that ends the demo: all families in one table, two of them looked at closely."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from leanbayes.lab import plots
from leanbayes.lab.demo import FAMILIES, Family, Result, Settings, legend
from leanbayes.lab.recipe import (
    Architecture,
    Data,
    Evaluation,
    KLSchedule,
    LearningRate,
    Optimizer,
    Recipe,
    Training,
)
from leanbayes.lab.report import write_report
from leanbayes.lab.report.html import Html, element, figure, grid, section, table
from leanbayes.lab.train import train

__all__ = ["CLOSELY", "recipe", "write_page"]

CLOSELY = ("k-tied, rank 2", "dropout additive, log-unif.")
"""The families that are trained again, as runs of the laboratory."""

_COLUMNS = ("Family", "Accuracy", "NLL", "Brier score", "ECE", "AUROC inverted", "AUROC shuffled")
_COSTS = ("Parameters", "Step cost")


def recipe(family: Family, settings: Settings) -> Recipe:
    """What ``leanbayes train`` would be given to train a family of the demo.

    Example:
        >>> recipe(FAMILIES[3], Settings()).posterior
        MeanField(scale=0.05)
    """
    name = re.sub(r"\W+", "-", family.name).strip("-")
    return Recipe(
        name=f"digits-{name}",
        data=Data(name="digits"),
        architecture=Architecture(name="mlp", options={"inputs": 64, "hidden": [128, 128]}),
        posterior=family.posterior,
        prior=family.prior,
        include=family.include,
        optimizer=Optimizer(lr=settings.learning_rate),
        learning_rate=LearningRate(kind="linear"),
        kl=KLSchedule(options={"weight": settings.kl_weight}),
        training=Training(epochs=settings.epochs, batch_size=settings.batch_size),
        evaluation=Evaluation(samples=settings.samples),
        seed=settings.seed,
    )


def write_page(results: Sequence[Result], settings: Settings, out: Path, *, seconds: float) -> Path:
    """Train the families of :data:`CLOSELY` that are among the results, and write the page.

    Args:
        results: what the demo has found.
        settings: what it was run with.
        out: the page.
        seconds: how long it took.
    """
    names = {result.name for result in results} & set(CLOSELY)
    with TemporaryDirectory() as folder:
        runs: list[Path] = []
        for family in FAMILIES:
            if family.name in names:
                runs.append(Path(folder) / f"{len(runs)}")
                train(recipe(family, settings), runs[-1], progress=False)
        return write_report(
            runs,
            out,
            title="leanbayes: the demo",
            opening=[_introduction(), _families(results, settings, seconds)],
        )


def _introduction() -> Html:
    return element(
        "p",
        "A perceptron 64-128-128-10 learns the 1797 handwritten digits of scikit-learn, once for "
        "every family of posteriors that leanbayes knows. The first table compares them. Then "
        "come runs of the laboratory on the same digits, split into 1257 images for training, 180 "
        "for validation and 360 for test, with everything that leanbayes report has to say.",
    )


def _families(results: Sequence[Result], settings: Settings, seconds: float) -> Html:
    compared = table([*_COLUMNS, *_COSTS], [_row(result) for result in results], "All families.")
    figures = grid(
        [
            figure(
                plots.estimates({r.name: (r.nll.value, r.nll.error) for r in results}, "NLL"),
                "Negative log likelihood on 400 test images, ± one standard error; less is better.",
            ),
            figure(
                plots.estimates({r.name: (r.auroc_shuffled, 0.0) for r in results}, "AUROC"),
                "How well the entropy of a prediction tells images with shuffled pixels from "
                "digits; 0.5 is chance, 1 tells all apart.",
            ),
        ]
    )
    return section("Families", compared, element("p", legend(settings, seconds)), figures)


def _row(result: Result) -> list[str]:
    accuracy, cost = result.accuracy, result.step_cost
    return [
        result.name,
        f"{100 * accuracy.value:.1f} ± {100 * accuracy.error:.1f} %",
        f"{result.nll.value:.3f} ± {result.nll.error:.3f}",
        f"{result.brier.value:.3f} ± {result.brier.error:.3f}",
        f"{result.calibration_error:.3f}",
        f"{result.auroc_inverted:.3f}",
        f"{result.auroc_shuffled:.3f}",
        f"{result.parameters:,} ({result.relative_parameters:.2f}×)",
        f"{cost.median:.1f}× ({cost.low:.1f}–{cost.high:.1f})",
    ]
