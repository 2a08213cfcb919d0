"""``python -m benchmarks``: measure everything; with ``page`` or ``scaling``, write a page anew."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import leanbayes as lb
from leanbayes.saving.files import replace_file
from research.benchmarks import (
    distributed,
    limits,
    page,
    prediction,
    scale,
    scaling_page,
    startup,
    step,
)
from research.benchmarks.peers import environment
from research.benchmarks.step import Options
from research.measuring.harness import CLOCKS, as_json, pooled

ROOT = Path(__file__).parents[2]
RESULTS, DOCS, PEERS = ROOT / "results" / "bench", ROOT / "docs", ROOT / ".venv-bench"
BENCHMARKS = {
    "step": step.run,
    "prediction": prediction.run,
    "limits": limits.run,
    "startup": startup.run,
    "scale": scale.run,
    "distributed": distributed.run,
}
WITH_PEERS = ("step", "prediction")
"""Benchmarks that are also run without native kernels and with other libraries, and in several
processes, because the same work differs more between processes than within one."""
PROCESSES = 3
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""What glibc frees stays with the process, so that page faults are no part of the figures."""


def main() -> None:
    options = _parser().parse_args()
    if options.command == "page":
        print(f"Written to {page.write(options.results, options.docs)}.")
    elif options.command == "scaling":
        print(f"Written to {scaling_page.write(options.docs)}.")
    elif options.command == "one":
        one(options)
    else:
        everything(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "page", "scaling", "one"))
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="these benchmarks; else all")
    parser.add_argument("--rounds", type=int, help="turns that must count; 12, or 3 with --quick")
    parser.add_argument(
        "--processes", type=int, help=f"of steps and predictions; {PROCESSES}, or 1 with --quick"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu for a busy machine")
    parser.add_argument("--quick", action="store_true", help="few turns and sizes: to try it out")
    parser.add_argument("--no-peers", action="store_true", help="only our own methods")
    parser.add_argument(
        "--keep-memory", action="store_true", help="the allocator returns nothing to the system"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS)
    parser.add_argument("--peers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser


def one(options: argparse.Namespace) -> None:
    """One benchmark in this process, to a file: what ``everything`` starts."""
    torch.set_num_threads(options.threads)
    settings = Options(options.rounds, options.clock, options.quick, options.peers)
    (name,) = options.only
    options.out.write_text(json.dumps(BENCHMARKS[name](settings)), encoding="utf-8")


def everything(options: argparse.Namespace) -> None:
    """Every benchmark in processes of its own, then the page."""
    rounds = _given(options.rounds, 3 if options.quick else 12)
    if rounds < 2:
        sys.exit(f"--rounds is {rounds}; quartiles need at least 2")
    wanted = _given(options.processes, 1 if options.quick else PROCESSES)
    if wanted < 1:
        sys.exit(f"--processes is {wanted}; at least 1 is needed")
    python = None if options.no_peers else environment(PEERS, ROOT / "constraints.txt")
    for name in options.only or BENCHMARKS:
        begin = time.monotonic()
        processes = wanted if name in WITH_PEERS else 1
        settings: dict[str, dict[str, Any]] = {"native": {}}
        if name in WITH_PEERS:
            settings["python"] = {"environment": {"LEANBAYES_NATIVE": "0"}}
            settings |= {"peers": {"python": python}} if python else {}
        runs: dict[str, list[dict[str, Any]]] = {branch: [] for branch in settings}
        for _ in range(processes):  # branches take turns, as methods do
            for branch, how in settings.items():
                runs[branch].append(_apart(name, options, rounds, **how))
        config = {"rounds": rounds, "processes": processes, "clock": options.clock}
        result = {
            "config": config | {"quick": options.quick, "keep_memory": options.keep_memory},
            "minutes": round((time.monotonic() - begin) / 60, 1),
            "branches": {branch: _together(found) for branch, found in runs.items()},
        }
        options.results.mkdir(parents=True, exist_ok=True)
        path = options.results / f"{name}.json"
        replace_file(path, (json.dumps(result, indent=1) + "\n").encode())
        print(f"{name}: {result['minutes']} minutes, written to {path}", flush=True)
    print(f"Written to {page.write(options.results, options.docs)}.")


def _given(number: int | None, default: int) -> int:
    return default if number is None else number


def _together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What several processes found, as one result."""
    if len(found) == 1 or "setups" not in found[0]:
        return found[0]
    setups = {
        setup: as_json(
            {name: pooled([one["setups"][setup][name] for one in found]) for name in costs}
        )
        for setup, costs in found[0]["setups"].items()
    }
    return {**found[0], "setups": setups}


def _apart(
    name: str,
    options: argparse.Namespace,
    rounds: int,
    environment: dict[str, str] | None = None,
    python: Path | None = None,
) -> dict[str, Any]:
    """One benchmark in a process of its own, perhaps of another Python with this leanbayes."""
    path = os.pathsep.join((str(Path(lb.__file__).parents[1]), str(ROOT)))
    memory = KEPT_MEMORY if options.keep_memory else {}
    variables = {**os.environ, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "5", **memory}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        interpreter = [str(python), "-W", "ignore"] if python else [sys.executable]  # peers warn
        command = [*interpreter, "-m", "research.benchmarks.commands", "one", "--only", name]
        command += ["--rounds", str(rounds), "--threads", str(options.threads)]
        command += ["--clock", options.clock, "--out", str(out)]
        command += ["--quick"] * options.quick + ["--peers"] * bool(python)
        subprocess.run(command, check=True, env={**variables, **(environment or {})}, cwd=ROOT)
        return json.loads(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
