"""Result of a run as a file with a checksum beside it: read whole, or refused in one sentence."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from leanbayes.errors import require
from leanbayes.lab.files import json_text, write_text


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
    """Write the result of a run; its checksum, which ``sha256sum -c`` compares too, is there first.

    Args:
        path: ``result.json`` of a run folder.
        result: JSON-ready values.
    """
    text = json_text(result)
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_text(path.with_suffix(".sha256"), f"{digest}  {path.name}\n")
    write_text(path, text)


def read_result(
    path: Path, again: str = "resume the run to have it written again"
) -> dict[str, Any]:
    """Read the result of a run, and compare its checksum if it has one.

    Args:
        path: ``result.json`` of a run folder, or a file in which one was archived.
        again: how to get a good one.
    """
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
