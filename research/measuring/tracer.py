"""Files and calls of leanbayes that common operations go through, counted with a profiler hook.

A *hop* is a call of a function of leanbayes in another file than the call before it: how often a
reader who follows the calls has to open another file.
"""

import platform
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

import leanbayes as lb
from leanbayes.lab.files import read_object, write_json
from research.publishing.pages import refresh
from research.publishing.paper import DOCS, RESULTS
from research.publishing.tables import markdown_table

FILE, PAGE = RESULTS / "bench" / "tracer.json", DOCS / "architecture.md"


class Count(NamedTuple):
    """What an operation goes through: files, hops between them, and calls in all."""

    files: int
    hops: int
    calls: int


BEFORE = {
    "forward": Count(15, 77, 116),
    "kl": Count(12, 55, 109),
    "convert": Count(21, 389, 1332),
    "predict": Count(23, 169, 339),
}
"""The counts at revision 79995f3, before the package was divided into folders."""
TITLES = {
    "forward": "forward pass of two k-tied layers",
    "kl": "`lb.kl`",
    "convert": "`lb.convert`",
    "predict": "`lb.predict`, vectorized samples",
}


def count_calls(work: Callable[[], object], package: Path) -> Count:
    """Count the calls of functions that are defined in files of a folder."""
    root, entered = f"{package}/", list[str]()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            entered.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    hops = sum(last != this for last, this in pairwise(entered))
    return Count(len(set(entered)), hops, len(entered))


def operations() -> dict[str, Callable[[], object]]:
    """Return the operations that are traced, by name."""
    prior = lb.priors.Normal(1.0)

    def convert() -> nn.Module:
        layers = (nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        return lb.convert(nn.Sequential(*layers), lb.KTied(2), prior)

    model, x = convert(), torch.rand(4, 8)
    return {
        "forward": lambda: model(x),
        "kl": lambda: lb.kl(model),
        "convert": convert,
        "predict": lambda: lb.predict(model, x, samples=4, seed=0),
    }


def trace() -> str:
    """Trace all operations, write the counts and the block of the page; return the table."""
    counts = {}
    for name, work in operations().items():
        work()  # imports and caches are filled once
        counts[name] = count_calls(work, Path(lb.__file__).parent)._asdict()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    write_json(FILE, {"versions": versions, "native": lb.kernels().native, "counts": counts})
    write_block()
    return table()


def table() -> str:
    """Return files and hops of every operation, before and now."""
    counts = read_object(FILE, {"counts"}, "a trace", "run python -m research trace")["counts"]
    rows = [
        [title, *map(str, (*BEFORE[name][:2], counts[name]["files"], counts[name]["hops"]))]
        for name, title in TITLES.items()
    ]
    header = ["operation", "files before", "hops before", "files", "hops"]
    return markdown_table(header, rows, text=1)


def write_block() -> None:
    """Update the table in docs/architecture.md."""
    print(f"Written to {refresh(PAGE, {'tracer': lambda _: table()})}")
