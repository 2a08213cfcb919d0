"""Select a recipe's choices on the validation set; several processes may work on one study."""

import itertools
import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import optuna
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import PartialFixedSampler, TPESampler
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from leanbayes.errors import explained_as, require
from leanbayes.lab.files import locked, write_json, write_text
from leanbayes.lab.recipe import Recipe, check_recipe
from leanbayes.lab.recipe_files import apply_settings, parse_yaml
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.lightning import NonFiniteLossError
from leanbayes.saving.files import naming_full_disk, remove_partial_files

Metric = Literal["nll", "negative_elbo"]
_RUN = "trial-{:04d}"
_JOURNAL = "study.journal"


def sweep(
    recipe: Recipe,
    out: str | Path,
    trials: int | None = None,
    *,
    metric: Metric = "nll",
    progress: bool = False,
) -> dict[str, Any]:
    """Train a recipe with its choices, and keep the one that is best on the validation set.

    Call it again to resume after a stop, and in several processes to share the work: every trial
    is trained once, in its own run folder, and one whose process died is taken over.

    Args:
        recipe: recipe to run; its ``choices`` map dotted keys to lists of values.
        out: the folder of the study.
        trials: so many trials suggested by Optuna's TPE; every combination once, if not given.
        metric: validation metric to minimize in the last epoch.
        progress: show the progress bars of the runs.

    Returns:
        What ``sweep.json`` holds; ``best.yaml`` is the selected recipe.
    """
    _check(recipe, trials)
    folder, points = Path(out), _points(recipe, trials)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "study.lock")
    with _quiet_optuna(), naming_full_disk(folder / _JOURNAL):
        with lock:
            study = _open_study(folder, lock, recipe, trials, metric)
        work = _Work(study, recipe, folder, metric, progress)
        while not all(map(work.is_finished, range(len(points)))):
            if not any(work.train(point, known) for point, known in enumerate(points)):
                time.sleep(1)  # other processes train the rest
        with lock:
            return _write(study, recipe, folder, metric)


def with_choices(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """Return the recipe with some of its choices made, and none left open."""
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


def _open_study(
    folder: Path, lock: FileLock, recipe: Recipe, trials: int | None, metric: Metric
) -> Study:
    """Return the study of a folder; one of another recipe, or one that is damaged, is refused."""
    settings = {
        "recipe": parse_yaml(recipe.to_yaml()),
        "metric": metric,
        "sampler": "grid" if trials is None else "tpe",
    }
    remedy = (
        "remove it and sweep again: finished trials are not trained again"
        if trials is None
        else "choose another --output, because trials were suggested by what it held"
    )
    old, journal = folder / "study.db", folder / _JOURNAL
    require(not old.exists(), f"{old} is a study of an earlier version of leanbayes; {remedy}")
    remove_partial_files(folder)
    with explained_as(
        f"{journal} is damaged ({{reason}}); {remedy}",
        *(ValueError, LookupError, TypeError, AttributeError, AssertionError),
    ):
        _cut_torn_line(journal)
        # filelock's lock is free once its process is dead; Optuna's own would keep others waiting
        backend = JournalFileBackend(str(journal), lock_obj=cast(Any, lock))
        study = optuna.create_study(
            storage=JournalStorage(backend), study_name="sweep", load_if_exists=True
        )
        known = study.user_attrs
    for name, value in settings.items():
        require(
            known.get(name, value) == value,
            f"{folder} holds a sweep with another {name}; undo the change, or choose another "
            "--output",
        )
        if name not in known:
            study.set_user_attr(name, value)
    return study


def _cut_torn_line(journal: Path) -> None:
    """Remove the beginning of a last line, which a full disk or a power cut has left."""
    content = journal.read_bytes() if journal.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        require(whole > 0, "it has no whole line")
        with journal.open("r+b") as file:
            file.truncate(whole)


def _points(recipe: Recipe, trials: int | None) -> list[dict[str, str]]:
    """Return what is known of each trial beforehand: all choices, or none."""
    if trials is not None:
        return [{}] * trials
    texts = [[json.dumps(value) for value in values] for values in recipe.choices.values()]
    return [dict(zip(recipe.choices, point, strict=True)) for point in itertools.product(*texts)]


def _newest(study: Study) -> dict[int, FrozenTrial]:
    """Return the last trial of every point."""
    trials = (t for t in study.get_trials(deepcopy=False) if "point" in t.user_attrs)
    return {trial.user_attrs["point"]: trial for trial in trials}


@dataclass(frozen=True)
class _Work:
    """What a process does for a study."""

    study: Study
    recipe: Recipe
    folder: Path
    metric: Metric
    progress: bool

    def is_finished(self, point: int) -> bool:
        """Return whether a point was trained to its end, or to numbers that are not finite."""
        trial = _newest(self.study).get(point)
        return trial is not None and (
            trial.state == TrialState.COMPLETE or "reason" in trial.user_attrs
        )

    def train(self, point: int, known: Mapping[str, str]) -> bool:
        """Train a point, unless it is finished or another process trains it: then return False."""
        if self.is_finished(point):
            return False
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.folder / f".{_RUN.format(point)}.lock", "taken"))
            except BlockingIOError:
                return False
            if self.is_finished(point):
                return False
            self._run(point, self._ask(point, known))
        return True

    def _ask(self, point: int, known: Mapping[str, str]) -> Trial:
        """Return a trial of a point, with the choices of one whose process died."""
        before = _newest(self.study).get(point)
        if before is not None:
            known = before.params
            if before.state == TrialState.RUNNING:
                self.study.tell(before.number, state=TrialState.FAIL)
        seeded = TPESampler(seed=(self.recipe.seed + point) % 2**32, constant_liar=True)
        self.study.sampler = PartialFixedSampler(dict(known), seeded)
        trial = self.study.ask()
        trial.set_user_attr("point", point)
        return trial

    def _run(self, point: int, trial: Trial) -> None:
        settings = {
            key: json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in values]))
            for key, values in self.recipe.choices.items()
        }
        run = self.folder / _RUN.format(point)
        try:
            train(with_choices(self.recipe, settings), run, resume=True, progress=self.progress)
            value = _last_value(run, f"validation/{self.metric}")
        except NonFiniteLossError as error:
            trial.set_user_attr("reason", error.reason)
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.study.tell(trial, value)


def _last_value(run: Path, name: str) -> float:
    values = Run(run).columns.get(name)
    if not values:
        raise ValueError(f"{run} has no {name}; a sweep needs a data set with validation examples")
    if math.isnan(values[-1]):
        raise NonFiniteLossError(f"{name} is not a number in the last epoch")
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
            warnings.simplefilter("ignore", ExperimentalWarning)  # of choices that are fixed
            yield
    finally:
        optuna.logging.set_verbosity(before)
