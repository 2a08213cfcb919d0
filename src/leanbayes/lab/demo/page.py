"""The page that ends the demo: the verdict, all methods in one table, and three figures."""

from collections.abc import Sequence
from pathlib import Path

from leanbayes.lab import plots
from leanbayes.lab.demo.families import Settings
from leanbayes.lab.demo.results import Result, is_significant, verdict
from leanbayes.lab.files import write_text
from leanbayes.lab.report.html import element, figure, grid, join, page, section, table

HEADINGS = ("method", "acc. %", "NLL", "ECE", "AUROC inv.", "AUROC shuf.", "size")


def rows(results: Sequence[Result]) -> list[list[str]]:
    """Return the cells of the table."""
    return [
        [
            result.name,
            _cell(result, results[0], "accuracy", 1, 100),
            _cell(result, results[0], "nll"),
            f"{result.calibration_error:.3f}",
            _cell(result, results[0], "auroc_inverted"),
            _cell(result, results[0], "auroc_shuffled"),
            f"{result.parameters:,}",
        ]
        for result in results
    ]


def _cell(
    result: Result, reference: Result, metric: str, digits: int = 3, factor: float = 1.0
) -> str:
    star = "*" if is_significant(result.minus(reference, metric)) else " "
    return f"{factor * result.score(metric).value:.{digits}f}{star}"


def legend(results: Sequence[Result], settings: Settings, seconds: float) -> str:
    """Return what the numbers of the table mean, and what they depend on."""
    seeds = ", ".join(map(str, settings.all_seeds))
    return (
        f"* differs from {results[0].name} by more than two standard errors, paired by image and "
        "seed. AUROC: detection of inverted (inv.) or pixel-shuffled (shuf.) images by entropy. "
        "Size: parameters. Settings are the defaults of lb.fit; validation images choose the "
        "epoch and the dropout rate. "
        f"Means over seeds {seeds}; {settings.epochs} epochs, {settings.samples} samples per "
        f"prediction, {seconds:.0f} s."
    )


def write_page(results: Sequence[Result], settings: Settings, out: Path) -> Path:
    """Write the page, and return its path."""
    seconds = sum(result.seconds for result in results)
    figures = []
    for metric, label, better in (
        ("nll", "NLL", "less is better"),
        ("auroc_inverted", "AUROC, inverted images", "1 is perfect"),
        ("auroc_shuffled", "AUROC, shuffled images", "1 is perfect"),
    ):
        scores = {result.name: result.score(metric) for result in results}
        ends = {name: (score.value, 2 * score.error) for name, score in scores.items()}
        line = results[0].score(metric).value
        with plots.vector():
            drawn = plots.estimates(ends, label, reference=line, most=metric != "nll")
        dashed = f"Dashed: {results[0].name}."
        figures.append(figure(drawn, f"{label} ± two standard errors; {better}. {dashed}"))
    body = [
        element("h1", "leanbayes: the demo"),
        element("p", verdict(results), class_="verdict"),
        section(
            "Methods",
            table(HEADINGS, rows(results), "Scores of 360 test images."),
            element("p", legend(results, settings, seconds)),
            grid(figures),
        ),
        section(
            "Setup",
            element(
                "p",
                "A perceptron of two hidden layers learns the 1,797 digits of scikit-learn: 1,257 "
                "images for training, 180 for validation and 360 for test. Methods with one seed "
                "start from the same weights and see the same batches.",
            ),
        ),
        section(
            "Next steps",
            element("p", "Your data: ", element("code", "leanbayes new YOUR.csv")),
            element("p", "Larger networks: ", element("code", "leanbayes recipes")),
        ),
    ]
    return write_text(out, page("leanbayes: the demo", join(body)))
