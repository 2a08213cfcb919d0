"""Data sets, networks and measurements of the papers, registered for recipes by importing this."""

from research import corruptions, data, networks
from research.papers.k_tied import probe
from research.papers.matrix_normal import natural_gradient, sparse_curves
from research.papers.matrix_normal.vae import network
from research.papers.rank1 import health
from research.papers.variance import phases

__all__ = [
    "corruptions",
    "data",
    "health",
    "natural_gradient",
    "network",
    "networks",
    "phases",
    "probe",
    "sparse_curves",
]
