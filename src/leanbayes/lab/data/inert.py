"""Plain values out of a pickle, without running it.

CIFAR's python batches and the object arrays of Keras' ``imdb.npz`` are pickles of lists, numbers
and strings. This reader knows only the instructions those need. Where a pickle would import or
call something, it keeps the name and the arguments as an :class:`Opaque` value: nothing in a file
can run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Opaque", "array_of", "plain_values"]


@dataclass
class Opaque:
    """Something a pickle would have made: a name, what it was called with, and its state."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


_MARK = object()
_INTEGERS = {0x4B: "<B", 0x4D: "<H", 0x4A: "<i"}
_TEXT = {0x58: "<I", 0x8C: "<B", 0x8D: "<Q"}
_STRINGS = {0x54: "<I", 0x55: "<B", 0x42: "<I", 0x43: "<B", 0x8E: "<Q"}
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_PUTS = {0x71: "<B", 0x72: "<I"}
_GETS = {0x68: "<B", 0x6A: "<I"}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self.content, self.at)
        self.at += struct.calcsize(layout)
        return int(value)

    def slice(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.content):
            raise EOFError("it ends too early")
        piece, self.at = self.content[self.at : end], end
        return piece

    def line(self) -> str:
        end = self.content.index(b"\n", self.at)
        piece, self.at = self.content[self.at : end].decode(), end + 1
        return piece

    def marked(self) -> list[Any]:
        """Everything above the last mark, which goes with it."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def read(self) -> Any:
        content, stack = self.content, self.stack
        while True:
            code = content[self.at]
            self.at += 1
            if code == 0x4B:  # a byte: nearly all there is
                stack.append(content[self.at])
                self.at += 1
            elif code == 0x4D:
                stack.append(content[self.at] | content[self.at + 1] << 8)
                self.at += 2
            elif code == 0x2E:
                return stack.pop()
            else:
                self.step(code)

    def step(self, code: int) -> None:
        stack = self.stack
        if code in _INTEGERS:
            stack.append(self.number(_INTEGERS[code]))
        elif code in _STRINGS:
            stack.append(self.slice(self.number(_STRINGS[code])))
        elif code in _TEXT:
            stack.append(self.slice(self.number(_TEXT[code])).decode())
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _PUTS:
            self.memo[self.number(_PUTS[code])] = stack[-1]
        elif code == 0x94:
            self.memo[len(self.memo)] = stack[-1]
        elif code in _GETS:
            stack.append(self.memo[self.number(_GETS[code])])
        elif code in (0x80, 0x95):  # protocol, frame
            self.at += 1 if code == 0x80 else 8
        else:
            self.combine(code)

    def combine(self, code: int) -> None:
        stack = self.stack
        if code == 0x28:
            stack.append(_MARK)
        elif code in (0x5D, 0x7D, 0x29):
            stack.append({0x5D: list, 0x7D: dict, 0x29: tuple}[code]())
        elif code in _TUPLES:
            count = _TUPLES[code]
            stack[-count:] = [tuple(stack[-count:])]
        elif code == 0x74:
            stack.append(tuple(self.marked()))
        elif code in (0x61, 0x65):
            items = [stack.pop()] if code == 0x61 else self.marked()
            stack[-1].extend(items)
        elif code in (0x73, 0x75):
            items = [stack.pop(-2), stack.pop()] if code == 0x73 else self.marked()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif code == 0x63:
            stack.append(Opaque(f"{self.line()}.{self.line()}"))
        elif code == 0x93:
            stack[-2:] = [Opaque(".".join(stack[-2:]))]
        elif code == 0x52:
            arguments = stack.pop()
            stack[-1] = Opaque(stack[-1].name, arguments)
        elif code == 0x62:
            state = stack.pop()
            stack[-1].state = state
        else:
            raise ValueError(f"it has the pickle instruction {code:#04x}, which is not read here")


def plain_values(content: bytes) -> Any:
    r"""The value of a pickle of lists, dictionaries, tuples, numbers and strings.

    Example:
        >>> plain_values(b"\x80\x02]q\x00(K\x01K\x02e.")
        [1, 2]
    """
    try:
        return _Reader(content).read()
    except (AttributeError, EOFError, LookupError, TypeError, struct.error) as error:
        raise ValueError("it is no whole pickle of plain values") from error


def array_of(value: Any) -> npt.NDArray[np.uint8] | list[Any]:
    """What a pickled numpy array holds: its bytes in its shape, or its list of objects."""
    if not isinstance(value, Opaque) or not value.name.endswith("multiarray._reconstruct"):
        raise ValueError("it holds no pickled array")
    match value.state:
        case (_, _, Opaque(), _, list(objects)):
            return objects
        case (_, shape, Opaque(arguments=("u1" | b"u1", *_)), _, bytes(content)):
            return np.frombuffer(content, np.uint8).reshape(shape)
    raise ValueError("the pickled array is neither one of bytes nor one of lists")
