"""The matrix normal: a Kronecker covariance over rows and columns, plus an optional diagonal."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from leanbayes.distributions.base import ENTROPY_OF_UNIT_NORMAL, Moments, WeightDistribution
from leanbayes.distributions.covariance import Factor
from leanbayes.errors import require_choice
from leanbayes.ops import LinearOp

EntropyBound = Literal["minkowski", "pivots"]


class KroneckerNormal(WeightDistribution):
    """``W = M + R X Cᵀ + √d ∘ X′``: covariance ``R Rᵀ ⊗ C Cᵀ + diag(d)`` of row-major ``vec W``.

    Without ``d`` this is the matrix normal of the matrix-normal paper (section 3.4). With it
    [matrix normal, section 5.3] the log determinant has no closed form: :meth:`entropy` is then a
    lower bound, so that an ELBO computed from it stays a lower bound. It is ``½ logdet + ½ N
    log 2πe``, ``N = out · in``, with one of

        minkowski   ``logdet ≥ N · logaddexp(logdet(R Rᵀ ⊗ C Cᵀ) / N, Σ log d / N)``
        pivots      ``logdet ≥ Σᵢⱼ log(rᵢ cⱼ + dᵢⱼ)``, r and c the pivots of ``R Rᵀ`` and ``C Cᵀ``

    The second is never below the first; ``docs/mathematics.md`` proves both.

    Args:
        loc: the means ``M [out, in]``.
        rows: the factor ``R`` over outputs.
        columns: the factor ``C`` over inputs.
        diagonal: the standard deviations ``√d [out, in]`` of an independent part.
        bound: bound of the entropy with such a part.
        validate_args: check that the parameters are finite.
    """

    normal_marginals = True

    def __init__(
        self,
        loc: Tensor,
        rows: Factor,
        columns: Factor,
        diagonal: Tensor | None = None,
        *,
        bound: EntropyBound = "minkowski",
        validate_args: bool | None = None,
    ) -> None:
        shape = (rows.size, columns.size)
        if tuple(loc.shape) != shape:
            raise ValueError(
                f"factors of {shape[0]} rows and {shape[1]} columns do not fit means of shape "
                f"{tuple(loc.shape)}"
            )
        self.loc = loc
        self.rows = rows
        self.columns = columns
        self.diagonal = diagonal
        require_choice("bound", bound, get_args(EntropyBound))
        self.bound = bound
        self.independent = rows.diagonal_only and columns.diagonal_only
        self.sign_symmetric = self.independent
        super().__init__(loc.shape, validate_args=validate_args)

    def _validate(self) -> None:
        super()._validate()
        if not bool(torch.isfinite(self.variance).all()):
            raise ValueError("KroneckerNormal was given a covariance factor that is not finite")

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        kronecker = torch.outer(self.rows.variance, self.columns.variance)
        return kronecker if self.diagonal is None else kronecker + self.diagonal.square()

    def total_variance(self) -> Tensor:
        """Return ``tr(R Rᵀ) · tr(C Cᵀ) + Σ d``."""
        kronecker = self.rows.variance.sum() * self.columns.variance.sum()
        return kronecker if self.diagonal is None else kronecker + self.diagonal.square().sum()

    def covariance(self) -> Tensor:
        kronecker = torch.kron(self.rows.dense, self.columns.dense)
        if self.diagonal is None:
            return kronecker
        return kronecker + torch.diag(self.diagonal.square().flatten())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        e = self.loc.new_empty(*sample_shape, self.rows.width, self.columns.width).normal_()
        w = self.loc + self.rows.color(self.columns.color(e).mT).mT
        if self.diagonal is None:
            return w
        return torch.addcmul(w, self.diagonal, torch.randn_like(w))

    @property
    def _kronecker_logdet(self) -> Tensor:
        out, columns = self.loc.shape
        return columns * self.rows.logdet + out * self.columns.logdet

    def entropies(self) -> Tensor:
        if not self.independent:
            return super().entropies()
        return 0.5 * self.variance.log() + ENTROPY_OF_UNIT_NORMAL

    def entropy(self) -> Tensor:
        if self.diagonal is not None and self.independent:
            return self.entropies().sum()
        n = self.loc.numel()
        logdet = self._kronecker_logdet if self.diagonal is None else self._bounded(self.diagonal)
        return 0.5 * logdet + n * ENTROPY_OF_UNIT_NORMAL

    def total_correlation(self) -> Tensor:
        if self.diagonal is not None or self.independent:
            return super().total_correlation()
        out, columns = self.loc.shape
        logs = columns * self.rows.variance.log().sum() + out * self.columns.variance.log().sum()
        return 0.5 * (logs - self._kronecker_logdet)

    def _bounded(self, diagonal: Tensor) -> Tensor:
        """Return a lower bound of the log determinant with the diagonal."""
        independent = 2 * diagonal.abs().log()
        if self.bound == "minkowski":
            n = self.loc.numel()
            return n * torch.logaddexp(self._kronecker_logdet / n, independent.sum() / n)
        pivots = self.rows.log_pivots.unsqueeze(-1) + self.columns.log_pivots
        return torch.logaddexp(pivots, independent).sum()

    def log_prob(self, value: Tensor) -> Tensor:
        if self.diagonal is not None:
            raise NotImplementedError(
                "a matrix normal plus a diagonal has no density in closed form; "
                "entropy() is a lower bound"
            )
        delta = value - self.loc
        whitened = self.rows.solve(self.columns.solve(delta.mT).mT)
        distance = (delta * whitened).sum((-2, -1))
        return 0.5 * (self.loc.numel() - distance) - self.entropy()

    def local_is_exact(self, op: LinearOp, *, reused: bool) -> bool:
        return not reused and (op.groups == 1 or self.independent)

    def moments(self, x: Tensor, op: LinearOp) -> Moments:
        """Return ``N(op(x, M), (pᵀ C Cᵀ p) · R Rᵀ + diag(op(x², d)))`` [matrix normal, 3.4; E6]."""
        if op.groups > 1 and self.independent:
            return super().moments(x, op)
        if op.groups > 1:
            raise ValueError(
                "local noise of a matrix normal is correlated between the groups of a grouped "
                "convolution; use estimator=lb.estimators.weights for this layer"
            )
        independent = None if self.diagonal is None else op(op.square(x), self.diagonal.square())
        common = self.columns.quadratic(x, op)
        return Moments(op(x, self.loc), independent, common, self.rows)
