"""What it takes to start: importing leanbayes next to torch, and ``leanbayes --help``.

Every start is a separate process. Seconds are first quartiles, which a busy machine disturbs
least; ratios are to the import of torch alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from research.benchmarks.step import Options
from research.measuring.harness import Turn, cost
from research.measuring.machine import facts

STARTS = {
    "import torch": "import torch",
    "import torch, leanbayes": "import torch, leanbayes",
    "leanbayes --help": "import sys; sys.argv = ['leanbayes', '--help']; "
    "from leanbayes_cli import main; main()",
}
PROBE = "pass"


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


CLOCKS = {"wall": time.perf_counter, "cpu": _of_children}


def run(options: Options) -> dict[str, Any]:
    """Return seconds of every start, in turns, and their ratios to the import of torch."""
    rounds, clock = max(3, options.rounds // 3), CLOCKS[options.clock]
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    probes: list[float] = []
    for code in STARTS.values():
        started(code, clock)  # files come from the cache from now on
    for _ in range(rounds):
        for name, code in STARTS.items():
            seconds[name].append(started(code, clock))
        probes.append(started(PROBE, clock))
    first, *others = STARTS
    ratios = {
        name: cost([Turn(*t) for t in zip(seconds[first], seconds[name], probes, strict=True)])
        for name in others
    }
    return {
        **facts(),
        "seconds": {name: sorted(found)[len(found) // 4] for name, found in seconds.items()},
        "ratios": {name: vars(found) for name, found in ratios.items()},
    }


def started(code: str, clock: Callable[[], float]) -> float:
    """Return seconds until a new Python has run a line and ended."""
    begin = clock()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return clock() - begin
