"""Studies as files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.lab.files import read_object, write_text

__all__ = ["read_study", "write_study"]

_NUMBERS = re.compile(r"\[\s+([-+.,\deE\s]+?)\s+\]")
_KEYS = frozenset({"name", "noise", "images", "accuracy", "elbo", "histogram", "seed"})


def write_study(path: Path, study: Mapping[str, Any]) -> Path:
    """Write a study as JSON, with lists of numbers on one line each."""
    text = json.dumps(study, indent=1, ensure_ascii=False)
    return write_text(path, _NUMBERS.sub(lambda numbers: f"[{_joined(numbers[1])}]", text) + "\n")


def _joined(numbers: str) -> str:
    return ", ".join(number.strip() for number in numbers.split(","))


def read_study(path: Path) -> dict[str, Any]:
    """What :func:`write_study` wrote."""
    what, again = "what python -m research papers variance writes", "study its run again"
    return read_object(path, _KEYS, what, again)
