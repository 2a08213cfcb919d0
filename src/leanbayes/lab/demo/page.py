"""The page that ends the demo: all families in one table, two of them looked at closely."""

from collections.abc import Sequence
from pathlib import Path

from leanbayes.lab import plots
from leanbayes.lab.demo.columns import Column, columns, legend
from leanbayes.lab.demo.conclusions import conclusions
from leanbayes.lab.demo.families import CLOSELY, FAMILIES, Settings
from leanbayes.lab.demo.results import Result
from leanbayes.lab.report import write_report
from leanbayes.lab.report.html import Html, element, figure, grid, join, section, table


def write_page(
    results: Sequence[Result], settings: Settings, folder: Path, out: Path, *, seconds: float
) -> Path:
    """Write the page, with the whole report of the runs of the families in ``CLOSELY``."""
    names = {result.name for result in results} & set(CLOSELY)
    families = [family for family in FAMILIES if family.name in names]
    recipes = [each for family in families for each in family.recipes(settings, settings.seed)]
    return write_report(
        [folder / recipe.name for recipe in recipes],
        out,
        title="leanbayes: the demo",
        opening=[
            _conclusions(results),
            _introduction(settings),
            _families(results, settings, seconds),
            _runs([recipe.name for recipe in recipes], settings),
        ],
        overview=False,
    )


def _conclusions(results: Sequence[Result]) -> Html:
    said = [element("li", sentence) for sentence in conclusions(results)]
    return section("What came out", element("ul", join(said)))


def _introduction(settings: Settings) -> Html:
    return element(
        "p",
        "A perceptron 64-128-128-10 learns the 1797 handwritten digits of scikit-learn, split once "
        "into 1257 images for training, 180 for validation and 360 for test, for every family of "
        f"posteriors that leanbayes knows, with {settings.named_seeds} of weights, batches and "
        "noise. Families of one seed start from the same weights and see the same batches. "
        f"The KL has a weight of {settings.kl_weight:g}, so all posteriors are cold; rate and "
        "epochs were chosen with test scores in sight.",
    )


def _families(results: Sequence[Result], settings: Settings, seconds: float) -> Html:
    shown = columns(results)
    detection = [column for column in shown if column.title.startswith("AUROC")]
    others = [column for column in shown if column not in detection]
    return section(
        "Families",
        _figures(results),
        _table(results, others, f"All families on the test images, with {settings.named_seeds}."),
        _table(results, detection, "How well they tell foreign images from the test images."),
        element("p", legend(results, settings, seconds)),
    )


def _table(results: Sequence[Result], shown: Sequence[Column], caption: str) -> Html:
    header = ["Family", *(column.title for column in shown)]
    rows = [
        [r.name, *(column.text(r) + column.more(r) + column.mark(r).strip() for column in shown)]
        for r in results
    ]
    return table(header, rows, caption)


def _figures(results: Sequence[Result]) -> Html:
    reference, *others = results
    gaps = {other.name: other.minus(reference, "nll") for other in others}
    figures = [
        figure(
            plots.estimates(
                {name: (gap.value, 2 * gap.error) for name, gap in gaps.items()},
                f"NLL − {reference.name}",
                zero=True,
            ),
            f"Test NLL less that of the {reference.name} network, paired by seed and image, "
            "± two standard errors; less is better.",
        )
    ]
    for kind, told in (("inverted", "inverted images"), ("shuffled", "images of shuffled pixels")):
        scores = {r.name: r.score(f"auroc_{kind}") for r in results}
        figures.append(
            figure(
                plots.estimates(
                    {name: (score.value, 2 * score.error) for name, score in scores.items()},
                    f"AUROC, {kind}",
                ),
                f"How well the entropy of a prediction tells {told} from digits, ± two standard "
                "errors; 0.5 is chance, 1 tells all apart.",
            )
        )
    return grid(figures)


def _runs(names: Sequence[str], settings: Settings) -> Html:
    """Which runs follow, and how their scores belong to those of the table."""
    averaged = f"; the tables above average {settings.named_seeds}" if settings.seeds > 1 else ""
    return element(
        "p",
        f"What follows is {' and '.join(names)}: seed {settings.seed} alone, judged on the same "
        f"test images{averaged}. Learning curves are of training and validation images.",
    )
