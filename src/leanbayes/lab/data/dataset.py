"""A data set as a value: tensors, and the facts a report has to state about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leanbayes.errors import choose
from leanbayes.lab.data.columns import InputColumn
from leanbayes.lab.data.scaling import IMAGE_SCALINGS, TABLE_SCALINGS, Scaling

Task = Literal["classification", "regression", "sequence", "density"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets; pixels stay bytes until a batch is taken.

    Args:
        stored: inputs as they are kept, ``[examples, …]``: bytes, indices or finished floats.
        targets: what to predict, or None where the inputs are their own targets.
        scaling: applied to bytes when a batch is taken.

    Example:
        >>> digits = Examples(torch.tensor([[0], [255]], dtype=torch.uint8), torch.tensor([3, 7]),
        ...                   Scaling(scale=255.0))
        >>> digits.take(torch.tensor([1]))
        (tensor([[1.]]), tensor([7]))
    """

    stored: Tensor
    targets: Tensor | None = None
    scaling: Scaling | None = None

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice | Tensor) -> Examples:
        targets = None if self.targets is None else self.targets[rows]
        return Examples(self.stored[rows], targets, self.scaling)

    @property
    def x(self) -> Tensor:
        """All inputs, ready to use; scaled anew at every call."""
        return self.stored if self.scaling is None else self.scaling(self.stored)

    @property
    def y(self) -> Tensor:
        """All targets; the inputs, where there are no others."""
        return self.x if self.targets is None else self.targets

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these examples: one gather each."""
        x = self.stored.index_select(0, index)
        x = x if self.scaling is None else self.scaling(x)
        return x, x if self.targets is None else self.targets.index_select(0, index)

    def to(self, device: torch.device | str) -> Examples:
        """The same examples on another device; pixels travel as bytes."""
        targets = None if self.targets is None else self.targets.to(device)
        return Examples(self.stored.to(device), targets, self.scaling)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test examples, with what a report has to say of them.

    Args:
        name: as :func:`leanbayes.lab.data.load_dataset` knows it.
        task: what is to be learnt.
        train: what the parameters are fitted to.
        validation: what choices are made on; None where nothing was set apart.
        test: what is reported.
        classes: names of the classes, by label; empty where there are none.
        licence: what the data may be used under.
        source: where they come from, as one would cite it.
        preprocessing: in words, what was done to the raw files.
        scaling: raw inputs to inputs, for new data; None where inputs are indices.
        target_scaling: raw targets to targets, in regression.
        columns: how a table becomes raw inputs; empty where the inputs are no table.
    """

    name: str
    task: Task
    train: Examples
    test: Examples
    licence: str = ""
    source: str = ""
    preprocessing: str = ""
    validation: Examples | None = None
    classes: tuple[str, ...] = ()
    scaling: Scaling | None = None
    target_scaling: Scaling | None = None
    columns: tuple[InputColumn, ...] = ()

    @property
    def data_size(self) -> int:
        """How many training examples there are: what :func:`leanbayes.elbo` wants."""
        return len(self.train)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.stored.shape[1:])

    @property
    def black(self) -> tuple[float, ...]:
        """What a black pixel has become, by channel: the border of a padded image."""
        if self.scaling is None or len(self.input_shape) != 3:
            raise ValueError(f"{self.name} has no images, and so no black pixels")
        black = self.scaling(torch.zeros(self.input_shape)).flatten(1)
        if not torch.equal(black.amin(1), black.amax(1)):
            raise ValueError("a mean per pixel leaves no one value for a border; pad by 0.0")
        return tuple(black[:, 0].tolist())

    def __repr__(self) -> str:
        sizes = f"train={len(self.train)}, "
        sizes += "" if self.validation is None else f"validation={len(self.validation)}, "
        sizes += f"test={len(self.test)}"
        kind = f"{len(self.classes)} classes" if self.classes else self.task
        return f"Dataset({self.name}: {sizes}, inputs {self.input_shape}, {kind})"


def scaled_dataset(
    train: Examples,
    validation: Examples | None,
    test: Examples,
    *,
    scaling: str,
    preprocessing: list[str],
    target_scaling: str = "standard",
    peak: int = 255,
    classes: tuple[str, ...] = (),
) -> Dataset:
    """A data set, yet without a name, whose inputs, and targets if they are real, are scaled.

    Bytes are pixels, up to ``peak``, and stay bytes until a batch is taken; ``preprocessing`` says
    what was done to the raw examples before.
    """
    inputs, words = _input_scaling(train.stored, scaling, peak)
    notes = [*preprocessing, words]
    targets, task = None, _task(train.targets)
    if train.targets is not None and task == "regression":
        scale, words = choose("target scaling", target_scaling, TABLE_SCALINGS)
        targets = scale(train.targets)
        notes.append(f"targets {words}")

    def scaled(part: Examples) -> Examples:
        y = part.targets if targets is None or part.targets is None else targets(part.targets)
        if part.stored.dtype == torch.uint8:
            return Examples(part.stored, y, inputs)
        return Examples(inputs(part.stored), y)

    return Dataset(
        name="",
        task=task,
        train=scaled(train),
        validation=None if validation is None else scaled(validation),
        test=scaled(test),
        scaling=inputs,
        target_scaling=targets,
        preprocessing="; ".join(notes),
        classes=classes,
    )


def _input_scaling(train: Tensor, name: str, peak: int) -> tuple[Scaling, str]:
    """The scaling of this name for pixels or other numbers, and what a report says of it."""
    if train.dtype == torch.uint8:
        scale_pixels, words = choose("scaling of images", name, IMAGE_SCALINGS)
        return scale_pixels(train, peak), words.format(peak=peak)
    scale, words = choose("scaling", name, TABLE_SCALINGS)
    return scale(train), f"inputs {words}"


def _task(targets: Tensor | None) -> Task:
    if targets is None:
        return "density"
    return "regression" if targets.is_floating_point() else "classification"
