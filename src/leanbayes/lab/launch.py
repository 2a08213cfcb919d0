"""Start of Lightning: number of processes, quiet output, checkpoints that are whole."""

import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from leanbayes.lab.checkpoints import Checkpoints
from leanbayes.lab.recipe import Recipe


class Processes(NamedTuple):
    """So many on each of so many machines."""

    devices: int
    nodes: int


def processes(asked: int | None = None, started: Mapping[str, str] | None = None) -> Processes:
    """Return the processes that torchrun or SLURM started, or those to start here."""
    started = os.environ if started is None else started
    if "TORCHELASTIC_RUN_ID" in started:
        starter, here = "torchrun", int(started["LOCAL_WORLD_SIZE"])
        there = Processes(here, int(started["WORLD_SIZE"]) // here)
    elif "SLURM_NTASKS" in started and started.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        starter, nodes = "SLURM", int(started.get("SLURM_NNODES", 1))
        there = Processes(max(1, int(started["SLURM_NTASKS"]) // nodes), nodes)
    else:
        return Processes(1 if asked is None else asked, 1)
    if asked not in (None, there.devices):
        raise ValueError(
            f"{starter} started {there.devices} processes on a machine, and {asked} devices were "
            "asked for; leave --devices out"
        )
    return there


def is_first() -> bool:
    """Return whether this process looks after the run folder."""
    return getattr(rank_zero_only, "rank", 0) == 0


class WholeCheckpoints(TorchCheckpointIO):
    """Checkpoints written completely, with a checksum, or not at all; a full disk is an error."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        target = Path(path)
        Checkpoints(target.parent).write(target, content.getbuffer())


def build_trainer(
    recipe: Recipe,
    folder: Path,
    callbacks: Sequence[L.Callback],
    together: Processes,
    *,
    progress: bool = True,
    loggers: Any = False,
) -> L.Trainer:
    """Return Lightning's trainer as a recipe wants it; checkpoints are a callback's business."""
    return L.Trainer(
        max_epochs=recipe.training.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=together.devices,
        num_nodes=together.nodes,
        precision=recipe.training.precision,
        gradient_clip_val=recipe.training.gradient_clip,
        callbacks=list(callbacks),
        plugins=[WholeCheckpoints()],
        logger=loggers,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=progress,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def loggers_by_name(name: str, folder: Path) -> Any:
    """Return a Lightning logger that writes into the run folder."""
    if name == "csv":
        return CSVLogger(folder, name="csv", version="")
    return TensorBoardLogger(folder, name="tensorboard", version="") if name != "none" else False


@contextmanager
def quiet_lightning() -> Iterator[None]:
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
