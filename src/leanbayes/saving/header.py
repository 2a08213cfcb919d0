"""The header of a saved file, read within limits on size and memory.

A safetensors file begins with the length of its header, the header (JSON: the dtype, shape and
place of every tensor, and text of one's own), and then holds the numbers. A file that leanbayes
wrote describes its model in that text, and has a checksum there: the SHA-256 of the whole file with
zeros in place of the checksum.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leanbayes.errors import LoadError, explained_as

_FROM_SIZES = {"arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones"}
_FROM_SIZES |= {"rand", "randint", "randn", "randperm", "range", "zeros", "tril_indices"}
_FROM_SIZES |= {"triu_indices", "new_empty", "new_empty_strided", "new_full", "new_ones"}
_FROM_SIZES |= {"new_zeros", "resize_"}
"""Functions and methods that make a tensor of any size from numbers alone."""

_REPEATING = {"repeat", "repeat_interleave", "tile"}


class AllocationLimit(TorchFunctionMode):
    """Limit on the elements of the tensors that code may make; more raise before memory is taken.

    Views count where something is done with them: a view of any size is small, its copy is not.
    The meta device would find the sizes too, but torch takes seconds for the first operation there.
    """

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.made = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        tensors = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
        if name in _FROM_SIZES or name.endswith("_window"):
            size = _product((*args, *options.values()))
            self.made += size**2 if name == "eye" and len(args) == 1 else size
        elif name in _REPEATING:
            self.made += tensors[0].numel() * _product((*args[1:], *options.values()))
        self._check(max([self.made, *(tensor.numel() for tensor in tensors)]))
        return func(*args, **options)

    def _check(self, count: int) -> None:
        if count > self.elements:
            raise ValueError(
                f"{count} elements are requested, and at most {self.elements} are allowed"
            )


def _product(values: tuple[Any, ...]) -> int:
    """Return the product of a shape: the first whole numbers, one by one or together."""
    for value in values:
        if isinstance(value, tuple | list):
            return math.prod(value)
        if isinstance(value, int):
            return math.prod(abs(each) for each in values if isinstance(each, int) and each)
    return 1


KEY = "leanbayes"
"""Under which text of a header the description stands."""

LIMIT = 8 * 2**20
"""The longest header, in bytes: that of some 8000 layers."""

NO_CHECKSUM = "sha256:" + 64 * "0"
"""What stands for the checksum of a file while that is computed."""

_LENGTH = 8
_CHUNK = 2**20
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorInfo(NamedTuple):
    """The dtype, as safetensors names it, and the shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor) -> TensorInfo:
        """Return those of a tensor."""
        name = _DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        return TensorInfo(name, tuple(tensor.shape))

    @property
    def is_float(self) -> bool:
        """Whether it holds real numbers."""
        return self.dtype.startswith(("F", "BF"))


@dataclass(frozen=True)
class Header:
    """What a saved file says of itself."""

    tensors: Mapping[str, TensorInfo]
    description: Mapping[str, Any]


def read_header(path: Path) -> Header:
    """Read a header and check it, and the checksum of the file if it has one."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; save(model, path) writes it")
    head = _read_head(path)
    with load_errors(path, "it is damaged; copy it again, or save the model again"):
        entries = _strict_json(head[_LENGTH:].decode())
        text = (entries.pop("__metadata__", None) or {}).get(KEY)
        if text is None:
            raise LoadError(
                f"{path} was not written by leanbayes; load weights into the net instead"
            )
        description = _strict_json(text)
        if not isinstance(description, dict):
            raise ValueError("its description is not an object")
        _check_sum(path, head, _stated_sum(description))
    tensors = {name: TensorInfo(e["dtype"], tuple(e["shape"])) for name, e in entries.items()}
    return Header(tensors, description)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file whose header was read."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def with_checksum(content: bytes) -> bytes:
    """Return the content of a file with its checksum in place of :data:`NO_CHECKSUM`."""
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    if end > _LENGTH + LIMIT:
        raise ValueError(
            f"the model has so many layers that the header of its file has {end} bytes, and "
            f"{LIMIT} are the limit; save parts of it"
        )
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return content[:end].replace(NO_CHECKSUM.encode(), checksum.encode(), 1) + content[end:]


def load_errors(path: Path, remedy: str) -> AbstractContextManager[None]:
    """Turn whatever a bad file can make anything raise into one sentence that names it."""
    return explained_as(
        f"{path} cannot be loaded ({{reason}}): {remedy}",
        Exception,
        when=lambda error: not isinstance(error, LoadError | OSError),
        into=LoadError,
    )


def _read_head(path: Path) -> bytes:
    """Return the length and the header, which the reference implementation finds right.

    That is: dtypes it knows, shapes that fit the bytes, places within the file that neither overlap
    nor leave gaps.
    """
    with path.open("rb") as file:
        length = int.from_bytes(first := file.read(_LENGTH), "little")
        if len(first) < _LENGTH or length > LIMIT:
            raise LoadError(
                f"{path} is damaged or not a safetensors file (its header would have {length} "
                "bytes); give a file that lb.save wrote"
            )
        head = first + file.read(length)
    remedy = "it is damaged or not a safetensors file; give one that lb.save wrote"
    with load_errors(path, remedy), safe_open(path, framework="pt"):
        pass
    return head


def _stated_sum(description: Mapping[str, Any]) -> object:
    """The checksum that a description states, known by its name or, were that damaged, its look."""
    for name, value in description.items():
        if name == "checksum" or (isinstance(value, str) and re.search("[0-9a-f]{32}", value)):
            return value
    return None


def _check_sum(path: Path, head: bytes, checksum: object) -> None:
    """Raise unless a file has the checksum it states, if it states one."""
    if checksum is None:
        return
    if not isinstance(checksum, str) or not re.fullmatch("sha256:[0-9a-f]{64}", checksum):
        raise ValueError(f"its checksum is {checksum!r}")
    digest = hashlib.sha256(head.replace(checksum.encode(), NO_CHECKSUM.encode(), 1))
    with path.open("rb") as file:
        file.seek(len(head))
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if checksum != f"sha256:{digest.hexdigest()}":
        raise ValueError("its bytes are not those that were saved")


def _strict_json(text: str) -> Any:
    """Parse JSON in which no object has a key twice and no number is NaN."""
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_number)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object has a key twice")
    return values


def _number(literal: str) -> float:
    """Accept infinity, which may be an option of a spec; raise for NaN."""
    if math.isnan(value := float(literal)):
        raise ValueError("a number is NaN")
    return value
