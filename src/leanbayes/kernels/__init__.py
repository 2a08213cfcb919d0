"""Kernels: functions that stand in for the formulas of distributions, with the same law.

:mod:`~leanbayes.kernels.dispatch` has the table, one file per family the kernels. Each has two
branches: torch's own operations with a gradient in closed form, and a native kernel for float32 on
a CPU where the library was built. :func:`kernels` returns which is used.
"""

from leanbayes.kernels.dispatch import EAGER, FORMULA, GRAPH, kernel, mode_of
from leanbayes.kernels.divergence import KLTerm
from leanbayes.kernels.entries import DrawnEntries
from leanbayes.kernels.independent import (
    FromRelevance,
    NoForce,
    ScaledFromNormal,
    draw_scaled,
    scaled_local,
    scaled_samples,
)
from leanbayes.kernels.k_tied import add_mixed_noise, draw_k_tied, k_tied_local, k_tied_samples
from leanbayes.kernels.k_tied_kl import TiedFromNormal
from leanbayes.kernels.lstm import factored_lstm
from leanbayes.kernels.moments import (
    add_k_tied_variance,
    max_pool_moments,
    relu_moments,
    sigmoid_moments,
)
from leanbayes.kernels.native import without_native
from leanbayes.kernels.noise import add_noise
from leanbayes.kernels.products import product
from leanbayes.kernels.rank1 import NormalFactor
from leanbayes.kernels.report import Kernels, kernels
from leanbayes.kernels.shared_noise import Sharing, shared_noise, windows
from leanbayes.kernels.triangular import (
    PackedTriangular,
    from_packed,
    lower_gram,
    lower_lower,
    lower_product,
    lower_quadratic,
    row_squares,
    to_packed,
)

__all__ = [
    "EAGER",
    "FORMULA",
    "GRAPH",
    "DrawnEntries",
    "FromRelevance",
    "KLTerm",
    "Kernels",
    "NoForce",
    "NormalFactor",
    "PackedTriangular",
    "ScaledFromNormal",
    "Sharing",
    "TiedFromNormal",
    "add_k_tied_variance",
    "add_mixed_noise",
    "add_noise",
    "draw_k_tied",
    "draw_scaled",
    "factored_lstm",
    "from_packed",
    "k_tied_local",
    "k_tied_samples",
    "kernel",
    "kernels",
    "lower_gram",
    "lower_lower",
    "lower_product",
    "lower_quadratic",
    "max_pool_moments",
    "mode_of",
    "product",
    "relu_moments",
    "row_squares",
    "scaled_local",
    "scaled_samples",
    "shared_noise",
    "sigmoid_moments",
    "to_packed",
    "windows",
    "without_native",
]
