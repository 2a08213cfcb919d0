"""How many processes train together, and how their checkpoints are written."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from leanbayes.lab.files import write_bytes

__all__ = ["Checkpoints", "Processes", "processes"]


class Processes(NamedTuple):
    """So many on each of so many machines."""

    devices: int
    nodes: int


def processes(asked: int | None = None, started: Mapping[str, str] | None = None) -> Processes:
    """As many as torchrun or SLURM started; else as many as asked for, on this machine.

    Args:
        asked: processes on a machine, or None to take what there is.
        started: environment variables; those of this process, if not given.

    Example:
        >>> processes(2, {})
        Processes(devices=2, nodes=1)
        >>> cluster = {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}
        >>> processes(None, cluster)
        Processes(devices=4, nodes=2)
    """
    started = os.environ if started is None else started
    if "TORCHELASTIC_RUN_ID" in started:
        starter, there = "torchrun", _of_torchrun(started)
    elif "SLURM_NTASKS" in started and started.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        starter, there = "SLURM", _of_slurm(started)
    else:
        return Processes(1 if asked is None else asked, 1)
    if asked not in (None, there.devices):
        raise ValueError(
            f"{starter} started {there.devices} processes on a machine, and {asked} devices were "
            "asked for; leave --devices out"
        )
    return there


def _of_torchrun(started: Mapping[str, str]) -> Processes:
    here = int(started["LOCAL_WORLD_SIZE"])
    return Processes(here, int(started["WORLD_SIZE"]) // here)


def _of_slurm(started: Mapping[str, str]) -> Processes:
    nodes = int(started.get("SLURM_NNODES", 1))
    return Processes(max(1, int(started["SLURM_NTASKS"]) // nodes), nodes)


class Checkpoints(TorchCheckpointIO):
    """Checkpoints that are there whole or not at all, also where the disk is full."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_bytes(os.fspath(path), content.getbuffer())
