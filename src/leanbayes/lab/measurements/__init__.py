"""Measurements of a training: steps and epochs of a recipe, one file per measurement."""

from leanbayes.lab.measurements.base import (
    MEASUREMENTS,
    Measurement,
    MissingMeasurement,
    Subject,
    register_measurement,
    require_random_weights,
)

__all__ = [
    "MEASUREMENTS",
    "Measurement",
    "MissingMeasurement",
    "Subject",
    "register_measurement",
    "require_random_weights",
]
