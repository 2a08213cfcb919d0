"""The study of planted errors: areas of the package, and the tests that should notice."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leanbayes.lab.provenance import environment_facts, sources_hash
from research.publishing.study_file import StudyFile, Tell, write_study
from research.trust.mutation.mutants import chosen
from research.trust.mutation.native import chosen_native, load_kernels
from research.trust.mutation.run import AnyMutant, try_mutants

NATIVE = "kernels (C++)"
_OWN = ("compile", "cost", "instructions")
"""Tests that start other processes, which load the installed library."""

AREAS: dict[str, list[str]] = {
    "metrics": ["tests/metrics"],
    "likelihoods": ["tests/likelihoods", "tests/metrics", "tests/prediction/test_prediction.py"],
    "compression": ["tests/compression"],
    "distributions": ["tests/distributions", "tests/posteriors", "tests/priors"],
    "kernels": ["tests/kernels", "--ignore=tests/kernels/test_compile.py"],
    NATIVE: ["tests/kernels", *(f"--ignore=tests/kernels/test_{name}.py" for name in _OWN)],
    "prediction": ["tests/prediction"],
    "training": ["tests/training"],
}
"""Folders of the package, and the tests that should notice errors there."""

_ROUND = 60
"""Mutants of a folder that are tried before those of the next one."""


@dataclass(frozen=True)
class Choice:
    """Which errors are planted.

    Args:
        mutants: Number of mutants per folder of the package.
        native: Number of mutants of the C++ kernels, which are compiled for each.
        seed: Random seed.
    """

    mutants: int = 45
    native: int = 20
    seed: int = 0


def study(settings: Choice, areas: list[str], out: Path, tell: Tell) -> dict[str, Any]:
    """Plant errors and run tests; a stopped study goes on, and survivors can be tried again."""
    notes = Path(tempfile.gettempdir()) / "leanbayes-mutants"
    notes.mkdir(exist_ok=True)
    file = StudyFile(out, "planted errors", asdict(settings))
    rounds = range(0, settings.mutants, _ROUND)
    for start, area in itertools.product(rounds, areas):
        mutants = _chosen(area, settings)[start : start + _ROUND]
        left = [m for m in mutants if _is_open(file.parts.get(m.name))]
        started = time.monotonic()

        def keep(mutant: AnyMutant, found: Mapping[str, Any]) -> None:
            known = file.parts.get(mutant.name, {})
            reason = {"reason": known["reason"]} if "reason" in known else {}
            file.keep(mutant.name, {**found, **(reason if _is_open(found) else {})})
            tell(mutant.name, found)

        if left:
            tests = [*AREAS[area], *([] if area == NATIVE else [f"src/leanbayes/{area}"])]
            place = notes / f"{sources_hash()[:12]}-{area}.jsonl"
            prepare = load_kernels if area == NATIVE else bool
            try_mutants(left, tests, place, keep, prepare)
            facts = {**environment_facts(), "duration": time.monotonic() - started}
            file.study.setdefault("runs", []).append({"area": area, "tried": len(left), **facts})
            write_study(out, file.study)
    return file.study


def _chosen(area: str, settings: Choice) -> Sequence[AnyMutant]:
    if area == NATIVE:
        return chosen_native(settings.native, settings.seed)
    return chosen(area, settings.mutants, settings.seed)


def _is_open(part: Mapping[str, Any] | None) -> bool:
    """Whether a mutant is to be tried: it was not yet, or no test noticed it."""
    return part is None or part["verdict"] in {"survived", "uncovered"}
