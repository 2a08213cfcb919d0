"""Whether the noise of the native kernels is as random as it should be, on 4 · 10⁸ numbers.

Normals are judged by moments, their distribution and correlations, each as the number of standard
errors that it is away from what it should be. The bits behind them go through the tests of
Dieharder, where it is installed (``apt-get install dieharder``). Rows are as short as in a network,
and follow one another, so that streams of neighboring rows and seeds are tested together.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.errors import require
from leanbayes.kernels.dispatch import loaded, normals
from leanbayes.lab.files import write_json
from research.measuring.machine import facts

ROWS, WORDS = 4096, 1024
"""Rows of one seed, and 32-bit words of a row, as Dieharder gets them."""
BLOCKS, BLOCK = 400, (1000, 1000)
"""Seeds, and the shape of the normals of each."""
LAGS = (1, 2, 16, 32)
TESTS = (0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 15, 16, 100, 101, 102, 202, 203, 204)
"""Numbers of Dieharder's tests: all that its manual calls good and that end within minutes."""


def judge_normals(blocks: int = BLOCKS, shape: tuple[int, int] = BLOCK) -> dict[str, float]:
    """Return how many standard errors every statistic is away from its expectation."""
    sums: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    below = torch.zeros(len(_edges()) - 1, dtype=torch.float64)
    before = normals(shape, blocks).double()
    for block in range(blocks):
        z = normals(shape, block).double()
        for name, values in _statistics(z, before):
            sums[name] += float(values.sum())
            counts[name] += values.numel()
        below += torch.histogram(z.flatten(), _edges()).hist
        before = z
    found = {name: sums[name] / math.sqrt(counts[name]) for name in sums}
    return found | {"distribution": _chi_square(below)}


def _statistics(z: Tensor, before: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Numbers of mean 0 and variance 1, if ``z`` and another block are independent normals."""
    yield "mean", z
    yield "variance", (z.square() - 1) / math.sqrt(2)
    yield "skewness", z.pow(3) / math.sqrt(15)
    yield "kurtosis", (z.pow(4) - 3) / math.sqrt(96)
    square = (z.square() - 1) / math.sqrt(2)
    for lag in LAGS:
        yield f"lag {lag}", z[:, :-lag] * z[:, lag:]
        yield f"squares at lag {lag}", square[:, :-lag] * square[:, lag:]
    yield "next row", z[:-1] * z[1:]
    yield "squares of the next row", square[:-1] * square[1:]
    yield "next seed", z * before


def _edges(bins: int = 1000) -> Tensor:
    """Between bins that a normal number falls into equally often."""
    inner = torch.special.ndtri(torch.arange(1, bins, dtype=torch.float64) / bins)
    far = torch.tensor([10.0], dtype=torch.float64)
    return torch.cat([-far, inner, far])


def _chi_square(counts: Tensor) -> float:
    """Of equally probable bins, as a number of standard errors (Wilson and Hilferty)."""
    expected, free = counts.sum() / len(counts), len(counts) - 1
    square = float(((counts - expected).square() / expected).sum())
    spread = 2 / (9 * free)
    return ((square / free) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def dieharder(tests: tuple[int, ...] = TESTS) -> list[dict[str, Any]] | None:
    """Return what Dieharder says about every test; ``None`` where it is not installed."""
    program = shutil.which("dieharder")
    if program is None:
        return None
    found = []
    for number in tests:
        told = _fed([program, "-g", "200", "-d", str(number)])
        for test in told:
            print(f"{test['test']}: p = {test['p']:.3f}, {test['says'].lower()}", flush=True)
        found += told
    return found


def _fed(command: list[str]) -> list[dict[str, Any]]:
    """Return the answer of a program that reads bits until it has enough."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        words, by = torch.empty(ROWS, WORDS, dtype=torch.int32), 0
        try:
            while process.poll() is None:
                loaded().bits(words.data_ptr(), ROWS, WORDS, by, 1)
                process.stdin.write(words.numpy().tobytes())
                by += 1
        except BrokenPipeError:
            pass
        lines = process.stdout.read().decode().splitlines()
    return [found for line in lines if (found := read_line(line)) is not None]


def read_line(line: str) -> dict[str, Any] | None:
    """Return one line of Dieharder's table; ``None`` if it is another.

    Example:
        >>> read_line("   diehard_birthdays|   0|       100|     100|0.83154671|  PASSED  ")
        {'test': 'diehard_birthdays 0', 'p': 0.83154671, 'says': 'PASSED'}
        >>> read_line("#    test_name   |ntup| tsamples |psamples|  p-value |Assessment")
    """
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) != 6 or cells[5] not in ("PASSED", "WEAK", "FAILED"):
        return None
    return {"test": f"{cells[0]} {cells[1]}", "p": float(cells[4]), "says": cells[5]}


def section(result: Mapping[str, Any]) -> list[str]:
    """Return what the page says about it."""
    name, worst = max(result["normals"].items(), key=lambda item: abs(item[1]))
    said = (
        f"{len(result['normals'])} statistics of {result['count'] // 10**6} million normals of the "
        "native generator were tested: moments, distribution, and correlations between neighbors, "
        f"rows and seeds. The most unusual is {abs(worst):.1f} standard errors off ({name})."
    )
    tests = result["dieharder"]
    if tests is None:
        return ["## Noise", f"{said} Dieharder was not installed."]
    says = Counter(test["says"] for test in tests)
    least = min(tests, key=lambda test: min(test["p"], 1 - test["p"]))
    return [
        "## Noise",
        f"{said} Of {len(tests)} tests of Dieharder its bits pass {says['PASSED']}; "
        f"{_few(says['WEAK'])} weak and {_few(says['FAILED'])} failed. The most extreme p-value is "
        f"{least['p']:.4f} ({least['test'].rsplit(' ', 1)[0]}).",
    ]


def _few(count: int) -> str:
    return {0: "none is", 1: "one is"}.get(count, f"{count} are")


def judge_generator(blocks: int, out: Path) -> None:
    """Judge the generator, and write the file of results."""
    require(lb.kernels().native, f"there is no native generator: {lb.kernels().reason}")
    begin = time.process_time()
    found = judge_normals(blocks)
    result = {
        **facts(),
        "count": blocks * math.prod(BLOCK),
        "normals": found,
        "dieharder": dieharder(),
        "seconds": round(time.process_time() - begin),
    }
    write_json(out, result)
