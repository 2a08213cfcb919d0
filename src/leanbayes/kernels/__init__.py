"""Kernels: functions that stand in for the formulas of distributions, with the same law.

:mod:`~leanbayes.kernels.dispatch` has the table, one file per family the kernels. Each has two
branches: torch's own operations with a gradient in closed form, and a native kernel for float32 on
a CPU where the library was built. :func:`kernels` returns which is used.
"""

from leanbayes.kernels.dispatch import EAGER, FORMULA, GRAPH, kernel, mode_of, product
from leanbayes.kernels.divergence import KLTerm, ScaledFromNormal, TiedFromNormal
from leanbayes.kernels.entries import DrawnEntries
from leanbayes.kernels.independent import (
    FromRelevance,
    NoForce,
    draw_scaled,
    scaled_local,
    scaled_samples,
)
from leanbayes.kernels.k_tied import add_mixed_noise, draw_k_tied, k_tied_samples
from leanbayes.kernels.lstm import factored_lstm
from leanbayes.kernels.moments import (
    add_k_tied_variance,
    max_pool_moments,
    relu_moments,
    sigmoid_moments,
)
from leanbayes.kernels.native import without_native
from leanbayes.kernels.noise import Sharing, add_noise, shared_noise, windows
from leanbayes.kernels.rank1 import NormalFactor
from leanbayes.kernels.report import Kernels, kernels
from leanbayes.kernels.triangular import (
    PackedTriangular,
    from_packed,
    lower_product,
    lower_quadratic,
    row_squares,
    to_packed,
)
