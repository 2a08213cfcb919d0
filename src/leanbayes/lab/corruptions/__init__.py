"""Damaged images: how far a model's confidence holds where its data do not [rank-1, section 4]."""

from leanbayes.lab.corruptions import blurs, color, geometry, sensor_noise, weather
from leanbayes.lab.corruptions.base import (
    CORRUPTIONS,
    PUBLISHED,
    SEVERITIES,
    Corruption,
    corrupt,
    corrupt_examples,
    register_corruption,
)
from leanbayes.lab.corruptions.seeded_noise import Noise

__all__ = [
    "CORRUPTIONS",
    "PUBLISHED",
    "SEVERITIES",
    "Corruption",
    "Noise",
    "blurs",
    "color",
    "corrupt",
    "corrupt_examples",
    "geometry",
    "register_corruption",
    "sensor_noise",
    "weather",
]
