"""Commands that are disturbed, with their inputs and undisturbed results."""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import LoadError
from leanbayes_cli import app
from research.trust.faults.process import run

_RECIPE = """
name: faults
data: {name: table.csv}
architecture: {name: mlp, options: {inputs: 3, outputs: 2, hidden: [4]}}
posterior: {kind: KTied, rank: 1}
prior: {kind: Normal, scale: 0.3}
optimizer: {lr: 0.01}
training: {epochs: 3, batch_size: 20}
evaluation: {samples: 2}
"""

_IMPORTED = (
    *("leanbayes.lab.train", "leanbayes.lab.sweep", "leanbayes.lab.report"),
    *("leanbayes.lab.demo.terminal", "leanbayes.lab.new_recipe", "leanbayes.lab.predictions"),
    *("leanbayes.lab.export_run", "lightning.pytorch", "onnxscript", "matplotlib.pyplot"),
)
"""Imported once, so that no fork waits for them."""


def command(*words: str) -> Callable[[], None]:
    """A command of ``leanbayes``."""

    def call() -> None:
        sys.argv = ["leanbayes", *words]
        app()()

    return call


def _fit() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = lb.convert(net, lb.KTied(1), lb.priors.Normal(0.3))
    y = (x[:, 0] > 0).long()
    try:
        lb.fit(model, (x, y), epochs=4, batch_size=20, checkpoint="out/fit.ckpt", progress=False)
        lb.save(model, "out/model")
    except (LoadError, OSError) as error:  # a function raises what a command prints
        sys.exit(f"leanbayes: {error}")


def _digest(*paths: str) -> Callable[[Path], str]:
    def of(folder: Path) -> str:
        contents = [Path(folder, path).read_bytes() for path in paths]
        return hashlib.sha256(b"\0".join(contents)).hexdigest()

    return of


def _new_recipe(folder: Path) -> str:
    return (folder / "out/new.yaml").read_text().replace(str(folder.resolve()), "")


def _result_of_run(folder: Path) -> str:
    metrics = json.loads((folder / "out/run/result.json").read_text())["metrics"]
    return json.dumps(metrics, sort_keys=True) + (folder / "out/run/metrics.csv").read_text()


def _result_of_sweep(folder: Path) -> str:
    return (folder / "out/sweep/best.yaml").read_text()


def _columns_of_demo(folder: Path) -> str:
    rows = json.loads((folder / "out/demo.json").read_text())
    return json.dumps(_without_times(rows), sort_keys=True)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        timed = ("second", "duration", "time", "cost", "speed", "relative")
        return {k: _without_times(v) for k, v in value.items() if not any(t in k for t in timed)}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Subject:
    """A command that is disturbed.

    Attributes:
        start: begins it.
        again: goes on after a disturbance.
        result: of the folder, which must be that of an undisturbed one.
        needs_run: whether a finished run is its input.
    """

    start: Callable[[], None]
    again: Callable[[], None]
    result: Callable[[Path], str]
    needs_run: bool = False


def _same(
    words: tuple[str, ...], result: Callable[[Path], str], needs_run: bool = False
) -> Subject:
    return Subject(command(*words), command(*words), result, needs_run)


_TRAIN = ("train", "recipe.yaml", "--output", "out/run")
SUBJECTS: dict[str, Subject] = {
    "train": Subject(command(*_TRAIN), command(*_TRAIN, "--resume"), _result_of_run),
    "fit": Subject(_fit, _fit, _digest("out/model.safetensors")),
    "new": _same(("new", "table.csv", "-o", "out/new.yaml"), _new_recipe),
    "predict": _same(
        ("predict", "run", "-i", "new.csv", "-o", "out/p.csv", "--samples", "3"),
        _digest("out/p.csv"),
        True,
    ),
    "report": _same(("report", "run", "-o", "out/report.html"), lambda _: "", True),
    "export": _same(
        ("export", "run", "-o", "out/m.onnx", "--samples", "2"), lambda _: "", True
    ),
    "sweep": _same(("sweep", "sweep.yaml", "--output", "out/sweep"), _result_of_sweep),
    "demo": _same(
        ("demo", "--quick", "--epochs", "1", "--samples", "2", "--json", "out/demo.json",
         "--output", "out/demo"),
        _columns_of_demo,
    ),
}  # fmt: skip


class Workshop:
    """A folder with inputs, a finished run and the results of undisturbed commands.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        for module in _IMPORTED:
            importlib.import_module(module)
        self.folder = folder
        draw = random.Random(0)
        with (folder / "table.csv").open("w", newline="") as file:
            rows = [[f"{draw.gauss(0, 1):.4f}" for _ in range(3)] for _ in range(60)]
            labeled = [[*row, "yes" if float(row[0]) > 0 else "no"] for row in rows]
            csv.writer(file).writerows([["a", "b", "c", "label"], *labeled])
        (folder / "new.csv").write_text("a,b,c\n" + "0.1,0.2,0.3\n" * 5)
        (folder / "recipe.yaml").write_text(_RECIPE)
        choices = "choices: {optimizer.lr: [0.01, 0.1]}\n"
        (folder / "sweep.yaml").write_text(_RECIPE + choices)
        (folder / "out").mkdir()
        ended = run(command("train", "recipe.yaml", "--output", "run"), folder)
        if ended.code:
            raise RuntimeError(f"the undisturbed run failed: {ended.error}")
        self.references: dict[str, tuple[str, int]] = {}

    def copy(self, folder: Path) -> Path:
        """A copy to disturb."""
        return Path(shutil.copytree(self.folder, folder, dirs_exist_ok=True))

    def reference(self, name: str) -> tuple[str, int]:
        """Result and number of calls of an undisturbed command."""
        if name not in self.references:
            with tempfile.TemporaryDirectory() as place:
                folder = self.copy(Path(place))
                ended = run(SUBJECTS[name].start, folder, at=0)
                if ended.code:
                    raise RuntimeError(f"undisturbed {name} failed: {ended.error}")
                self.references[name] = SUBJECTS[name].result(folder), ended.calls
        return self.references[name]
