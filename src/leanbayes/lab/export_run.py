"""A trained run as an ONNX file, from raw inputs to answers in the units of its data."""

import json
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.export.graph import OutputSpec
from leanbayes.export.onnx import annotate, onnx_model, write_onnx
from leanbayes.lab.data import Dataset, Scaling
from leanbayes.lab.predictions import LEVELS
from leanbayes.lab.runs import Run


class _FromRaw(nn.Module):
    """A network behind the scaling of its inputs."""

    shift: Tensor
    gain: Tensor

    def __init__(self, model: nn.Module, scaling: Scaling) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("shift", scaling.shift.float())
        self.register_buffer("gain", (1 / scaling.scale).float())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.model((x - self.shift) * self.gain)
        return y


def export_run(
    run: str | Path,
    output: str | Path,
    *,
    samples: int | None = 20,
    noise: Literal["graph", "input"] = "graph",
) -> Path:
    """Write a finished run as an ONNX file that takes raw inputs and knows the units of targets.

    The file keeps, as JSON, ``classes`` and, of a table, ``columns``: how each becomes numbers of
    the input, whose names are ``inputs``.
    """
    source = Run(run)
    source.check_result()
    model, likelihood = source.load()
    dataset = source.dataset
    targets = dataset.target_scaling or Scaling()
    require(
        targets.scale.numel() == 1,
        f"{dataset.name} has targets of several units, and a file holds one; set target_scaling: "
        "raw and train again",
    )
    spec = OutputSpec(likelihood, LEVELS, float(targets.shift), float(targets.scale))
    x = dataset.train.stored[:2]
    if dataset.scaling is not None:
        model, x = _FromRaw(model, dataset.scaling), torch.zeros(2, *dataset.input_shape)
    made = onnx_model(model, x, spec, samples=samples, noise=noise)
    annotate(made, {"run": source.recipe.name, **_notes(dataset)})
    return write_onnx(made, Path(output))


def _notes(dataset: Dataset) -> dict[str, str]:
    """Return what a program needs to know to make inputs and to read answers."""
    notes = {"classes": json.dumps(dataset.classes)}
    if dataset.columns:
        columns = [
            {"name": column.name, "levels": column.levels, "fill": column.fill}
            for column in dataset.columns
        ]
        notes["columns"] = json.dumps(columns)
        notes["inputs"] = json.dumps([part for column in dataset.columns for part in column.parts])
    return notes
