"""Checkpoints are pickles: looked at before torch reads them, so that none unpacks to a bomb."""

from __future__ import annotations

import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leanbayes.errors import require

__all__ = ["MOST_VALUES", "check_pickle", "read_checkpoint"]

MOST_VALUES = 10_000_000
"""How many values a pickle may hold, counting what stands in several places as often."""

_ANY_SIZE = (" bytearray", "Tensor")
"""Ends of the names of what torch lets a pickle make from a number alone."""

_GROWING = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}


def read_checkpoint(path: Path) -> Any:
    """What ``torch.save`` wrote, on the CPU; raise a sentence if it would grow without measure.

    Args:
        path: a zip file of tensors, which are not packed, and a pickle of what they are for.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            unpacked = sum(member.file_size for member in members)
            require(unpacked <= path.stat().st_size, "it unpacks to more than its size")
            for member in members:
                if member.filename.endswith(".pkl"):
                    check_pickle(archive.read(member))
    except (zipfile.BadZipFile, LookupError, NotImplementedError, ValueError) as error:
        raise ValueError(f"{path} is no checkpoint that was saved here ({error})") from error
    return torch.load(path, map_location="cpu", weights_only=True)


@dataclass
class _Value:
    """How many values stand in one, and whether it stands in several places."""

    size: int = 1
    shared: bool = False


def check_pickle(content: bytes) -> None:
    r"""Raise if lists of lists of one list, or the like, make a pickle larger than it looks.

    It follows the opcodes and counts; nothing is built.

    Example:
        >>> check_pickle(b"]q\0(h\0h\0e.")  # a list that holds itself twice
        Traceback (most recent call last):
        ValueError: a value holds itself
    """
    stack: list[_Value] = []
    marks: list[int] = []
    memo: dict[Any, _Value] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name.endswith("PUT") or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name.endswith("GET"):
            stack.append(memo[argument])
            stack[-1].shared = True
        elif name == "GLOBAL" and str(argument).endswith(_ANY_SIZE):
            raise ValueError(f"it asks for {argument!r} of any size")
        else:
            _apply(opcode, stack, marks)


def _apply(opcode: pickletools.OpcodeInfo, stack: list[_Value], marks: list[int]) -> None:
    """Replace what an opcode takes from the stack by what it puts there."""
    before = opcode.stack_before
    if pickletools.markobject in before:
        start = marks.pop() - before.index(pickletools.markobject)
    else:
        start = len(stack) - len(before)
    require(start >= 0, "its pickle is damaged")
    taken = stack[start:]
    del stack[start:]
    grows = opcode.name in _GROWING
    require(not (grows and taken[0].shared), "a value holds itself")
    value = taken[0] if grows else _Value()
    value.size = 1 + sum(each.size for each in taken)
    require(value.size <= MOST_VALUES, f"it holds more than {MOST_VALUES} values")
    stack.extend([value] * len(opcode.stack_after))
