"""Leaderboard runs: one file per task, method and seed; a stopped leaderboard resumes."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from leanbayes.errors import choose
from leanbayes.lab.files import write_text
from leanbayes.lab.provenance import environment_facts
from leanbayes.metrics import auroc
from leanbayes.prediction.prediction import Prediction
from research.studies.leaderboard.methods import METHODS, SAMPLES, Job, Trained
from research.studies.leaderboard.peers import PEERS, available
from research.studies.leaderboard.tasks import TASKS, Rows, Task


def file_of(folder: Path, task: str, method: str, seed: int) -> Path:
    """Return the file of one run."""
    return folder / task / f"{re.sub(r'[ ,.]+', '-', method)}-{seed}.json"


def judge(trained: Trained, rows: Rows) -> dict[str, float]:
    """Measure test rows; numbers are in units of the target."""
    p = trained.predict(rows.test_x)
    scores = {name: score.value for name, score in p.metrics(rows.test_y).items()}
    if not p.has_classes:
        return {
            "nll": scores["nll"] + math.log(rows.unit),
            "rmse": rows.unit * scores["rmse"],
            "coverage": scores["coverage_90"],
            "calibration": abs(scores["coverage_90"] - 0.9),
        }
    found = {
        "nll": scores["nll"],
        "accuracy": 100 * scores["accuracy"],
        "calibration": scores["ece"],
    }
    if rows.ood_x is not None:
        found["auroc"] = _separated(p, trained.predict(rows.ood_x))
    if rows.corrupted_x:
        found["corrupted_nll"] = sum(
            -float(trained.predict(x).log_likelihood(rows.test_y).mean()) for x in rows.corrupted_x
        ) / len(rows.corrupted_x)
    return found


def _separated(known: Prediction, unknown: Prediction) -> float:
    entropy = torch.cat([known.entropy, unknown.entropy])
    return auroc(entropy, torch.arange(len(entropy)) >= len(known)).value


@cache
def _facts(*packages: str) -> dict[str, Any]:
    return environment_facts(*packages)


def one(name: str, method: str, seed: int, states: Path) -> dict[str, Any]:
    """Train and judge one method; one that cannot train a network is recorded as refused."""
    task, began = TASKS[name], time.process_time()
    run = {**METHODS, **available()}[method]
    facts = _facts(*([PEERS[method][2]] if method in PEERS else []))
    record = {"task": name, "method": method, "seed": seed, "config": _config(task), **facts}
    job = Job(name, task, task.read(seed), seed, states)
    try:
        trained = run(job)
        found: dict[str, Any] = {"test": judge(trained, job.rows)}
    except Exception as error:  # another library's failure is a result, not the end of the study
        if method not in PEERS:
            raise
        return {**record, "refused": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    kept = {
        "parameters": trained.parameters,
        "passes": trained.passes,
        "choice": dict(trained.choice),
    }
    return {**record, **found, **kept, "duration": round(time.process_time() - began, 1)}


def _config(task: Task) -> dict[str, Any]:
    names = ("title", "group", "epochs", "lr", "batch", "sgd")
    return {**{name: getattr(task, name) for name in names}, "samples": SAMPLES}


def study_leaderboard(
    out: Path,
    states: Path,
    *,
    seeds: Sequence[int],
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    tell: Callable[[str], object] = print,
) -> int:
    """Make every run that the folder lacks and return the number of new ones.

    Args:
        out: Folder of results.
        states: Folder of plain networks, which ensembles and Laplace approximations share.
        seeds: Random seeds; for UCI sets the numbers of splits.
        tasks: Names of tasks; all if empty.
        methods: Names of methods; all that are installed if empty.
        tell: Called with a line per new run.
    """
    known = {**METHODS, **available()}
    for name in methods:
        choose("method", name, known)
    for name in tasks:
        choose("task", name, TASKS)
    missing = [
        (seed, task, method)
        for seed in seeds
        for task in tasks or TASKS
        for method in methods or known
        if not file_of(out, task, method, seed).exists()
    ]
    for number, (seed, task, method) in enumerate(missing, 1):
        found = one(task, method, seed, states)
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        file = file_of(out, task, method, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
        scores = found.get("test") or {"refused": found["refused"]}
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else v for k, v in scores.items())
        tell(f"{number}/{len(missing)} {task}, {method}, seed {seed}: {shown}")
    return len(missing)
