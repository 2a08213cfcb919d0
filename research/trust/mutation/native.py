"""Errors planted in the C++ kernels: one changed library per error, loaded in the fork."""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from leanbayes.kernels import dispatch, native
from research.trust.mutation.mutants import SOURCE

FILES = tuple(f"kernels/{name}" for name in ("kernels.cpp", "rank1_kernels.h", "window_kernels.h"))
_START = {FILES[0]: "namespace INSTRUCTIONS {"}
"""Where the kernels begin; before it are instruction sets and exported names."""

_FLAGS = ("-O0", "-ffast-math", "-fopenmp", "-fvisibility=hidden", "-shared", "-fPIC", "-w")
_OPERATORS = {"+": "-", "-": "+", "*": "/", "/": "*", "<": "<=", ">": "<", "+=": "-=", "-=": "+=",
              "*=": "+=", "&&": "||", "||": "&&", "==": "!="}  # fmt: skip
_CHANGED = re.compile(
    r"(?<=[\w\])]) (?P<operator>[-+*]=|==|&&|\|\||[-+*/<>]) (?=[\w(*&])"
    r"|(?<![\w.])(?P<number>\d+\.\d+)(?=f\b)"
)
_FUNCTION = re.compile(r"^(?:static|template|struct)\b.*?(\w+)\s*[({]")


@dataclass(frozen=True)
class NativeMutant:
    """One change of one line of a kernel; the attributes are those of ``Mutant``."""

    file: str
    function: str
    line: int
    at: int
    kind: str
    index: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """Identifies the mutant."""
        return f"{self.file}:{self.at} {self.function} #{self.index} {self.kind}"

    @property
    def key(self) -> tuple[str, int]:
        """The function that every caller of a kernel calls."""
        code = dispatch.library.__code__
        return Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_firstlineno

    def install(self) -> bool:
        """Compile the changed kernels and load them; ``False`` if they do not compile."""
        return load_kernels({self.file: {self.at: self.after}})


def load_kernels(changes: dict[str, dict[int, str]] | None = None) -> bool:
    """Build kernels for the oldest instruction set, with changed lines, and use them."""
    with tempfile.TemporaryDirectory() as place:
        for file in FILES:
            lines = _lines(file).copy()
            for at, line in (changes or {}).get(file, {}).items():
                lines[at - 1] = line
            text = "\n".join(lines).replace("#if defined(__x86_64__)", "#if 0", 1)
            Path(place, Path(file).name).write_text(text)
        library = Path(place, "libkernels.so")
        command = ["g++", *_FLAGS, "-o", str(library), str(Path(place, "kernels.cpp"))]
        if subprocess.run(command, capture_output=True).returncode:
            return False
        native.LIBRARY = library
        native.STATE._load()
        return native.is_native()


@cache
def _lines(file: str) -> list[str]:
    return (SOURCE / file).read_text(encoding="utf-8").splitlines()


def native_mutants(file: str) -> Iterator[NativeMutant]:
    """Every change of the kernels of a file."""
    lines = _lines(file)
    first = lines.index(_START[file]) + 1 if file in _START else 0
    function = ""
    for at, line in enumerate(lines[first:], first + 1):
        if found := _FUNCTION.match(line):
            function = found[1]
        code = line.partition("//")[0]
        if code.lstrip().startswith(("#", "template", "typedef", "static const int")):
            continue
        for index, place in enumerate(_CHANGED.finditer(code)):
            kind = "operator" if place["operator"] else "constant"
            other = _OPERATORS.get(place["operator"]) or f"{float(place['number']) * 1.5 + 0.5}"
            start, end = place.span(kind if kind == "operator" else "number")
            after = line[:start] + other + line[end:]
            yield NativeMutant(file, function, at, at, kind, index, line.strip(), after)


def chosen_native(count: int, seed: int) -> list[NativeMutant]:
    """A seeded choice of the changes of all kernels."""
    every = [mutant for file in FILES for mutant in native_mutants(file)]
    return random.Random(f"C++ {seed}").sample(every, min(count, len(every)))
