"""Every benchmark of ``make bench`` in separate processes, and the files of results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import leanbayes as lb
from leanbayes.lab.files import write_json
from leanbayes.lab.provenance import sources_hash
from research.benchmarks import networks_run, one_pass, prediction
from research.benchmarks.networks import SETUPS
from research.benchmarks.peers import environment
from research.benchmarks.step import Options
from research.benchmarks.worker import BENCHMARKS
from research.measuring.harness import as_json, pooled
from research.publishing.paper import RESULTS, ROOT

PEERS = ROOT / ".venv-bench"
PURE = ("step", "prediction")
"""Benchmarks that are also run without native kernels."""
WITH_PEERS = (*PURE, "networks")
"""Benchmarks that are also run with other libraries, and in several processes, because the same
work differs more between processes than within one."""
TWICE = ("networks",)
"""Benchmarks that run in at most two processes, because one takes minutes."""
PARTS = {
    "step": tuple(SETUPS),
    "prediction": tuple(prediction.EXAMPLES),
    "one_pass": tuple(one_pass.NETWORKS),
    "networks": networks_run.PARTS,
}
"""What of a benchmark runs in separate processes: a stopped run resumes at the next one."""
PLAIN_PARTS = ("readme", "mixture", "large")
"""Parts that no peer is measured on."""
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
    """Run benchmarks, all if none is named, and write a file for each."""
    python = environment(PEERS, ROOT / "constraints.txt") if peers else None
    memory = KEPT_MEMORY if keep_memory else {}
    for name in only or BENCHMARKS:
        count = processes if name in WITH_PEERS else 1
        count = min(count, 2) if name in TWICE else count
        branches: dict[str, dict[str, Any]] = {"native": {}}
        if name in PURE:
            branches["python"] = {"LEANBAYES_NATIVE": "0"}
        if name in WITH_PEERS:
            branches |= {"peers": {"python": python}} if python else {}
        runs: dict[str, list[dict[str, Any]]] = {branch: [] for branch in branches}
        parts = Parts(results / f"{name}.partial", [asdict(options), threads, keep_memory])
        settings = [*parts.settings, count, sorted(branches)]
        if _is_measured(results / f"{name}.json", settings):
            print(f"{name} is measured with this code; delete its file to measure it again")
            continue
        for number in range(count):  # branches take turns, as methods do
            for branch, how in branches.items():
                found = []
                for part in PARTS.get(name, ("",)):
                    chosen = replace(options, part=part)
                    run = partial(_apart, name, chosen, threads, {**memory, **how})
                    if branch != "peers" or part not in PLAIN_PARTS:
                        found.append(parts.once(f"{branch} {number} {part}", run))
                runs[branch].append(networks_run.merged(found))
        config = {"rounds": options.rounds, "processes": count, "clock": options.clock}
        result = {
            "config": config | {"quick": options.quick, "keep_memory": keep_memory},
            "settings": settings,
            "minutes": round(parts.seconds / 60, 1),
            "branches": {branch: together(found) for branch, found in runs.items()},
        }
        path = write_json(results / f"{name}.json", result)
        parts.path.unlink(missing_ok=True)
        print(f"{name}: {result['minutes']} minutes, written to {path}", flush=True)


def _is_measured(path: Path, settings: Sequence[Any]) -> bool:
    """Whether a file has a benchmark of the same code and settings: a stopped run resumes."""
    if not path.exists():
        return False
    return bool(json.loads(path.read_text(encoding="utf-8")).get("settings") == settings)


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge what several processes found into one result."""
    if len(found) == 1 or "setups" not in found[0]:
        return found[0]
    parts = [part for part in ("setups", "predictions") if part in found[0]]
    return found[0] | {part: _pooled([one[part] for one in found]) for part in parts}


def _pooled(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Costs by setup and method; a method counts where it ran in every process."""
    return {
        setup: as_json(
            {
                name: pooled([one[setup][name] for one in found])
                for name in costs
                if all(name in one[setup] for one in found)
            }
        )
        for setup, costs in found[0].items()
    }


class Parts:
    """Finished processes of a benchmark, in a file, so that a stopped run resumes.

    Args:
        path: the file.
        settings: what the parts depend on; parts of others, or of other code, do not count.
    """

    def __init__(self, path: Path, settings: Sequence[Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps([*settings, sources_hash()]))
        self.parts: dict[str, Any] = {}
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            self.parts = known["parts"] if known["settings"] == self.settings else {}

    def once(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a part that is known, or run it and keep it."""
        if name not in self.parts:
            begin = time.monotonic()
            found = run()
            self.parts[name] = {"found": found, "seconds": time.monotonic() - begin}
            write_json(self.path, {"settings": self.settings, "parts": self.parts})
        result: dict[str, Any] = self.parts[name]["found"]
        return result

    @property
    def seconds(self) -> float:
        """The time that all parts took."""
        return sum(part["seconds"] for part in self.parts.values())


def _apart(name: str, options: Options, threads: int, how: dict[str, Any]) -> dict[str, Any]:
    """Return one benchmark in a separate process, perhaps of another Python with this leanbayes."""
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
