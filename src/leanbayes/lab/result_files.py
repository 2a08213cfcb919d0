"""The result of a run as a file: read whole, or refused in one sentence that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["read_result"]


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
    recipe: dict[str, Any] | None = None


def read_result(
    path: Path, again: str = "resume the run to have it written again"
) -> dict[str, Any]:
    """Read the result of a run.

    Args:
        path: ``result.json`` of a run folder, or a file in which one was archived.
        again: how to get a good one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {again}")
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _Result.model_validate(result)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is truncated or damaged, so it is not the result of a run ({_reason(error)}); "
            f"{again}"
        ) from error
    return result


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    if first["type"] == "missing" or not first["loc"]:
        return "it needs a name and metrics"
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
