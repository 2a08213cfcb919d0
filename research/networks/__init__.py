"""The papers' networks, registered as architectures of recipes and :func:`build`."""

from leanbayes.lab.architectures import build
from research.networks import convolutional, dense, recurrent, residual  # noqa: F401

__all__ = ["build"]
