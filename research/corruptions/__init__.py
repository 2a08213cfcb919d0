"""Damaged images: how far a model's confidence holds where its data do not [rank-1, section 4].

:data:`PUBLISHED` names the 15 corruptions that published averages are over; ``speckle-noise``,
``blur`` (the Gaussian one) and ``saturate`` are of the four held back for validation.
"""

from research.corruptions import blurs, color, geometry, sensor_noise, weather  # noqa: F401
from research.corruptions.base import (
    CORRUPTIONS,
    SEVERITIES,
    Corruption,
    corrupt,
    corrupt_examples,
    register_corruption,
)
from research.corruptions.seeded_noise import Noise

__all__ = [
    "CORRUPTIONS",
    "PUBLISHED",
    "SEVERITIES",
    "Corruption",
    "Noise",
    "corrupt",
    "corrupt_examples",
    "register_corruption",
]

PUBLISHED = (
    *("gaussian-noise", "shot-noise", "impulse-noise"),
    *("defocus-blur", "glass-blur", "motion-blur", "zoom-blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic-transform", "pixelate", "jpeg"),
)
"""The 15 corruptions of every published average, in the order of the published table."""
