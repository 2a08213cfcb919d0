"""Worker processes that end with this one, also by Ctrl-C."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

R = TypeVar("R")


def map_in_processes(
    work: Callable[..., R], arguments: Iterable[tuple[Any, ...]], processes: int
) -> Generator[R]:
    """Call a function with each of many arguments, and yield what it returns in their order.

    Example:
        >>> list(map_in_processes(max, [(1, 2), (4, 3)], processes=1))
        [2, 4]
    """
    if processes == 1:
        yield from (work(*each) for each in arguments)
        return
    before = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_begin)
    try:
        with _deaf_to_ctrl_c():
            coming: list[Future[R]] = [pool.submit(work, *each) for each in arguments]
        for future in coming:
            yield future.result()
        pool.shutdown()
    except BaseException:
        for process in set(multiprocessing.active_children()) - set(before):
            process.terminate()
        pool.shutdown(cancel_futures=True)  # its thread sees them end, and ends itself
        raise


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started here leave Ctrl-C to this one."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_first_process, daemon=True).start()


def _end_with_the_first_process() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
