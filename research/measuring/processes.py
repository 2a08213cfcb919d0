"""A few processes with one thread each that work together over gloo on this machine."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def together(work: Callable[..., None], folder: str, *arguments: Any, processes: int = 2) -> None:
    """Run ``work(rank, folder, *arguments)`` in every process; raises if one of them fails.

    Args:
        work: a function of a module, which new processes can import.
        folder: where processes find each other, and leave what they have found.
        *arguments: for ``work``.
        processes: how many there are.
    """
    mp.spawn(  # type: ignore[attr-defined,no-untyped-call]
        _joined, (work, folder, processes, arguments), nprocs=processes
    )


def _joined(
    rank: int, work: Callable[..., None], folder: str, processes: int, arguments: tuple[Any, ...]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", rendezvous, rank=rank, world_size=processes)
    work(rank, folder, *arguments)
    dist.destroy_process_group()
    os._exit(0)  # one exit in ten aborts otherwise: a thread of torch's outlives the interpreter
