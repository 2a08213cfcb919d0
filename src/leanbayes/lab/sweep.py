"""Select a recipe's choices on the validation set; several processes may work on one study."""

from __future__ import annotations

import csv
import fcntl
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from leanbayes.lab.files import write_json, write_text
from leanbayes.lab.recipe import Recipe, check_recipe
from leanbayes.lab.recipe_files import apply_settings, parse_yaml
from leanbayes.lab.run import train
from leanbayes.lightning import NonFiniteLossError

__all__ = ["Metric", "sweep", "with_choices"]

Metric = Literal["nll", "negative_elbo"]

_NAME = "sweep"


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
    with _quiet_optuna():
        with _lock(folder / ".lock"):
            study = _open_study(folder, recipe, trials, metric)
        while (claimed := _claim(study, folder, recipe.seed)) is not None:
            trial, held = claimed
            with held:
                _work(study, trial, recipe, folder, metric, progress=progress)
        with _lock(folder / ".lock"):
            return _write(study, recipe, folder, metric)


def with_choices(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """The recipe with some of its choices made, and none left open."""
    values = apply_settings(parse_yaml(recipe.to_yaml()), settings)
    return check_recipe({**values, "choices": {}}, "choices")


def _check(recipe: Recipe, trials: int | None) -> None:
    if not recipe.choices or not all(recipe.choices.values()):
        raise ValueError(
            "the recipe has no choices; add for instance choices: {optimizer.lr: [1e-3, 1e-2]}"
        )
    if trials is not None and trials < 1:
        raise ValueError(f"trials is {trials}; it must be at least 1")
    for key, values in recipe.choices.items():
        for value in values:
            with_choices(recipe, {key: value})


def _open_study(folder: Path, recipe: Recipe, trials: int | None, metric: Metric) -> Study:
    """The study with all its points waiting; those of processes that died wait again."""
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / "study.log"))),
        study_name=_NAME,
        load_if_exists=True,
    )
    settings = {
        "recipe": parse_yaml(recipe.to_yaml()),
        "metric": metric,
        "sampler": "grid" if trials is None else "tpe",
    }
    for name, value in settings.items():
        before = study.user_attrs.get(name)
        if before is None:
            study.set_user_attr(name, value)
        elif before != value:
            raise ValueError(
                f"{folder} holds a sweep with another {name}; undo the change, or choose another "
                "--out"
            )
    known = {trial.user_attrs["point"] for trial in study.get_trials(deepcopy=False)}
    for point, parameters in enumerate(_points(recipe, trials)):
        if point not in known:
            study.enqueue_trial(parameters, user_attrs={"point": point})
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if (owner := _try_lock(_run_lock(folder, trial))) is not None:
            with owner:
                study.tell(trial.number, state=TrialState.FAIL)
                study.enqueue_trial(trial.params, user_attrs={"point": trial.user_attrs["point"]})
    return study


def _points(recipe: Recipe, trials: int | None) -> list[dict[str, str]]:
    if trials is not None:
        return [{}] * trials
    texts = [[json.dumps(value) for value in values] for values in recipe.choices.values()]
    combinations = itertools.product(*texts)
    return [dict(zip(recipe.choices, values, strict=True)) for values in combinations]


def _claim(study: Study, folder: Path, seed: int) -> tuple[Trial, IO[str]] | None:
    """The next waiting trial, with the lock that says that its process lives."""
    with _lock(folder / ".lock"):
        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if not waiting:
            return None
        held = _try_lock(_run_lock(folder, waiting[0]))
        if held is None:
            raise RuntimeError(f"{_run_lock(folder, waiting[0])} is held by another process")
        point = waiting[0].user_attrs["point"]
        study.sampler = TPESampler(seed=seed + point, constant_liar=True)
        return study.ask(), held


def _work(
    study: Study, trial: Trial, recipe: Recipe, folder: Path, metric: Metric, *, progress: bool
) -> None:
    settings = {
        key: json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in values]))
        for key, values in recipe.choices.items()
    }
    run = _run_folder(folder, trial.user_attrs["point"])
    try:
        train(with_choices(recipe, settings), run, resume=True, progress=progress)
    except NonFiniteLossError as error:
        trial.set_user_attr("reason", str(error))
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, _last_value(run, f"validation/{metric}"))


def _last_value(run: Path, name: str) -> float:
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    if not last.get(name):
        raise ValueError(f"{run} has no {name}; a sweep needs a data set with validation examples")
    return float(last[name])


def _write(study: Study, recipe: Recipe, folder: Path, metric: Metric) -> dict[str, Any]:
    newest = {trial.user_attrs["point"]: trial for trial in study.get_trials(deepcopy=False)}
    trials = [
        {
            "run": _run_folder(folder, point).name,
            "state": trial.state.name.lower(),
            "value": trial.value,
            "settings": {key: json.loads(text) for key, text in trial.params.items()},
            **({"reason": trial.user_attrs["reason"]} if "reason" in trial.user_attrs else {}),
        }
        for point, trial in sorted(newest.items())
    ]
    finished = [trial for trial in trials if trial["state"] == "complete"]
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


def _run_folder(folder: Path, point: int) -> Path:
    return folder / f"trial-{point:04d}"


def _run_lock(folder: Path, trial: FrozenTrial) -> Path:
    return folder / f".trial-{trial.user_attrs['point']:04d}.lock"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait for a lock that the system gives up with the process that holds it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _try_lock(path: Path) -> IO[str] | None:
    """The same without waiting: an open file whose closing frees the lock, or None."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
