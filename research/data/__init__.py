"""Data sets of the papers and studies, registered for recipes and :func:`load_dataset`."""

from leanbayes.lab.data import fetch, load_dataset
from research.data import binarized_mnist, cifar, imagenet, imdb, uci  # noqa: F401

__all__ = ["fetch", "load_dataset"]
