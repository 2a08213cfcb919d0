"""Train one recipe into a run folder; stop it at any moment and resume it to the same result."""

import math
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn

from leanbayes.lab.callbacks import FollowLearningRate, KeepBest, Record, RunData
from leanbayes.lab.checkpoints import epoch_of
from leanbayes.lab.evaluation import evaluate
from leanbayes.lab.from_recipe import build_model, likelihood_of
from leanbayes.lab.interrupts import interruptible
from leanbayes.lab.launch import build_trainer, is_first, processes, quiet_lightning
from leanbayes.lab.measurements import MissingMeasurement, Subject
from leanbayes.lab.measurements.result_callback import ResultCallback
from leanbayes.lab.optimizers import OPTIMIZERS
from leanbayes.lab.preflight import check_run
from leanbayes.lab.provenance import environment_facts
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lab.runs import Run
from leanbayes.lightning import (
    BayesianModule,
    NonFiniteLossError,
    PriorUpdates,
    StopOnNonFinite,
)
from leanbayes.likelihoods import Likelihood
from leanbayes.training.parameter_groups import count_parameters, parameter_groups

Kind = TypeVar("Kind", bound=L.Callback)


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    devices: int | None = None,
    progress: bool = True,
    loggers: Any = False,
) -> dict[str, Any]:
    """Train a recipe, evaluate it, and write everything to a run folder.

    Args:
        recipe: recipe to run.
        out: the run folder.
        resume: go on from the last checkpoint of a run that was stopped.
        devices: number of processes; one, or as many as torchrun or SLURM started,
            if not given.
        progress: show a progress bar.
        loggers: Lightning loggers beside ``metrics.csv``.

    Returns:
        What ``result.json`` holds.
    """
    recipe = _without_missing_measurements(recipe)
    together, run = processes(devices), Run(out, recipe)
    if is_first():
        run.check(resume=resume)
    if run.result:
        return run.result
    model, likelihood, data = build_model(recipe), likelihood_of(recipe), RunData(run)
    check_run(run, model, likelihood, together.devices * together.nodes)
    module = build_module(recipe, model, likelihood, run.data_size)
    record = Record(run, _subject(run, model, likelihood))
    callbacks = _callbacks(recipe, record)
    with run.alone() if is_first() else nullcontext():
        if is_first():
            run.check(resume=resume)  # again: another process may have been here
        if run.result:
            return run.result
        with quiet_lightning():
            trainer = build_trainer(
                recipe, run.folder, callbacks, together, progress=progress, loggers=loggers
            )
            _fit(trainer, module, data, run)
        if not trainer.is_global_zero:
            return {}
        run.save(model, likelihood)
        result = _result(run, module, trainer, record.seconds)
        run.write_result(result)
    return result


def _without_missing_measurements(recipe: Recipe) -> Recipe:
    """The recipe with the measurements that are installed; they do not change the training."""
    missing = [each for each in recipe.measurements if isinstance(each, MissingMeasurement)]
    for each in missing:
        warnings.warn(
            f"measurement {each.kind!r} is skipped: it needs a checkout of leanbayes; there, run "
            "python -m research.lab train",
            stacklevel=3,
        )
    left = tuple(each for each in recipe.measurements if each not in missing)
    return recipe.model_copy(update={"measurements": left}) if missing else recipe


def _fit(trainer: L.Trainer, module: BayesianModule, data: RunData, run: Run) -> None:
    """Train from the last good checkpoint; if that ends in no numbers, say what can be done."""
    last = run.checkpoints.last(module, set_aside=is_first())
    if is_first():
        run.open(0 if last is None else epoch_of(last) + 1)
    try:
        with interruptible():
            trainer.fit(module, datamodule=data, ckpt_path=last, weights_only=True)
        for best in _of_kind(trainer, KeepBest):
            best.restore(module)
    except NonFiniteLossError as error:
        if is_first():
            run.history.note_stop(trainer.current_epoch, error.reason)
        raise NonFiniteLossError(error.reason, _way_back(run)) from error


def _way_back(run: Run) -> str:
    kept = run.checkpoints.paths()
    if not kept:
        return f"No epoch was finished, so {run.folder} takes the corrected recipe"
    lower = f"--set optimizer.lr={run.recipe.optimizer.lr / 10:g}"
    return (
        f"The same recipe would end here again; go on after epoch {epoch_of(kept[-1])}, the last "
        f"whose numbers are finite, with --resume and {lower} or --set training.gradient_clip=1"
    )


def _of_kind(trainer: L.Trainer, kind: type[Kind]) -> list[Kind]:
    """Return the callbacks of one class."""
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, kind)]


def _subject(run: Run, model: nn.Module, likelihood: Likelihood) -> Subject:
    """Return what the measurements of a recipe are taken of."""
    drawing = run.drawing()
    return Subject(
        model,
        likelihood,
        run.dataset,
        run.data_size,
        seed=drawing["seed"],
        batch_size=drawing["batch_size"],
    )


def _callbacks(recipe: Recipe, record: Record) -> list[L.Callback]:
    """In the order in which Lightning calls them; the record sees what those before it did."""
    training = recipe.training
    kept = [KeepBest()] if training.keep == "best" else []
    callbacks: list[L.Callback] = [StopOnNonFinite(), FollowLearningRate(recipe), *kept, record]
    if training.patience is not None:
        callbacks.insert(0, EarlyStopping("validation/nll", patience=training.patience))
    if training.prior_updates is not None:
        callbacks.append(PriorUpdates(training.prior_updates))
    measuring = (measurement.callback(record.subject) for measurement in recipe.measurements)
    return [*callbacks, *filter(None, measuring)]


def _result(run: Run, module: BayesianModule, trainer: L.Trainer, seconds: float) -> dict[str, Any]:
    """How the trained model is judged, and what anybody needs to get the same numbers again."""
    test, size = run.dataset.test, run.data_size
    result = {
        "name": run.recipe.name,
        "metrics": evaluate(module.model, test, module.likelihood, data_size=size, **run.drawing()),
        "epochs": trainer.current_epoch,
        "parameters": count_parameters(module.model)._asdict(),
        "seconds": seconds,
        **provenance(run.recipe),
    }
    for best in _of_kind(trainer, KeepBest):
        result["kept"] = {"epoch": best.epoch, "validation_nll": best.nll}
    if run.history.values["stopped"]:
        result["history"] = run.history.values
    for measuring in _of_kind(trainer, ResultCallback):
        result["metrics"].update(measuring.metrics())
        result.update(measuring.details())
    for name, score in result["metrics"].items():
        if not math.isfinite(score["value"]):
            raise NonFiniteLossError(
                f"{name} is {score['value']} on the test set, though the parameters are finite",
                "Look for test inputs or targets that are not, and resume",
            )
    return result


def build_module(
    recipe: Recipe, model: nn.Module, likelihood: Likelihood, data_size: int
) -> BayesianModule:
    """Return what Lightning trains: the recipe's objective, schedules and parameter groups."""
    spec = recipe.optimizer
    return BayesianModule(
        model,
        data_size=data_size,
        likelihood=likelihood,
        schedule=recipe.kl.make(),
        count=recipe.kl.unit,
        lr=spec.other_lr if spec.name == "natural" else spec.lr,
        optimizer=partial(OPTIMIZERS[spec.name], spec, model, data_size),
        groups=partial(
            parameter_groups,
            multipliers=dict(spec.multipliers),
            weight_decay=spec.weight_decay,
            decayed=spec.decayed,
        ),
        train_samples=recipe.training.samples,
        loss=recipe.training.loss,
        validation_samples=recipe.evaluation.validation_samples,
        seed=recipe.seed,
    )


def provenance(recipe: Recipe) -> dict[str, Any]:
    """Return what anybody needs to get the same numbers again."""
    return {
        "seed": recipe.seed,
        **environment_facts("lightning"),
        "recipe": parse_yaml(recipe.to_yaml()),
    }
