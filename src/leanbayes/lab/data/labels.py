"""Targets of your own data: which are classes, which are numbers, and which are neither."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanbayes.errors import choose, require
from leanbayes.lab.tables import is_number, read_cells

FEW = 20
"""Whole numbers with at most so many different values are taken for classes."""

_SHOWN = 3
_LARGEST = float(np.finfo(np.float32).max)
_EXACT = 2**53

Array = npt.NDArray[Any]


def read_targets(column: Array, task: str | None, where: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return class labels ``[examples]`` with their names, or real numbers ``[examples, 1]``.

    Text is classes, and so are whole numbers of at most 20 different values, unless ``task`` says
    another thing. A target that is missing or infinite is refused, and so is a single class.
    """
    values, text = _values(column, where)
    kinds = np.unique(values)
    whole = not text and bool((kinds == np.round(kinds)).all())
    guess = "classification" if text or (whole and len(kinds) <= FEW) else "regression"
    if task is None and text and len(kinds) > FEW:
        _refuse_mixture(values, where)
    if choose("task", task or guess, {"classification": True, "regression": False}):
        require(
            len(kinds) > 1,
            f"{where} has the one class {_class_name(kinds[0])!r}, and there is nothing to learn; "
            "give examples of two or more, or set task: regression",
        )
        labels = np.searchsorted(kinds, values).astype(np.int64)
        return torch.from_numpy(labels), tuple(map(_class_name, kinds))
    if text:
        _refuse(values, lambda cell: not is_number(cell), where, "numbers in a regression")
    return torch.from_numpy(values.astype(np.float64))[:, None], ()


def fits(values: Any) -> Any:
    """Return whether numbers are finite, in single precision too."""
    return np.abs(values) <= _LARGEST


def _values(column: Array, where: str) -> tuple[Array, bool]:
    """Return numbers or texts without gaps, and whether they are texts."""
    require(
        column.dtype.kind in "biufUS",
        f"{where} holds {column.dtype}; targets are numbers, or text that names classes",
    )
    values = np.char.decode(column, "utf-8") if column.dtype.kind == "S" else column
    if values.dtype.kind != "U":
        values = values.astype(np.float64)
        _refuse(values, lambda number: not fits(number), where, "finite numbers")
        return values, False
    numbers = read_cells(values.tolist())
    if numbers is not None and bool(fits(numbers).all()):
        return numbers, False
    _refuse(values, lambda cell: not cell.strip(), where, "never missing; delete these examples")
    _refuse(
        values,
        lambda cell: is_number(cell) and not fits(float(cell)),
        where,
        "finite numbers or names of classes; delete these examples, or call the class otherwise",
    )
    return values, True


def _refuse_mixture(values: Sequence[str] | Array, where: str) -> None:
    """Many numbers and a few words are numbers with gaps, more likely than classes."""
    if any(map(is_number, values)):
        _refuse(
            values,
            lambda cell: not is_number(cell),
            where,
            "either numbers or names; correct them, or set task: classification",
        )


def _refuse(
    values: Sequence[Any] | Array, is_wrong: Callable[[Any], Any], where: str, needed: str
) -> None:
    """Raise if some targets are wrong, with the first of them and where they are."""
    wrong = [number for number, value in enumerate(values, 1) if is_wrong(value)]
    if not wrong:
        return
    examples = ", ".join(map(str, wrong[:_SHOWN]))
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    value = values[wrong[0] - 1]
    shown = repr(str(value)) if isinstance(value, str) else f"{value:g}"
    raise ValueError(
        f"{where} has {shown} in example{'s' * (len(wrong) > 1)} {examples}{more}; targets are "
        f"{needed}"
    )


def _class_name(kind: Any) -> str:
    """Return a text as it is, a number with all its digits."""
    if isinstance(kind, str):
        return str(kind)
    number = float(kind)
    return str(int(number)) if number.is_integer() and abs(number) < _EXACT else repr(number)
