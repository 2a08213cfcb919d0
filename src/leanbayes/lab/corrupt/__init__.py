"""Damaged images: how far a model's confidence holds where its data do not [rank-1, section 4]."""

from leanbayes.lab.corrupt import blurs, colours, noises, places, weather
from leanbayes.lab.corrupt.base import (
    CORRUPTIONS,
    PUBLISHED,
    SEVERITIES,
    Corruption,
    corrupt,
    corrupt_examples,
    register_corruption,
)
from leanbayes.lab.corrupt.noise import Noise

__all__ = [
    "CORRUPTIONS",
    "PUBLISHED",
    "SEVERITIES",
    "Corruption",
    "Noise",
    "blurs",
    "colours",
    "corrupt",
    "corrupt_examples",
    "noises",
    "places",
    "register_corruption",
    "weather",
]
