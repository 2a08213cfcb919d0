"""Tables of the rank-1 page, from studied runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from research.papers.rank1.published import COLUMNS, FEW_SAMPLES
from research.papers.rank1.seed_means import SEVERITIES, Found
from research.publishing.cells import Cell, errors_note, seeds_of
from research.publishing.sorted_slices import CLASSES, slice_note
from research.publishing.tables import markdown_table

SHOWN = {
    "nll": "NLL",
    "accuracy": "accuracy, %",
    "ece": "ECE",
    "cnll": "cNLL",
    "ca": "cA, %",
    "cece": "cECE",
    "auroc": "AUROC, OOD",
    "diversity": "diversity",
}
_SHARES = ("accuracy", "ca")
NOT_RUN = "not run yet"

Runs = Mapping[str, Found | None]
"""What was found, by what to call the row; ``None`` where nothing was run."""


def main_table(runs: Runs) -> str:
    """Return clean, corrupted and foreign images: means over seeds ± their standard error."""
    notes = (_few_classes(runs), _other_samples(runs))
    return "\n\n".join(filter(None, (_table(runs, tuple(SHOWN)), *notes)))


def _few_classes(runs: Runs) -> str:
    """A sentence about rows whose foreign images were a slice of sorted files; often empty."""
    slices = {title: found.foreign_slice for title, found in runs.items() if found is not None}
    few = {title: part for title, part in slices.items() if part and part[1] < CLASSES}
    if not few:
        return ""
    images, classes = next(iter(few.values()))
    which = "all rows" if len(few) == len(slices) else f"*{'; '.join(few)}*"
    return slice_note(f"{SHOWN['auroc']} of {which} is", images, classes)


def _other_samples(runs: Runs) -> str:
    """A sentence about rows that were judged by another number of samples than recipes have."""
    pairs = {
        title: (found.samples, found.samples_of_recipe)
        for title, found in runs.items()
        if found is not None and found.samples_of_recipe
    }
    return " ".join(
        f"**To be run again.** *{title}* was judged by {used} sample{'s' * (used != 1)} of every "
        f"member; the recipe, as the paper, has {wanted[0]}."
        for title, (used, wanted) in pairs.items()
        if used not in wanted
    )


def medians_table(runs: Runs) -> str:
    """Return medians over corruptions at every severity [rank-1, Figures 10 to 12]."""
    header = ["network", "run", "median of", *(f"severity {severity}" for severity in SEVERITIES)]

    def lines(found: Found) -> Iterator[list[str]]:
        for column in ("cnll", "ca", "cece"):
            cells = [_shown(found, f"median.{severity}.{column}") for severity in SEVERITIES]
            yield [seeds_of(found.seeds), SHOWN[column], *cells]

    return _with_errors(_lines(header, runs, lines), runs)


def ablation_table(runs: Runs) -> str:
    """Return what one change does to clean and corrupted images."""
    return _table(runs, (*COLUMNS, "diversity"))


def _table(runs: Runs, columns: Sequence[str]) -> str:
    def lines(found: Found) -> Iterator[list[str]]:
        yield [seeds_of(found.seeds), *(_shown(found, column) for column in columns)]

    header = ["network", "run", *(SHOWN[column] for column in columns)]
    return _with_errors(_lines(header, runs, lines), runs)


def _lines(header: Sequence[str], runs: Runs, lines: Callable[[Found], Iterator[list[str]]]) -> str:
    """Return a table with the lines of every network, or one that says that it was not run."""
    not_run = [NOT_RUN, *["–"] * (len(header) - 2)]
    every = (
        [title, *line]
        for title, found in runs.items()
        for line in ([not_run] if found is None else lines(found))
    )
    return markdown_table(header, every)


def _with_errors(table: str, runs: Runs) -> str:
    """Return a table, and what its errors are over."""
    note = errors_note(len(found.seeds) for found in runs.values() if found is not None)
    return "\n\n".join(filter(None, (table, note)))


def _shown(found: Found, column: str) -> str:
    if column not in found.columns:
        return "–"
    cell = found.cell(column)
    return str(cell.percent() if column.endswith(_SHARES) else cell)


def samples_table(runs: Runs) -> str:
    """More samples of every member, on clean and on damaged images."""

    def lines(found: Found) -> Iterator[list[str]]:
        counts = [c.split(".")[1] for c in found.columns if c.startswith("samples.")]
        for count in dict.fromkeys(counts):
            names = [f"samples.{count}.{metric}" for metric in COLUMNS[:3]]
            names += [f"few.{count}.{metric}" for metric in COLUMNS[3:]]
            beside = dict(zip(names, FEW_SAMPLES.get(int(count), ()), strict=False))
            yield [count, *(_of_samples(found, name, beside) for name in names)]

    header = ["network", "samples", *(SHOWN[column] for column in COLUMNS)]
    return _lines(header, runs, lines)


def _of_samples(found: Found, column: str, beside: Mapping[str, float]) -> str:
    """With what the paper prints for Gaussian factors on CIFAR-10."""
    if column not in found.columns:
        return "–"
    cell = found.cell(column)
    if found.name == "cifar10-wrn-gaussian":
        cell = replace(cell, published=beside.get(column))
    return str(cell.percent() if column.endswith(_SHARES) else cell)


def cost_table(runs: Runs, costs: Mapping[str, Any] | None) -> str:
    """Parameters, and CPU time of a step and of a prediction relative to the plain network."""
    lines = []
    for title, found in runs.items():
        relative = None if costs is None or found is None else costs["costs"].get(found.name)
        sizes = ["–", "–", "–"]
        if found is not None:
            share = found.cell("share").ours or 0.0
            total, passes = (int(found.cell(c).ours or 0) for c in ("parameters", "passes"))
            sizes = [str(Cell(total)), f"{100 * share:+.1f}%".replace("-", "−"), str(passes)]
        times = [
            f"{relative[kind]['ratio']:.2g}" if relative else "–" for kind in ("step", "prediction")
        ]
        lines.append([title, *sizes, *times])
    header = ["network", "parameters", "more than the plain one", "passes of a prediction"]
    return markdown_table([*header, "step, relative", "prediction, relative"], lines)


def printed_table(table: Mapping[str, tuple[float, ...]]) -> str:
    """Return what the paper prints."""
    lines = [
        [
            name,
            *(
                f"{100 * v:.1f}" if c in _SHARES else f"{v:g}"
                for c, v in zip(COLUMNS, row, strict=True)
            ),
        ]
        for name, row in table.items()
    ]
    return markdown_table(["network", *(SHOWN[column] for column in COLUMNS)], lines)
