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
from leanbayes.io import save
from leanbayes.lab.architectures import build
from leanbayes.lab.data import Batches, Dataset, load
from leanbayes.lab.evaluate import evaluate
from leanbayes.lab.files import told_if_full, write_json, write_text
from leanbayes.lab.loops import Data, LearningRate, Record
from leanbayes.lab.probes import Probe
from leanbayes.lab.processes import Checkpoints, Processes, processes
from leanbayes.lab.recipe import Recipe, check_recipe
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lightning import BayesianModule, PriorUpdates, StopOnNonFinite
from leanbayes.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.model import count_parameters
from leanbayes.parameters import parameter_groups

__all__ = [
    "build_model",
    "build_module",
    "likelihood_of",
    "load_data",
    "loggers_by_name",
    "provenance",
    "train",
]

_DESCRIBING = {"published", "cut", "choices"}
_SCHEDULES: dict[str, Any] = {
    "constant": schedules.Constant,
    "linear": schedules.LinearRamp,
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
    devices: int | None = None,
    progress: bool = True,
    loggers: Any = False,
) -> dict[str, Any]:
    """Train a recipe, evaluate it, and write everything to a run folder.

    Args:
        recipe: what to run.
        out: the run folder.
        resume: go on from the last checkpoint of a run that was stopped.
        devices: how many processes train together; one, or as many as torchrun or SLURM started,
            if not given.
        progress: show a progress bar.
        loggers: Lightning loggers beside ``metrics.csv``.

    Returns:
        What ``result.json`` holds.
    """
    together, folder = processes(devices), Path(out)
    _check_folder(folder, recipe, resume=resume)
    finished = folder / "result.json"
    if finished.exists():
        return dict(json.loads(finished.read_text(encoding="utf-8")))
    dataset, model, likelihood = load_data(recipe), build_model(recipe), likelihood_of(recipe)
    record = Record(folder)
    data = Data(recipe, dataset, record)
    module = build_module(recipe, model, likelihood, data.size)
    _open_folder(folder, recipe)
    callbacks: list[L.Callback] = [StopOnNonFinite(), LearningRate(recipe), record]
    if recipe.training.prior_updates is not None:
        callbacks.append(PriorUpdates(recipe.training.prior_updates))
    if recipe.training.patience is not None:
        stop = EarlyStopping("validation/nll", patience=recipe.training.patience)
        callbacks.insert(0, stop)
    probe = None
    if recipe.probe is not None:
        probe = Probe(recipe.probe, Batches(data.validation, recipe.evaluation.batch_size))
        callbacks.append(probe)
    with _quiet_lightning():
        trainer = _trainer(recipe, folder, callbacks, together, progress, loggers)
        trainer.fit(module, datamodule=data, ckpt_path=record.last(), weights_only=True)
    if not trainer.is_global_zero:
        return {}
    if recipe.posterior is not None:
        with told_if_full(folder / "model.safetensors"):
            save(model, folder / "model")
    result: dict[str, Any] = {
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
        **provenance(recipe),
    }
    if probe is not None:
        result["metrics"].update(probe.metrics())
        result["probe"] = {str(step): found for step, found in probe.found.items()}
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
    together: Processes,
    progress: bool,
    loggers: Any,
) -> L.Trainer:
    return L.Trainer(
        max_epochs=recipe.training.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=together.devices,
        num_nodes=together.nodes,
        precision=recipe.training.precision,
        gradient_clip_val=recipe.training.gradient_clip,
        callbacks=callbacks,
        plugins=[Checkpoints()],
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


def _is_first() -> bool:
    """The first rank looks after the run folder."""
    return getattr(rank_zero_only, "rank", 0) == 0


def _open_folder(folder: Path, recipe: Recipe) -> None:
    """A run folder begins with its recipe, once everything else could be built."""
    written = folder / "recipe.yaml"
    if _is_first() and not written.exists():
        write_text(written, recipe.to_yaml())


def _check_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """Refuse a folder of another recipe, or one that nobody asked to go on with."""
    written = folder / "recipe.yaml"
    if not _is_first() or not written.exists():
        return
    if not resume:
        raise FileExistsError(
            f"{folder} holds a run already; resume it with --resume, or choose another --out"
        )
    started = check_recipe(parse_yaml(written.read_text(encoding="utf-8")), str(written))
    before, now = (parse_yaml(either.to_yaml()) for either in (started, recipe))
    for key, value in now.items():
        if key not in _DESCRIBING and before[key] != value:
            raise ValueError(
                f"{folder} was started with another recipe: {key!r} was {before[key]!r} and is "
                f"now {value!r}; undo the change, or choose another --out"
            )


def build_module(
    recipe: Recipe, model: nn.Module, likelihood: Likelihood, data_size: int
) -> BayesianModule:
    """What Lightning trains: the recipe's objective, schedules and parameter groups.

    Args:
        recipe: what to run.
        model: as :func:`build_model` makes it.
        likelihood: as :func:`likelihood_of` makes it.
        data_size: how many training examples there are.
    """
    spec = recipe.optimizer

    def optimizer(groups: list[dict[str, Any]]) -> Optimizer:
        if spec.name == "adam":
            return torch.optim.Adam(groups, betas=spec.betas)
        return torch.optim.SGD(groups, momentum=spec.momentum, nesterov=spec.nesterov)

    return BayesianModule(
        model,
        data_size=data_size,
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


def provenance(recipe: Recipe) -> dict[str, Any]:
    """What anybody needs to get the same numbers again."""
    return {
        "seed": recipe.seed,
        "versions": {name: version(name) for name in ("leanbayes", "torch", "lightning")},
        "revision": _revision(),
        "recipe": parse_yaml(recipe.to_yaml()),
    }


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
