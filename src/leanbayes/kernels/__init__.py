"""The fused forms of what families do most: functions with closed-form gradients.

Each has two branches with the same law: torch's own operations, and a native kernel for float32 on
a CPU where the library was built. :func:`kernels` says which is used.
"""

from leanbayes.kernels.divergence import (
    KLTerm,
    ScaledFromNormal,
    TiedFromNormal,
    fused_kl,
    k_tied_kl,
    no_force,
    relevance_kl,
    scaled_kl,
)
from leanbayes.kernels.draws import draw_k_tied, draw_scaled
from leanbayes.kernels.factors import NormalFactor
from leanbayes.kernels.fold import Folded, fold_k_tied, fold_noise, fold_scaled, windows
from leanbayes.kernels.fused import fusible
from leanbayes.kernels.k_tied import add_mixed_noise, can_mix, k_tied_local
from leanbayes.kernels.local import add_noise, safe_sqrt, scaled_local
from leanbayes.kernels.native import Kernels, kernels, without_native
from leanbayes.kernels.operators import (
    compiled_draw,
    compiled_k_tied_kl,
    compiled_k_tied_local,
    compiled_noise,
    compiled_scaled_kl,
    in_graph,
)
from leanbayes.kernels.products import product
from leanbayes.kernels.triangular import (
    from_packed,
    lower_gram,
    lower_lower,
    lower_product,
    lower_quadratic,
    row_squares,
    to_packed,
)

__all__ = [
    "Folded",
    "KLTerm",
    "Kernels",
    "NormalFactor",
    "ScaledFromNormal",
    "TiedFromNormal",
    "add_mixed_noise",
    "add_noise",
    "can_mix",
    "compiled_draw",
    "compiled_k_tied_kl",
    "compiled_k_tied_local",
    "compiled_noise",
    "compiled_scaled_kl",
    "draw_k_tied",
    "draw_scaled",
    "fold_k_tied",
    "fold_noise",
    "fold_scaled",
    "from_packed",
    "fused_kl",
    "fusible",
    "in_graph",
    "k_tied_kl",
    "k_tied_local",
    "kernels",
    "lower_gram",
    "lower_lower",
    "lower_product",
    "lower_quadratic",
    "no_force",
    "product",
    "relevance_kl",
    "row_squares",
    "safe_sqrt",
    "scaled_kl",
    "scaled_local",
    "to_packed",
    "windows",
    "without_native",
]
