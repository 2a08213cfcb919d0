"""Spectra of trained weights: how much each singular value explains [k-tied, section 3]."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.display import DisplayTable
from leanbayes.errors import require, require_count
from leanbayes.layers import RandomMap
from leanbayes.models.random_maps import random_maps

_SUBSPACE_ROUNDS = 6
_MORE_DIRECTIONS = 8


class Spectrum(NamedTuple):
    """Shares of the sum of squares that singular values explain, largest first.

    Each adds up to 1; a matrix of zeros explains nothing, and all its shares are 0. Mixtures have
    a first axis of members.

    Attributes:
        scale: shares for the standard deviations (zeros for a point estimate).
        mean: shares for the means (zeros for a variance layer).
    """

    scale: Tensor
    mean: Tensor

    def __repr__(self) -> str:
        scale, mean = (", ".join(shares[:3]) for shares in self._percentages())
        more = ", …" if self.scale.shape[-1] > 3 else ""
        return f"Spectrum(scale: {scale}{more}; mean: {mean}{more})"

    def _repr_html_(self) -> str:
        rows = [
            [str(i + 1), *pair] for i, pair in enumerate(zip(*self._percentages(), strict=True))
        ]
        return DisplayTable(["singular value", "standard deviations", "means"], rows[:10]).html()

    def _percentages(self) -> list[list[str]]:
        """Of both, in words; of a mixture the averages over members."""
        averages = (shares.reshape(-1, shares.shape[-1]).mean(0) for shares in self)
        return [[f"{100 * share:.1f}%" for share in average.tolist()] for average in averages]


def is_matrix(layer: RandomMap) -> bool:
    """Return whether a random map has more than one row and column; a bias does not."""
    return min(layer.posterior().event_shape) > 1


@torch.no_grad()
def spectrum(model: nn.Module, *, most: int | None = None) -> dict[str, Spectrum]:
    """Return shares ``γᵢ² / Σⱼ γⱼ²`` of the squared singular values γ, by layer [k-tied, fig. 1].

    Standard deviations of mean-field posteriors are close to low rank, their means are not. A
    convolution is the matrix ``[out, in · height · width]``; the papers flatten it to ``[height ·
    width · in, out]``, which has the same singular values. Random biases have no spectrum.

    Args:
        model: a converted model with posteriors of any family; where standard deviations are not
            finite (Cauchy factors), shares are NaN.
        most: only the first so many, computed without the others; quicker for large matrices.

    Returns:
        The spectra by the names of :func:`named_kl`, on the CPU and in double precision.

    Raises:
        ValueError: If the model has no random matrix.
    """
    spectra = {}
    for name, layer in random_maps(model):
        if is_matrix(layer):
            q = layer.posterior()
            spectra[name] = Spectrum(
                explained_shares(q.variance.sqrt(), most), explained_shares(q.mean, most)
            )
    require(bool(spectra), "the model has no random matrix; call lb.convert(model, …) first")
    return spectra


def explained_shares(matrix: Tensor, most: int | None = None) -> Tensor:
    """Return squared singular values of ``[…, out, in]`` over their sum, largest first."""
    matrix = matrix.detach().cpu().double()
    rank = min(matrix.shape[-2:])
    if most is not None:
        require_count("most", most, 1)
        rank = min(rank, most)
    if not bool(matrix.isfinite().all()):
        return matrix.new_full((*matrix.shape[:-2], rank), torch.nan)
    largest = matrix.abs().amax((-2, -1), keepdim=True)
    unit = matrix / torch.where(largest > 0, largest, 1.0)
    squares = _singular_values(unit, rank).square()
    total = unit.square().sum((-2, -1)).unsqueeze(-1)
    return squares / torch.where(total > 0, total, 1.0)


def _singular_values(matrix: Tensor, count: int) -> Tensor:
    directions = count + _MORE_DIRECTIONS
    if directions >= min(matrix.shape[-2:]):
        return torch.linalg.svdvals(matrix)[..., :count]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(matrix.shape[-1], directions, generator=generator, dtype=matrix.dtype)
    basis = torch.linalg.qr(matrix @ start)[0]
    for _ in range(_SUBSPACE_ROUNDS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.mT @ basis)[0])[0]
    return torch.linalg.svdvals(basis.mT @ matrix)[..., :count]
