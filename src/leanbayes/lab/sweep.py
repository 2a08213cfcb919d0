"""Select a recipe's choices on the validation set; several processes may work on one study."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from leanbayes.errors import require
from leanbayes.lab.files import write_json, write_text
from leanbayes.lab.locks import locked
from leanbayes.lab.recipe import Recipe, check_recipe
from leanbayes.lab.recipe_files import apply_settings, parse_yaml
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.lightning import NonFiniteLossError
from leanbayes.saving.files import remove_partial_files

__all__ = ["Metric", "sweep", "with_choices"]

Metric = Literal["nll", "negative_elbo"]
_RUN = "trial-{:04d}"

HEARTBEAT = 20
"""Seconds between two signs of life of a process at work; after three it counts as dead."""


def sweep(
    recipe: Recipe,
    out: str | Path,
    trials: int | None = None,
    *,
    metric: Metric = "nll",
    progress: bool = False,
) -> dict[str, Any]:
    """Train a recipe with its choices, and keep the one that is best on the validation set.

    Call it again to go on after a stop, and in several processes to share the work: every trial is
    trained once, in a run folder of its own, and one that died with its process is taken over.

    Args:
        recipe: what to run; its ``choices`` map dotted keys to lists of values.
        out: the folder of the study.
        trials: so many trials suggested by Optuna's TPE; every combination once, if not given.
        metric: what is to be low in the last epoch, on the validation set.
        progress: show the progress bars of the runs.

    Returns:
        What ``sweep.json`` holds; ``best.yaml`` is the selected recipe.
    """
    _check(recipe, trials)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    work = partial(_work, recipe=recipe, folder=folder, metric=metric, progress=progress)
    with _quiet_optuna(), _opened(folder, recipe, trials, metric) as study:
        while _work_waits(study, folder, _points(recipe, trials)):
            study.optimize(work, catch=(NonFiniteLossError, _TakenError))
        with _alone(folder):
            return _write(study, recipe, folder, metric)


def with_choices(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """The recipe with some of its choices made, and none left open."""
    values = apply_settings(parse_yaml(recipe.to_yaml()), settings)
    return check_recipe({**values, "choices": {}}, "choices")


def _check(recipe: Recipe, trials: int | None) -> None:
    require(
        bool(recipe.choices) and all(recipe.choices.values()),
        "the recipe has no choices; add for instance choices: {optimizer.lr: [1e-3, 1e-2]}",
    )
    require(trials is None or trials > 0, f"trials is {trials}; it must be at least 1")
    for key, values in recipe.choices.items():
        for value in values:
            with_choices(recipe, {key: value})


def _alone(folder: Path) -> AbstractContextManager[None]:
    """What the processes of a study do one after another."""
    return locked(folder / "study.lock")


@contextmanager
def _opened(folder: Path, recipe: Recipe, trials: int | None, metric: Metric) -> Iterator[Study]:
    """The study of a folder, in Optuna's own file, which notes when each process last lived."""
    settings = {
        "recipe": parse_yaml(recipe.to_yaml()),
        "metric": metric,
        "sampler": "grid" if trials is None else "tpe",
    }
    with _alone(folder):
        remove_partial_files(folder)
        _check_study(folder, grid=trials is None)
        storage = RDBStorage(
            f"sqlite:///{folder / 'study.db'}",
            engine_kwargs={"connect_args": {"timeout": 60}},
            heartbeat_interval=HEARTBEAT,
            grace_period=3 * HEARTBEAT,
        )
        study = optuna.create_study(storage=storage, study_name="sweep", load_if_exists=True)
        for name, value in settings.items():
            if study.user_attrs.get(name, value) != value:
                raise ValueError(
                    f"{folder} holds a sweep with another {name}; undo the change, or choose "
                    "another --out"
                )
            study.set_user_attr(name, value)
    _ask_alone(study, folder)
    try:
        yield study
    finally:
        storage.engine.dispose()


def _ask_alone(study: Study, folder: Path) -> None:
    """Let processes take trials one after another: in SQLite two may take the same one."""
    ask = study.ask

    def asked(*args: Any, **options: Any) -> Trial:
        with _alone(folder):
            return ask(*args, **options)

    study.ask = asked  # type: ignore[method-assign]


def _check_study(folder: Path, *, grid: bool) -> None:
    """Refuse a study whose file is torn or no study; what was trained is in the run folders."""
    file = folder / "study.db"
    try:
        with closing(sqlite3.connect(file, timeout=60)) as database:
            ((verdict,), *_) = database.execute("PRAGMA integrity_check").fetchall()
        require(verdict == "ok", f"it says {verdict!r}")
    except (sqlite3.DatabaseError, ValueError) as error:
        remedy = (
            "remove it and sweep again: finished trials are not trained again"
            if grid
            else "choose another --out, because trials were suggested by what it held"
        )
        reason = str(error).replace("\n", " ")
        raise ValueError(f"{file} is damaged ({reason}); {remedy}") from error


def _points(recipe: Recipe, trials: int | None) -> list[dict[str, str]]:
    """What is known of each trial beforehand: all choices, or none."""
    if trials is not None:
        return [{}] * trials
    texts = [[json.dumps(value) for value in values] for values in recipe.choices.values()]
    return [dict(zip(recipe.choices, point, strict=True)) for point in itertools.product(*texts)]


def _newest(study: Study) -> dict[int, FrozenTrial]:
    """The last trial of every point."""
    trials = (t for t in study.get_trials(deepcopy=False) if "point" in t.user_attrs)
    return {trial.user_attrs["point"]: trial for trial in trials}


def _work_waits(study: Study, folder: Path, points: list[dict[str, str]]) -> bool:
    """Let points wait that nobody has begun or whose process died; False if all are finished."""
    while True:
        with _alone(folder):
            fail_stale_trials(study)
            newest = _newest(study)
            for point, parameters in enumerate(points):
                trial = newest.get(point)
                if trial is None:
                    study.enqueue_trial(parameters, user_attrs={"point": point})
                elif trial.state == TrialState.FAIL and "reason" not in trial.user_attrs:
                    study.enqueue_trial(trial.params, user_attrs={"point": point})
            states = {trial.state for trial in _newest(study).values()}
        if TrialState.WAITING in states or TrialState.RUNNING not in states:
            return TrialState.WAITING in states
        time.sleep(1)


class _TakenError(Exception):
    """No trial waits any more."""


def _work(trial: Trial, *, recipe: Recipe, folder: Path, metric: Metric, progress: bool) -> float:
    point = trial.user_attrs.get("point")
    if point is None:
        trial.study.stop()
        raise _TakenError
    trial.study.sampler = TPESampler(seed=(recipe.seed + point) % 2**32, constant_liar=True)
    settings = {
        key: json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in values]))
        for key, values in recipe.choices.items()
    }
    run = folder / _RUN.format(point)
    try:
        train(with_choices(recipe, settings), run, resume=True, progress=progress)
        return _last_value(run, f"validation/{metric}")
    except NonFiniteLossError as error:
        trial.set_user_attr("reason", error.reason)
        raise


def _last_value(run: Path, name: str) -> float:
    values = Run(run).columns.get(name)
    if not values:
        raise ValueError(f"{run} has no {name}; a sweep needs a data set with validation examples")
    if math.isnan(values[-1]):
        raise NonFiniteLossError(f"{name} is no number in the last epoch")
    return values[-1]


def _write(study: Study, recipe: Recipe, folder: Path, metric: Metric) -> dict[str, Any]:
    trials = [
        {
            "run": _RUN.format(point),
            "state": trial.state.name.lower(),
            "value": trial.value,
            "settings": {key: json.loads(text) for key, text in trial.params.items()},
            **({"reason": trial.user_attrs["reason"]} if "reason" in trial.user_attrs else {}),
        }
        for point, trial in sorted(_newest(study).items())
    ]
    finished = (trial for trial in trials if trial["state"] == "complete")
    best = min(finished, key=lambda trial: trial["value"], default=None)
    result = {
        "name": recipe.name,
        "metric": f"validation/{metric}",
        "sampler": study.user_attrs["sampler"],
        "best": best,
        "trials": trials,
    }
    if best is not None:
        write_text(folder / "best.yaml", with_choices(recipe, best["settings"]).to_yaml())
    write_json(folder / "sweep.json", result)
    return result


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # signs of life are one for years
            yield
    finally:
        optuna.logging.set_verbosity(before)
