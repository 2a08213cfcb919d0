"""Health records: trained runs beside the true risk of a generated cohort, which none can beat."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import choose, require
from leanbayes.lab.provenance import environment_facts
from leanbayes.lab.runs import Run
from leanbayes.likelihoods import Bernoulli
from leanbayes.metrics import Score, average
from leanbayes.prediction.predict import predict
from research.papers.rank1.health import Cohort, generate_cohort
from research.publishing.cells import Cell, about_equal, averaged, seeds_of
from research.publishing.paper_blocks import OwnBlocks
from research.publishing.study_file import StudyFile, Tell, read_study
from research.publishing.tables import markdown_table

RISK = "true risk"
DATA = "ehr-cohort"
COLUMNS = {
    "nll": "NLL",
    "excess": "NLL above the true risk's, expected",
    "auroc": "AUROC",
    "auc_pr": "average precision",
    "ece": "ECE",
}
_PRINTED = ("nll", "auc_pr", "ece")

Study = Mapping[str, Any]


def excess(risk: Tensor, probs: Tensor) -> Score:
    """Return how much worse predictions are than the risk, expected over who dies: a KL, in nats.

    It is what the NLL of predictions is above that of the risk, without the chance of a test set.

    Example:
        >>> excess(torch.tensor([0.5, 0.1]), torch.tensor([0.5, 0.1])).value
        0.0
    """
    risk, probs = risk.double(), probs.double().clamp(1e-12, 1 - 1e-12)
    on = torch.special.xlogy(risk, risk) - torch.special.xlogy(risk, probs)
    off = torch.special.xlogy(1 - risk, 1 - risk) - torch.special.xlogy(1 - risk, 1 - probs)
    return average(on + off)


def judge_records(runs: Sequence[Path], out: Path, *, tell: Tell | None = None) -> dict[str, Any]:
    """Compare finished runs, all on one generated cohort, with its true risk."""
    require(bool(runs), "there are no runs to judge; train rank1/ehr-lstm-* first")
    options = _options(Run(runs[0]))
    cohort = generate_cohort(**options)["test"]
    file = StudyFile(out, "health records", {"data": DATA, "options": options})
    parts: dict[str, Callable[[], Mapping[str, Any]]] = {RISK: partial(_of_risk, cohort)}
    for folder in runs:
        run = Run(folder)
        require(
            _options(run) == options,
            f"{folder} has learned from another cohort than {runs[0]}; judge them apart",
        )
        name = run.recipe.name.removeprefix("ehr-lstm-")
        parts[f"{name}, seed {run.recipe.seed}"] = partial(_of_run, run, cohort)
    return file.fill(parts, tell)


def _options(run: Run) -> dict[str, Any]:
    data = run.recipe.data
    require(
        data.name == DATA,
        f"{run.folder} has learned from {data.name}, whose true risk nobody knows; train with "
        "--budget cpu",
    )
    return data.options


def _of_risk(cohort: Cohort) -> dict[str, Any]:
    """Return what the risk itself scores: what is left is chance."""
    scores = Bernoulli().metrics(torch.logit(cohort.risk).unsqueeze(0), cohort.died)
    scores["excess"] = excess(cohort.risk, cohort.risk)
    metrics = {name: score._asdict() for name, score in scores.items()}
    return {"row": RISK, "metrics": metrics, **environment_facts()}


def _of_run(run: Run, cohort: Cohort) -> dict[str, Any]:
    model, likelihood = run.load()
    prediction = predict(model, cohort.entries, likelihood=likelihood, **run.drawing())
    values = {**run.metrics, "excess": excess(cohort.risk, prediction.probs)}
    kept = ("kept", "epochs", "versions", "revision", "tree", "sources", "threads", "recipe")
    published = run.recipe.published
    return {
        "row": run.recipe.name.removeprefix("ehr-lstm-"),
        "seed": run.recipe.seed,
        "metrics": {name: score._asdict() for name, score in values.items()},
        "parameters": run.parameters,
        "duration": round(run.result["seconds"], 2),
        "published": {} if published is None else dict(published.values),
        **{name: run.result[name] for name in kept if name in run.result},
    }


def records_table(study: Study) -> str:
    """Every row: means over seeds with their standard errors, and what was printed of MIMIC-III."""
    header = ["row", "runs", *COLUMNS.values(), "parameters", "in the paper: NLL, precision, ECE"]
    lines = []
    for row, parts in _rows(study).items():
        cells = [str(_cell(parts, column)) for column in COLUMNS]
        printed = parts[0].get("published", {})
        known = ", ".join(f"{printed[name]:g}" for name in _PRINTED if name in printed) or "–"
        count = str(Cell(parts[0].get("parameters")))
        seeds = seeds_of([part["seed"] for part in parts]) if "seed" in parts[0] else "–"
        lines.append([_words(row), seeds, *cells, count, known])
    return markdown_table(header, lines)


def _rows(study: Study) -> dict[str, list[Mapping[str, Any]]]:
    """Return the parts of every row; the risk first, then from the highest to the lowest excess."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for part in study["parts"].values():
        rows.setdefault(part["row"], []).append(part)

    def order(row: str) -> float:
        return fmean(-part["metrics"]["excess"]["value"] for part in rows[row])

    return {row: rows[row] for row in sorted(rows, key=lambda row: (row != RISK, order(row)))}


def _cell(parts: Sequence[Mapping[str, Any]], column: str) -> Cell:
    """Return the mean over seeds and its standard error; of one run, the error over patients."""
    scores = [choose("metric", column, part["metrics"]) for part in parts]
    return averaged([score["value"] for score in scores], [score["error"] for score in scores])


def records_summary(study: Study) -> str:
    """Return which networks are nearest to the true risk, and which have the lowest ECE."""
    networks = {row: parts for row, parts in _rows(study).items() if row != RISK}
    sentences = []
    for column, what in (("excess", COLUMNS["excess"]), ("ece", "ECE")):
        cells = {row: _cell(parts, column) for row, parts in networks.items()}
        first, *others = sorted(cells, key=lambda row: cells[row].ours or 0.0)
        level = [row for row in others if about_equal(cells[first], cells[row])]
        named = [f"{_words(row)} ({cells[row]})" for row in level]
        same = f"within two standard errors of it: {', '.join(named)}" if named else "clearly so"
        sentences.append(f"Lowest {what}: {_words(first)} ({cells[first]}), {same}.")
    return " ".join(sentences)


def _words(row: str) -> str:
    return row.replace("-", " ")


def records_blocks(results: Path) -> OwnBlocks:
    """What makes ``records`` and ``records-summary``; a claim names ``records/ROW METRIC``."""

    def study() -> Study:
        return read_study(results / "studies" / "records.json", "papers records")

    return OwnBlocks(
        tables={
            "records": lambda _: records_table(study()),
            "records-summary": lambda _: records_summary(study()),
        },
        cells={
            "records": lambda row, column: _cell(choose("row", row, _rows(study())), column),
        },
        studies={"records": ""},
    )
