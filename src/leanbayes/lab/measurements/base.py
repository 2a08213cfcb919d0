"""Measurements of a training by name: what a recipe lists under ``measurements``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict
from torch import nn

from leanbayes.errors import require
from leanbayes.lab.data import Dataset
from leanbayes.likelihoods import Likelihood
from leanbayes.models.random_maps import random_maps
from leanbayes.registry import Registry

if TYPE_CHECKING:
    from leanbayes.lab.measurements.result_callback import ResultCallback


@dataclass(frozen=True)
class Subject:
    """Model in training, with its data and how predictions are drawn."""

    model: nn.Module
    likelihood: Likelihood
    dataset: Dataset
    data_size: int
    seed: int
    batch_size: int = 1000


class Measurement(BaseModel):
    """Numbers that are taken while a model is trained, without changing the training.

    The fields of a subclass are its options in a recipe.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False
    )

    def check(self, model: nn.Module, *, classes: bool) -> None:
        """Raise before training if this model cannot be measured."""

    def after_epoch(self, subject: Subject) -> Mapping[str, float]:
        """Return columns of ``metrics.csv``, computed after every epoch without gradients."""
        return {}

    def callback(self, subject: Subject) -> ResultCallback | None:
        """Return the Lightning callback for what is measured within an epoch."""
        return None


class MissingMeasurement(Measurement):
    """Measurement that only a checkout defines: a recipe keeps it, and training skips it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    kind: str


Kind = TypeVar("Kind", bound=type[Measurement])

MEASUREMENTS = Registry[type[Measurement]]("measurement", ("phases", "probe", "sparse_curves"))
"""Every measurement by name."""


def register_measurement(name: str) -> Callable[[Kind], Kind]:
    """Register a measurement, which recipes can list as ``{kind: name}``.

    It decorates a subclass of :class:`Measurement`.

    Args:
        name: name.

    ``docs/extending/measurement.py`` is one to copy.
    """
    return MEASUREMENTS.register(name=name)


def require_random_weights(name: str, model: nn.Module, *, classes: bool) -> None:
    """Raise unless a model classifies with random weights."""
    require(
        any(True for _ in random_maps(model)),
        f"measurement {name!r} needs random weights, and the network has none; give it a posterior "
        "and a prior, or leave the measurement out",
    )
    require(
        classes,
        f"measurement {name!r} records accuracies, and the targets are not classes; leave it out",
    )
