"""Errors of pydantic in one sentence that names the key and the nearest right one."""

from collections.abc import Sequence
from typing import get_args

from pydantic import BaseModel, ValidationError

from leanbayes.errors import nearest


def sentence(error: ValidationError, schema: type[BaseModel]) -> str:
    """Return the first thing that is wrong, with the nearest right key if one is misspelled."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *path, key = first["loc"]
        return f"key {where!r} is unknown{nearest(str(key), _section_keys(schema, path))}"
    if first["type"] == "missing":
        return f"key {where!r} is missing"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def _section_keys(schema: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the keys that the section at a path may have."""
    if path:
        annotation = schema.model_fields[str(path[0])].annotation
        parts = (annotation, *get_args(annotation))
        schema = next(part for part in parts if isinstance(part, type(BaseModel)))
    return list(schema.model_fields)
