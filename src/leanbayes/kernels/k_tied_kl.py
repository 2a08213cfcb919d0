"""The KL of k-tied weights from one normal for all of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal
from torch.library import custom_op

from leanbayes.distributions import KTiedNormal, RelevanceNormal
from leanbayes.kernels.dispatch import GRAPH, Tensors, kernel
from leanbayes.kernels.divergence import (
    FromNormal,
    KLTerm,
    in_memory_order,
    numbers_of,
    register_slopes,
    squares,
    sum_of_logs,
)
from leanbayes.kernels.independent import relevance
from leanbayes.kernels.k_tied import factors_of
from leanbayes.kernels.native import LARGEST_RANK, library, native_logs, threads


class TiedFromNormal(FromNormal):
    """Independent normal weights with ``scale = uᵀ v``, ``(loc, u, v, prior)``, from one normal.

    With a ``log_unit``, ``u`` and ``v`` are logarithms of the factors in that unit.
    """

    def value(
        self, loc: Tensor, u: Tensor, v: Tensor, prior: Tensor | None = None
    ) -> tuple[float, Tensors]:
        loc, (rank, m), n = in_memory_order(loc), u.shape, v.shape[1]
        dense = loc, u.contiguous(), v.contiguous()
        native = library(*dense)
        if native is not None and rank <= LARGEST_RANK:
            gu, gv = u.new_empty(u.shape), v.new_empty(v.shape)
            totals = torch.empty(2, dtype=torch.float64)
            sizes = m, n, rank, *native_logs(self.log_unit), self.loc, self.scale, threads(m * n)
            native.k_tied_kl(*map(Tensor.data_ptr, (*dense, gu, gv, totals)), *sizes)
            square, logs = totals.tolist()
            return self.from_totals(square, logs, m * n), (gu, gv)
        u, v = factors_of(u, v, self.log_unit)
        logs, gu, gv, square = self._by_factors(u, v)
        if self.log_unit is not None:
            gu, gv = gu.mul_(u), gv.mul_(v)
        return self.from_totals(squares(loc, self.loc) + square, logs, m * n), (gu, gv)

    def _by_factors(self, u: Tensor, v: Tensor) -> tuple[float, Tensor, Tensor, float]:
        """Return ``Σ log σ``, the gradients of the KL by both factors, and ``Σ σ²``."""
        (rank, m), n = u.shape, v.shape[1]
        if rank == 1:  # the log of a product separates
            logs = n * sum_of_logs(u) + m * sum_of_logs(v)
            ru, rv = n / u, m / v
        else:
            scale = u.t() @ v
            logs = sum_of_logs(scale)
            inverse = scale.reciprocal_()
            ru, rv = (inverse @ v.t()).t(), u @ inverse
        of_u, of_v = (w @ w.t() for w in (u.double(), v.double()))
        precision = self.scale**-2
        gu = torch.addmm(ru, of_v.to(u.dtype), u, beta=-1, alpha=precision)
        gv = torch.addmm(rv, of_u.to(u.dtype), v, beta=-1, alpha=precision)
        return logs, gu, gv, float((of_u * of_v).sum())

    def slopes(self, tensors: Any, kept: Any, g: float, needed: Sequence[bool]) -> Tensors:
        (loc, _, _, prior), (gu, gv) = tensors, kept
        gloc = self.slope_of_means(loc, g) if needed[0] else None
        return gloc, gu * g, gv * g, self.slope_of_prior(prior, loc.numel(), g)

    def plain(self, loc: Tensor, u: Tensor, v: Tensor, prior: Tensor | None = None) -> Tensor:
        u, v = factors_of(u, v, self.log_unit)
        return self.plain_kl(loc, u.t() @ v, prior)


kernel("kl", KTiedNormal, RelevanceNormal)(relevance)


@kernel("kl", KTiedNormal, Normal)
def _kl(q: KTiedNormal, p: Normal) -> KLTerm | None:
    numbers = numbers_of(p)
    if numbers is None:
        return None
    loc, scale, learned = numbers
    return TiedFromNormal((q.loc, q.given_u, q.given_v, learned), loc, scale, q.log_unit)


@kernel("kl", KTiedNormal, Normal, mode=GRAPH)
def _graph_kl(q: KTiedNormal, p: Normal) -> Tensor | None:
    if q.rank > LARGEST_RANK or p.scale.ndim or p.loc.ndim or p.scale.requires_grad:
        return None
    return _kl_op(q.loc, q.given_u, q.given_v, p.loc, p.scale, q.log_unit)[0]


@custom_op("leanbayes::k_tied_kl", mutates_args=(), device_types="cpu")
def _kl_op(
    loc: Tensor,
    u: Tensor,
    v: Tensor,
    prior_loc: Tensor,
    prior_scale: Tensor,
    log_unit: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    term = TiedFromNormal((), float(prior_loc), float(prior_scale), log_unit)
    value, (gu, gv) = term.value(loc.contiguous(), u, v)
    assert gu is not None
    assert gv is not None
    return loc.new_tensor(value), gu, gv


@_kl_op.register_fake
def _(
    loc: Tensor,
    u: Tensor,
    v: Tensor,
    prior_loc: Tensor,
    prior_scale: Tensor,
    log_unit: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return loc.new_empty(()), u.new_empty(u.shape), v.new_empty(v.shape)


register_slopes(_kl_op)
