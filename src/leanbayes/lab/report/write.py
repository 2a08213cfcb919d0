"""Put the sections of all runs on one page."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from leanbayes.lab import plots
from leanbayes.lab.files import write_text
from leanbayes.lab.report.html import Html, element, figure, join, page, section, table
from leanbayes.lab.report.numbers import METRICS, number, with_error
from leanbayes.lab.report.study import SECTIONS, study
from leanbayes.lab.runs import Run

from leanbayes.lab.report import summary, curves, classes, regression, weights, facts  # noqa: F401  # isort: skip

_COMPARED = {"negative_elbo", "nll", "accuracy", "brier", "ece"}
_COMPARED |= {"auroc", "auc_pr", "squared_error"}


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    tell: Callable[[str], object] = lambda problem: None,
) -> Path:
    """Write one HTML page about run folders, which needs no other file and no network.

    A damaged or missing part of a run costs its sections, and a sentence says so. Another
    folder raises an error before anything is written.

    Args:
        runs: folders that :func:`leanbayes.lab.train.train` has written, finished or not.
        out: the page.
        title: its heading, if not the names of the runs.
        tell: is given every sentence about a damaged or missing part.

    Returns:
        The path of the page.
    """
    if not runs:
        raise ValueError("there is nothing to report; give one or more run folders")
    folders = [Run(path) for path in runs]
    names = [folder.recipe.name for folder in folders]
    title = title or f"leanbayes: {', '.join(names) if len(names) < 4 else f'{len(names)} runs'}"
    parts = [element("h1", title)]
    if len(folders) > 1:
        with plots.vector():
            parts += [_contents(names), _overview(folders)]
    with plots.vector():
        parts += [_run(folder, index, tell) for index, folder in enumerate(folders)]
    parts.append(element("footer", "Written by leanbayes. This page needs no network."))
    return write_text(out, page(title, join(parts)))


def _contents(names: Sequence[str]) -> Html:
    links = [element("a", name, href=f"#run-{index}") for index, name in enumerate(names)]
    items = element("ul", join(element("li", link) for link in links))
    return element("nav", items, **{"aria-label": "Runs"})


def _overview(folders: Sequence[Run]) -> Html:
    """Return all runs in one table, each followed by the published row it stands for."""
    measured = {name for folder in folders for name in folder.metrics}
    names = [name for name in METRICS if name in measured & _COMPARED]
    rows = []
    for folder in folders:
        ours = folder.metrics
        cells = [with_error(ours[name]) if name in ours else "–" for name in names]
        rows.append([folder.recipe.name, *cells])
        published = folder.recipe.published
        if published is not None:
            values = published.values
            cells = [number(values[name]) if name in values else "–" for name in names]
            rows.append([f"published: {published.row}", *cells])
    header = ["Run", *(METRICS[name] for name in names)]
    caption = "All runs on their test sets, ± one standard error over examples."
    if "squared_error" in names:
        caption += (
            " Scores of predicted numbers are in the units that each network was trained on; the "
            "results of a run say which."
        )
    return section("All runs", table(header, rows, caption), *_compared(folders))


def _compared(folders: Sequence[Run]) -> list[Html]:
    """Return the NLL of all runs, sorted, with that of a plain network as the reference."""
    scores = {run.recipe.name: run.metrics["nll"] for run in folders if "nll" in run.metrics}
    if len(scores) < 2:
        return []
    plain = [run.recipe.name for run in folders if run.recipe.posterior is None]
    line = scores[plain[0]] if plain and plain[0] in scores else min(scores.values())
    what = f"of {plain[0]}" if plain else "of the best run"
    ends = {name: (score.value, 2 * score.error) for name, score in scores.items()}
    drawn = plots.estimates(ends, "NLL", reference=line.value)
    caption = f"NLL on the test sets ± two standard errors; less is better. Dashed: NLL {what}."
    return [figure(drawn, caption)]


def _run(run: Run, index: int, tell: Callable[[str], object]) -> Html:
    studied = study(run)
    problems = (*run.problems, *_not_finite(run), *studied.problems)
    for problem in problems:
        tell(problem)
    notices = [element("p", problem, class_="notice") for problem in problems]
    parts = [make(run, studied) for make in SECTIONS.values()]
    heading = element("h2", run.recipe.name, id=f"run-{index}")
    return element("article", heading, join([*notices, *(part for part in parts if part)]))


def _not_finite(run: Run) -> list[str]:
    return [
        f"On the test set {METRICS.get(name, name)} is {score.value}: look for examples or weights "
        "that are not finite, and train again."
        for name, score in run.metrics.items()
        if not math.isfinite(score.value)
    ]
