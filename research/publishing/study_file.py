"""A study's file: settings, and its parts as they are finished; a stopped study goes on with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.lab.files import read_object, write_text

__all__ = ["begun", "keep"]

_NUMBERS = re.compile(r"\[[^\[\]{}\"]*\]")


def begun(out: Path, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a file holds of the same study; an empty one if there is no file.

    Args:
        out: the JSON file.
        name: of the study.
        settings: everything that its numbers depend on; another value of one is refused.
    """
    settings = json.loads(json.dumps(settings))
    if not out.exists():
        return {"study": name, "settings": settings, "parts": {}}
    again = "choose another --out"
    study = read_object(out, {"study", "settings", "parts"}, f"a study of {name}", again)
    if study["study"] != name:
        raise ValueError(f"{out} holds a study of {study['study']} and not of {name}; {again}")
    for key, value in settings.items():
        before = study["settings"].get(key)
        if before != value:
            raise ValueError(
                f"{out} holds a study with another {key}: it was {before!r} and is now {value!r}; "
                f"undo the change, or {again}"
            )
    return study


def keep(out: Path, study: dict[str, Any], name: str, part: Mapping[str, Any]) -> None:
    """Add a finished part and write the file, with lists of numbers on one line."""
    study["parts"][name] = dict(part)
    text = json.dumps(study, indent=2, ensure_ascii=False)
    write_text(out, _NUMBERS.sub(lambda numbers: " ".join(numbers[0].split()), text) + "\n")
