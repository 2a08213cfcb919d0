"""The file of a study: settings and finished parts; a stopped study resumes from it."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.progress import track

from leanbayes.lab.files import read_object, write_text

_NUMBERS = re.compile(r"\[[^\[\]{}\"]*\]")

Part = Mapping[str, Any]
Tell = Callable[[str, Part], object]
"""Called with the name of every part and its content."""


def write_study(path: Path, study: Mapping[str, Any]) -> Path:
    """Write a study as JSON, with lists of numbers on one line each."""
    text = json.dumps(study, indent=2, ensure_ascii=False)
    return write_text(path, _NUMBERS.sub(lambda found: " ".join(found[0].split()), text) + "\n")


def read_study(path: Path, command: str) -> dict[str, Any]:
    """Read the file of a study, which ``python -m research COMMAND`` writes."""
    return read_object(
        path, {"settings", "parts"}, "a study", f"run python -m research {command} again"
    )


def refuse_changes(path: Path, before: Part, now: Part, what: str = "study") -> None:
    """Refuse to go on with a file of other settings."""
    for key, value in now.items():
        if before.get(key) != value:
            raise ValueError(
                f"{path} holds a {what} with another {key}: it was {before.get(key)!r} and is now "
                f"{value!r}; undo the change, or choose another --out"
            )


class StudyFile:
    """A study that is written part by part.

    Args:
        path: the JSON file; a file of the same study is resumed.
        name: of the study.
        settings: everything that its numbers depend on; another value of one is refused.
    """

    def __init__(self, path: str | Path, name: str, settings: Mapping[str, Any]) -> None:
        self.path = Path(path)
        settings = json.loads(json.dumps(settings))
        self.study: dict[str, Any] = {"study": name, "settings": settings, "parts": {}}
        if self.path.exists():
            self.study = self._known(name, settings)

    def _known(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        path, again = self.path, "choose another --out"
        study = read_object(path, self.study.keys(), f"a study of {name}", again)
        if study["study"] != name:
            raise ValueError(f"{path} holds a study of {study['study']} and not of {name}; {again}")
        refuse_changes(path, study["settings"], settings)
        return study

    @property
    def parts(self) -> dict[str, Any]:
        """The finished parts by name."""
        parts: dict[str, Any] = self.study["parts"]
        return parts

    def keep(self, name: str, part: Part) -> None:
        """Add a finished part and write the file."""
        self.parts[name] = dict(part)
        write_study(self.path, self.study)

    def fill(
        self,
        parts: Mapping[str, Callable[[], Part]],
        tell: Tell | None = None,
        *,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Make the parts that the file lacks, writing it after each; return the whole study."""
        for name, make in track(parts.items(), "Parts", disable=not progress):
            if name not in self.parts:
                self.keep(name, make())
            if tell is not None:
                tell(name, self.parts[name])
        return self.study


def show(*columns: str) -> Tell:
    """Return a function that prints some numbers of a part.

    Example:
        >>> show("nll", "steps")("seed 0", {"nll": {"value": 0.25, "error": 0.1}, "steps": [1, 9]})
        seed 0: NLL 0.2500, steps 9
    """

    def tell(name: str, part: Part) -> None:
        numbers = (f"{_title(column)} {_number(part[column])}" for column in columns)
        print(f"{name}: {', '.join(numbers)}", flush=True)

    return tell


def _title(column: str) -> str:
    words = column.replace("_", " ")
    return {"negative elbo": "−ELBO"}.get(words, words.upper() if len(words) < 5 else words)


def _number(value: Any) -> str:
    """Return a score as its value, a curve as its last point."""
    if isinstance(value, Mapping):
        value = value["value"]
    if isinstance(value, list):
        value = value[-1]
    return f"{value:.4f}" if isinstance(value, float) else str(value)
