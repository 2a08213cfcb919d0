"""Small files of a run with a checksum or a history: its result, and its incidents."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from leanbayes.errors import require
from leanbayes.lab.files import json_text, read_object, write_json, write_text


class _Estimate(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="allow")

    value: float
    error: float


class _Result(BaseModel):
    """What others take from a result; what it has besides is not looked at."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="allow")

    name: str
    metrics: dict[str, _Estimate]
    epochs: int | None = None
    parameters: dict[str, int] = {}
    seconds: float | None = None
    seed: int | None = None
    versions: dict[str, str] = {}
    revision: str | None = None
    tree: str | None = None
    sources: str | None = None
    recipe: dict[str, Any] | None = None


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a run; its checksum, which ``sha256sum -c`` compares, is there first."""
    text = json_text(result)
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_text(path.with_suffix(".sha256"), f"{digest}  {path.name}\n")
    write_text(path, text)


def read_result(
    path: Path, again: str = "resume the run to have it written again"
) -> dict[str, Any]:
    """Read the result of a run, and compare its checksum if it has one."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {again}")
    try:
        content = path.read_bytes()
        result: dict[str, Any] = json.loads(content)
        _Result.model_validate(result)
        _check_sum(path, content)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is truncated or damaged, so it is not the result of a run ({_reason(error)}); "
            f"{again}"
        ) from error
    return result


def _check_sum(path: Path, content: bytes) -> None:
    """Raise if a checksum beside a file is another; results of the first runs have none."""
    beside = path.with_suffix(".sha256")
    if beside.is_file():
        stated = beside.read_text(encoding="utf-8", errors="replace").partition(" ")[0]
        known = hashlib.sha256(content).hexdigest() == stated
        require(known, f"its checksum is not that in {beside.name}")


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    if first["type"] == "missing" or not first["loc"]:
        return "it needs a name and metrics"
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


_STEP_SIZES = ("optimizer.lr", "learning_rate.", "training.gradient_clip")
"""Keys of a recipe that may change after numbers that were not finite."""


class IncidentLog:
    """A file that only a run with something to tell has."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def values(self) -> dict[str, list[dict[str, Any]]]:
        """What was ``stopped``, in which epoch and why, and what was ``changed``, from when on."""
        if not self.path.is_file():
            return {"stopped": [], "changed": []}
        keys = {"stopped", "changed"}
        return read_object(self.path, keys, "the history of a run", "choose another --output")

    def may_change(self, key: str) -> bool:
        """Return whether the run may go on with another value of a recipe's key."""
        return key.startswith(_STEP_SIZES) and bool(self.values["stopped"])

    def note_stop(self, epoch: int, reason: str) -> None:
        """Record that the run met a number that is not finite."""
        values, stop = self.values, {"epoch": epoch, "reason": reason}
        if stop not in values["stopped"]:
            values["stopped"].append(stop)
            write_json(self.path, values)

    def note_changes(self, epoch: int, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Record that the run goes on from an epoch with other values, each before and now."""
        values = self.values
        for key, (before, now) in changes.items():
            change = {"epoch": epoch, "key": key, "before": before, "now": now}
            values["changed"].append({**change, "reason": values["stopped"][-1]["reason"]})
        write_json(self.path, values)

    def sentences(self) -> tuple[str, ...]:
        """Return what a reader of the run's numbers has to know."""
        return tuple(
            f"From epoch {change['epoch']} on, {change['key']} is {change['now']} and no longer "
            f"{change['before']}, because {change['reason']}."
            for change in self.values["changed"]
        )

    def clear(self) -> None:
        """Forget it: another run begins."""
        self.path.unlink(missing_ok=True)
