"""Faults and the study of them: every case ends in the right result, or in one sentence."""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leanbayes.lab.provenance import environment_facts
from research.publishing.study_file import StudyFile, Tell
from research.trust.faults.process import Ended, run
from research.trust.faults.subjects import SUBJECTS, Workshop

SIGNALS = {"SIGKILL": 9, "SIGTERM": 15, "SIGINT": 2, "SIGHUP": 1}


@contextlib.contextmanager
def _disk(folder: Path, size: str) -> Iterator[None]:
    """A small disk at a folder; needs the rights to mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def _remount(folder: Path, options: str) -> None:
    mount = ["mount", "-o", f"remount,{options}", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)


def _signalled(shop: Workshop, name: str, folder: Path, draw: random.Random, kind: str) -> str:
    _, calls = shop.reference(name)
    at, number = draw.randint(1, calls), SIGNALS[kind]
    first = run(SUBJECTS[name].start, folder, at=at, number=number)
    allowed = {-9} if kind == "SIGKILL" else {0, -number, 128 + number}
    problem = "" if first.code in allowed else f"exit code {first.code}: {first.error[-300:]}"
    if "Traceback" in first.error:
        problem = f"traceback: {first.error[-300:]}"
    return problem or _goes_on(shop, name, folder)


def _moved_clock(shop: Workshop, name: str, folder: Path, draw: random.Random) -> str:
    _, calls = shop.reference(name)
    ahead = draw.choice([-1e8, -3600.0, 3600.0, 1e8])
    first = run(SUBJECTS[name].start, folder, at=draw.randint(1, calls), ahead=ahead)
    return _is_result(shop, name, folder, first)


def _full_disk(shop: Workshop, name: str, folder: Path, draw: random.Random) -> str:
    with _disk(folder / "out", f"{draw.choice([4, 8, 16, 32, 64])}k"):
        first = run(SUBJECTS[name].start, folder)
        if first.code == 0:
            return _is_result(shop, name, folder, first)
        problem = "" if first.sentence else f"unclear: {first.error[-300:]}"
        _remount(folder / "out", "size=100m")
        return problem or _goes_on(shop, name, folder)


def _read_only(shop: Workshop, name: str, folder: Path, draw: random.Random) -> str:
    with _disk(folder / "out", "100m"):
        _remount(folder / "out", "ro")
        first = run(SUBJECTS[name].start, folder)
        problem = "" if first.sentence else f"exit code {first.code}: {first.error[-300:]}"
        _remount(folder / "out", "rw")
        return problem or _goes_on(shop, name, folder)


def _changed_byte(shop: Workshop, name: str, folder: Path, draw: random.Random) -> str:
    """In any file of a run: a finished one that is read, or one that was killed and goes on.

    Not in the recipe and the table, which may ask for something else with another byte.
    """
    if not SUBJECTS[name].needs_run:
        _, calls = shop.reference(name)
        run(SUBJECTS[name].start, folder, at=draw.randint(calls // 2, calls), number=9)
    place = folder / ("run" if SUBJECTS[name].needs_run else "out")
    files = sorted(p for p in place.rglob("*") if p.is_file() and p.stat().st_size)
    files = [p for p in files if p.suffix != ".yaml"]
    if not files:
        return ""
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    problem = _is_result(shop, name, folder, run(SUBJECTS[name].again, folder))
    return problem and f"{path.relative_to(folder)}: {problem}"


def _goes_on(shop: Workshop, name: str, folder: Path) -> str:
    then = run(SUBJECTS[name].again, folder)
    if then.code and name == "train" and not list((folder / "out/run").glob("checkpoints/*")):
        then = run(SUBJECTS[name].start, folder)  # nothing to go on from, and it says so
    if then.code:
        return f"does not go on: {then.error[-300:]}"
    return _is_result(shop, name, folder, then)


def _is_result(shop: Workshop, name: str, folder: Path, ended: Ended) -> str:
    """Empty if a command ended in the right result or a sentence, else what is wrong."""
    if ended.code:
        return "" if ended.sentence else f"unclear: {ended.error[-300:]}"
    found = SUBJECTS[name].result(folder)
    return "" if found == shop.reference(name)[0] else "another result"


Fault = Callable[[Workshop, str, Path, random.Random], str]
FAULTS: dict[str, Fault] = {
    **{kind: partial(_signalled, kind=kind) for kind in SIGNALS},
    "clock moved": _moved_clock,
    "full disk": _full_disk,
    "read-only": _read_only,
    "changed byte": _changed_byte,
}


@dataclass(frozen=True)
class Cases:
    """Which cases are run.

    Args:
        cases: Number of cases.
        seed: Random seed.
    """

    cases: int = 200
    seed: int = 0


_COMMON = ("train", "fit", "new", "predict", "report")
_RARE = ("sweep", "export", "demo")
"""Slow ones, which get one case of six."""


def case(number: int, seed: int) -> tuple[str, str, random.Random]:
    """Command and fault of a case, and what draws its details."""
    draw = random.Random(f"{seed} {number}")
    name = draw.choice(_RARE) if number % 6 == 5 else _COMMON[number % len(_COMMON)]
    return name, draw.choice(list(FAULTS)), draw


def try_case(shop: Workshop, number: int, seed: int) -> dict[str, Any]:
    """Run a case; ``problem`` is empty if it ended as it should."""
    name, fault, draw = case(number, seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        problem = FAULTS[fault](shop, name, shop.copy(Path(place)), draw)
    duration = time.monotonic() - started
    found = {"command": name, "fault": fault, "problem": problem, "duration": duration}
    return {**found, **environment_facts()}


def study(settings: Cases, out: Path, tell: Tell) -> dict[str, Any]:
    """Run all cases."""
    torch.set_num_threads(1)
    file = StudyFile(out, "faults", asdict(settings))
    with tempfile.TemporaryDirectory() as place:
        shop = Workshop(Path(place))
        parts = {
            f"case {number:03d}": partial(try_case, shop, number, settings.seed)
            for number in range(settings.cases)
        }
        return file.fill(parts, tell)
