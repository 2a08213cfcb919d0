"""Priors that decide which weights are needed: relevance determination, log-uniform."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch import distributions as td

from leanbayes import distributions as lbd
from leanbayes.errors import require_choice, require_positive
from leanbayes.parameters.learned import Exp, Learned, Stored
from leanbayes.priors.base import Prior, register_prior


@register_prior
@dataclass(frozen=True)
class ARD(Prior):
    """Each weight's own optimal normal prior [variance, eq. 11; matrix normal, 3.1]."""

    weights_only = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.learned(lbd.RelevanceNormal, matrix)


@register_prior
@dataclass(frozen=True)
class GroupARD(Prior):
    """``N(0, 1/(τ_i γ_j))`` with learned relevances of rows and columns [matrix normal, 3.2].

    They follow the gradient of the ELBO; :func:`~leanbayes.training.update_priors` makes the exact
    block updates instead. A row is an output. A column is an input, in a convolution one input
    channel at one place of the kernel. The paper writes the transpose: its rows are inputs.

    Args:
        scale: first standard deviation.
        groups: groups with a relevance: every ``"row"``, every ``"column"`` or ``"both"``.

    Raises:
        ValueError: If the scale is not positive or the groups are unknown.
    """

    scale: float = 1.0
    groups: Literal["row", "column", "both"] = "both"
    weights_only = True

    def __post_init__(self) -> None:
        require_positive(scale=self.scale)
        require_choice("groups", self.groups, ("row", "column", "both"))

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        sizes = dict(zip(("row", "column"), matrix.shape, strict=True))
        chosen = [group for group in sizes if self.groups in (group, "both")]
        relative = Exp(unit=self.scale ** (-2 / len(chosen)))
        relevances = {
            f"{group}_precision": Stored(matrix.new_zeros(sizes[group]), relative, "other")
            for group in chosen
        }
        return self.learned(lbd.GroupRelevanceNormal, matrix, **relevances)

    @torch.no_grad()
    def part(
        self, whole: Learned[td.Distribution], rows: Tensor, columns: Tensor
    ) -> Learned[td.Distribution]:
        cut = self(whole.like.new_empty(len(rows), len(columns)))
        for name, index in (("row_precision", rows), ("column_precision", columns)):
            if name in cut.roles:
                before = whole.get_parameter(name)
                cut.get_parameter(name).copy_(before[index])
                cut.get_parameter(name).requires_grad_(before.requires_grad)
        return cut.train(whole.training)


@register_prior
@dataclass(frozen=True)
class LogUniform(Prior):
    """``p(w) ∝ 1/|w|`` [variance, eq. 6–8].

    Args:
        exact: the exact series instead of the published approximation.
    """

    exact: bool = False
    weights_only = True

    def __call__(self, matrix: Tensor) -> Learned[td.Distribution]:
        return self.learned(partial(lbd.LogUniformDensity, exact=self.exact), matrix)
