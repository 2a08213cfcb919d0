"""A data set as a value: tensors, and the facts a report has to state about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Dataset", "Examples", "Scaling", "Task"]

Task = Literal["classification", "regression", "sequence", "density"]


class Scaling:
    """Turns raw numbers into what a network sees: ``(raw − shift) / scale``, in float32.

    Args:
        shift: a number, or a tensor that broadcasts with one example.
        scale: the same, positive.

    Example:
        >>> symmetric = Scaling(127.5, 127.5)
        >>> symmetric(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([-1.,  1.])
        >>> symmetric.inverse(torch.tensor([-1.0, 1.0]))
        tensor([  0., 255.])
    """

    def __init__(self, shift: float | Tensor = 0.0, scale: float | Tensor = 1.0) -> None:
        self.shift = torch.as_tensor(shift, dtype=torch.float64)
        self.scale = torch.as_tensor(scale, dtype=torch.float64)
        if not bool((self.scale > 0).all()):
            raise ValueError("a scale must be positive; use 1 where the data do not vary")
        self._shift, self._gain = self.shift.float(), (1 / self.scale).float()
        self._moves = bool((self.shift != 0).any())
        self._stretches = bool((self.scale != 1).any())

    def __call__(self, raw: Tensor) -> Tensor:
        if raw.dtype == torch.float64:
            return ((raw - self.shift) / self.scale).float()
        x = raw.clone() if raw.dtype == torch.float32 else raw.float()
        if self._moves:
            x.sub_(self._shift.to(x.device))
        return x.mul_(self._gain.to(x.device)) if self._stretches else x

    def inverse(self, x: Tensor) -> Tensor:
        """The raw numbers of these inputs."""
        return (x * self.scale + self.shift).to(x.dtype)

    def __repr__(self) -> str:
        return f"Scaling(shift={_short(self.shift)}, scale={_short(self.scale)})"


def _short(value: Tensor) -> str:
    return f"{float(value):g}" if value.ndim == 0 else f"tensor of shape {tuple(value.shape)}"


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

    def __getitem__(self, rows: slice) -> Examples:
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
        name: as :func:`leanbayes.lab.data.load` knows it.
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
