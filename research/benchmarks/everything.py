"""Every benchmark of ``make bench`` in processes of its own, and the files of results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import leanbayes as lb
from leanbayes.lab.files import write_json
from research.benchmarks.peers import environment
from research.benchmarks.step import Options
from research.benchmarks.worker import BENCHMARKS
from research.measuring.harness import as_json, pooled
from research.publishing.paper import RESULTS, ROOT

PEERS = ROOT / ".venv-bench"
WITH_PEERS = ("step", "prediction")
"""Benchmarks that are also run without native kernels and with other libraries, and in several
processes, because the same work differs more between processes than within one."""
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""What glibc frees stays with the process, so that page faults are not part of the figures."""


def measure_everything(
    options: Options,
    *,
    only: Sequence[str] = (),
    processes: int = 3,
    threads: int = 1,
    peers: bool = True,
    keep_memory: bool = False,
    results: Path = RESULTS / "bench",
) -> None:
    """Run benchmarks, all if none is named, and write a file for each.

    Args:
        options: of every benchmark.
        only: names of benchmarks.
        processes: in which steps and predictions are measured.
        threads: of torch.
        peers: measure other libraries too.
        keep_memory: let the allocator return nothing to the system.
        results: the folder.
    """
    python = environment(PEERS, ROOT / "constraints.txt") if peers else None
    memory = KEPT_MEMORY if keep_memory else {}
    for name in only or BENCHMARKS:
        begin, count = time.monotonic(), processes if name in WITH_PEERS else 1
        branches: dict[str, dict[str, Any]] = {"native": {}}
        if name in WITH_PEERS:
            branches["python"] = {"LEANBAYES_NATIVE": "0"}
            branches |= {"peers": {"python": python}} if python else {}
        runs: dict[str, list[dict[str, Any]]] = {branch: [] for branch in branches}
        for _ in range(count):  # branches take turns, as methods do
            for branch, how in branches.items():
                runs[branch].append(_apart(name, options, threads, {**memory, **how}))
        config = {"rounds": options.rounds, "processes": count, "clock": options.clock}
        result = {
            "config": config | {"quick": options.quick, "keep_memory": keep_memory},
            "minutes": round((time.monotonic() - begin) / 60, 1),
            "branches": {branch: together(found) for branch, found in runs.items()},
        }
        path = write_json(results / f"{name}.json", result)
        print(f"{name}: {result['minutes']} minutes, written to {path}", flush=True)


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge what several processes found into one result."""
    if len(found) == 1 or "setups" not in found[0]:
        return found[0]
    setups = {
        setup: as_json(
            {name: pooled([one["setups"][setup][name] for one in found]) for name in costs}
        )
        for setup, costs in found[0]["setups"].items()
    }
    return {**found[0], "setups": setups}


def _apart(name: str, options: Options, threads: int, how: dict[str, Any]) -> dict[str, Any]:
    """One benchmark in a process of its own, perhaps of another Python with this leanbayes."""
    python = how.pop("python", None)
    interpreter = [str(python), "-W", "ignore"] if python else [sys.executable]  # peers warn
    path = os.pathsep.join((str(Path(lb.__file__).parents[1]), str(ROOT)))
    settings = {**asdict(options), "peers": bool(python), "threads": threads}
    variables = {**os.environ, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "5", **how}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [*interpreter, "-m", "research.benchmarks.worker", name, json.dumps(settings)]
        subprocess.run([*command, str(out)], check=True, env=variables, cwd=ROOT)
        return json.loads(out.read_text(encoding="utf-8"))
