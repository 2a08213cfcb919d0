"""Kernels: functions that stand in for the formulas of distributions, with the same law.

:mod:`~leanbayes.kernels.dispatch` has the table, one file per family the kernels. Each has two
branches: torch's own operations with a gradient in closed form, and a native kernel for float32 on
a CPU where the library was built. :func:`kernels` returns which is used.
"""

from leanbayes.kernels import entries, k_tied_kl, noise, rank1
from leanbayes.kernels.dispatch import EAGER, mode_of
from leanbayes.kernels.lstm import factored_lstm
from leanbayes.kernels.moments import (
    add_k_tied_variance,
    max_pool_moments,
    relu_moments,
    sigmoid_moments,
)
from leanbayes.kernels.native import without_native
from leanbayes.kernels.products import product
from leanbayes.kernels.report import kernels
from leanbayes.kernels.shared_noise import Sharing, windows
from leanbayes.kernels.triangular import PackedTriangular

__all__ = [
    "EAGER",
    "PackedTriangular",
    "Sharing",
    "add_k_tied_variance",
    "entries",
    "factored_lstm",
    "k_tied_kl",
    "kernels",
    "max_pool_moments",
    "mode_of",
    "noise",
    "product",
    "rank1",
    "relu_moments",
    "sigmoid_moments",
    "windows",
    "without_native",
]
