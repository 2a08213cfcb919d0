"""Train one recipe into a run folder; stop it at any moment and resume it to the same result."""

from __future__ import annotations

import json
import logging
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.optim import Optimizer

from leanbayes import schedules
from leanbayes.convert import convert
from leanbayes.estimators import ESTIMATORS
from leanbayes.groups import parameter_groups
from leanbayes.io import save
from leanbayes.lab.architectures import build
from leanbayes.lab.data import Dataset, load
from leanbayes.lab.evaluate import evaluate
from leanbayes.lab.files import write_json, write_text
from leanbayes.lab.loops import Data, LearningRate, Record
from leanbayes.lab.recipe import Recipe, check_recipe, parse_yaml
from leanbayes.lightning import BayesianModule, PriorUpdates, StopOnNonFinite
from leanbayes.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.model import count_parameters

__all__ = [
    "build_model",
    "likelihood_of",
    "load_data",
    "loggers_by_name",
    "train",
]

_SCHEDULES: dict[str, Any] = {
    "constant": schedules.Constant,
    "linear": schedules.Linear,
    "stepwise": schedules.Stepwise,
    "exponential": schedules.Exponential,
}


def load_data(recipe: Recipe) -> Dataset:
    """The recipe's data set."""
    return load(recipe.data.name, **recipe.data.options)


def build_model(recipe: Recipe) -> nn.Module:
    """The recipe's network with its first weights, converted; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        net = build(recipe.architecture.name, **recipe.architecture.options)
        if recipe.posterior is None or recipe.prior is None:
            return net
        return convert(
            net,
            recipe.posterior,
            recipe.prior,
            ESTIMATORS[recipe.estimator],
            bias=recipe.bias,
            bias_prior=recipe.bias_prior,
            include=recipe.include,
            exclude=recipe.exclude,
            overrides={pattern: layers.choices() for pattern, layers in recipe.layers.items()},
            inplace=True,
        )


def likelihood_of(recipe: Recipe) -> Likelihood:
    """What the recipe's outputs mean."""
    spec = recipe.likelihood
    if spec.kind == "gaussian":
        return Gaussian(spec.scale, spec.noise)
    return Bernoulli() if spec.kind == "bernoulli" else Categorical()


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    devices: int = 1,
    progress: bool = True,
    loggers: Any = False,
) -> dict[str, Any]:
    """Train a recipe, evaluate it, and write everything to a run folder.

    Args:
        recipe: what to run.
        out: the run folder.
        resume: go on from the last checkpoint of a run that was stopped.
        devices: how many processes train together.
        progress: show a progress bar.
        loggers: Lightning loggers beside ``metrics.csv``.

    Returns:
        What ``result.json`` holds.
    """
    folder = _open_folder(Path(out), recipe, resume=resume)
    finished = folder / "result.json"
    if finished.exists():
        return dict(json.loads(finished.read_text(encoding="utf-8")))
    dataset, model, likelihood = load_data(recipe), build_model(recipe), likelihood_of(recipe)
    record = Record(folder)
    data = Data(recipe, dataset, record)
    module = _module(recipe, model, likelihood, data)
    callbacks: list[L.Callback] = [StopOnNonFinite(), LearningRate(recipe), record]
    if recipe.training.prior_updates is not None:
        callbacks.append(PriorUpdates(recipe.training.prior_updates))
    if recipe.training.patience is not None:
        stop = EarlyStopping("validation/nll", patience=recipe.training.patience)
        callbacks.insert(0, stop)
    with _quiet_lightning():
        trainer = _trainer(recipe, folder, callbacks, devices, progress, loggers)
        trainer.fit(module, datamodule=data, ckpt_path=record.last(), weights_only=True)
    if not trainer.is_global_zero:
        return {}
    if recipe.posterior is not None:
        save(model, folder / "model")
    result = {
        "name": recipe.name,
        "metrics": evaluate(
            model,
            dataset.test,
            likelihood,
            samples=recipe.evaluation.samples,
            batch_size=recipe.evaluation.batch_size,
            seed=recipe.seed,
            data_size=data.size,
        ),
        "epochs": trainer.current_epoch,
        "parameters": {**count_parameters(model)._asdict()},
        "seconds": record.seconds,
        "seed": recipe.seed,
        "versions": {name: version(name) for name in ("leanbayes", "torch", "lightning")},
        "revision": _revision(),
    }
    write_json(finished, result)
    return result


def loggers_by_name(name: str, folder: Path) -> Any:
    """A Lightning logger that writes into the run folder."""
    if name == "csv":
        return CSVLogger(folder, name="csv", version="")
    return TensorBoardLogger(folder, name="tensorboard", version="") if name != "none" else False


def _trainer(
    recipe: Recipe,
    folder: Path,
    callbacks: list[L.Callback],
    devices: int,
    progress: bool,
    loggers: Any,
) -> L.Trainer:
    return L.Trainer(
        max_epochs=recipe.training.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=devices,
        precision=recipe.training.precision,
        gradient_clip_val=recipe.training.gradient_clip,
        callbacks=callbacks,
        logger=loggers,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=progress,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """No advertisements and no hints that do not apply to data in memory."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning")
            warnings.filterwarnings("ignore", message=r".*lr_scheduler\.step.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _open_folder(folder: Path, recipe: Recipe, *, resume: bool) -> Path:
    """A new run folder, or the one of the same recipe; the first rank looks after it."""
    if getattr(rank_zero_only, "rank", 0) != 0:
        return folder
    written = folder / "recipe.yaml"
    if not written.exists():
        write_text(written, recipe.to_yaml())
        return folder
    if not resume:
        raise FileExistsError(
            f"{folder} holds a run already; resume it with --resume, or choose another --out"
        )
    before = parse_yaml(written.read_text(encoding="utf-8"))
    now = parse_yaml(recipe.to_yaml())
    for key, value in now.items():
        if before.get(key) != value:
            raise ValueError(
                f"{folder} was started with another recipe: {key!r} was {before.get(key)!r} and is "
                f"now {value!r}; undo the change, or choose another --out"
            )
    check_recipe(before, str(written))
    return folder


def _module(recipe: Recipe, model: nn.Module, likelihood: Likelihood, data: Data) -> BayesianModule:
    spec = recipe.optimizer

    def optimizer(groups: list[dict[str, Any]]) -> Optimizer:
        if spec.name == "adam":
            return torch.optim.Adam(groups, betas=spec.betas)
        return torch.optim.SGD(groups, momentum=spec.momentum, nesterov=spec.nesterov)

    return BayesianModule(
        model,
        data_size=data.size,
        likelihood=likelihood,
        schedule=_SCHEDULES[recipe.kl.kind](**recipe.kl.options),
        count=recipe.kl.unit,
        lr=spec.lr,
        optimizer=optimizer,
        groups=partial(
            parameter_groups,
            multipliers=dict(spec.multipliers),
            weight_decay=spec.weight_decay,
            decayed=spec.decayed,
        ),
        train_samples=recipe.training.samples,
        validation_samples=recipe.evaluation.validation_samples,
        seed=recipe.seed,
    )


def _revision() -> str | None:
    """The git revision of the source, if there is one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
