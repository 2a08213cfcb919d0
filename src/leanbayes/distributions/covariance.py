"""Factors ``F`` of a covariance ``F Fᵀ``: full lower-triangular, and diagonal plus low rank."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from leanbayes.ops import LinearOp


class Factor(ABC):
    """A square-root factor ``F [size, width]`` of a covariance, known by what it does."""

    size: int
    width: int
    diagonal_only: bool = False

    @abstractmethod
    def color(self, e: Tensor) -> Tensor:
        """Turn white noise ``[..., width]`` into noise ``[..., n]`` with covariance ``F Fᵀ``."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of ``F Fᵀ``."""

    @property
    @abstractmethod
    def logdet(self) -> Tensor:
        """``log det F Fᵀ``."""

    @property
    @abstractmethod
    def dense(self) -> Tensor:
        """``F Fᵀ``."""

    @property
    def log_pivots(self) -> Tensor:
        """Logs of the pivots of ``F Fᵀ``: each variance given all that come before it."""
        return 2 * torch.linalg.cholesky(self.dense).diagonal().log()

    @abstractmethod
    def solve(self, x: Tensor) -> Tensor:
        """Return ``(F Fᵀ)⁻¹ x`` for ``x [..., n, m]``."""

    @abstractmethod
    def quadratic(self, x: Tensor, op: LinearOp) -> Tensor:
        """Return ``pᵀ F Fᵀ p`` for every input patch ``p`` of ``x``, as one output channel."""


class Triangular(Factor):
    """A lower-triangular factor with positive diagonal."""

    def __init__(self, lower: Tensor) -> None:
        if lower.ndim != 2 or lower.shape[0] != lower.shape[1]:
            raise ValueError(f"a triangular factor is square; its shape is {tuple(lower.shape)}")
        self.lower = lower
        self.size = self.width = lower.shape[0]

    def color(self, e: Tensor) -> Tensor:
        return e @ self.lower.mT

    @property
    def variance(self) -> Tensor:
        return self.lower.square().sum(-1)

    @property
    def logdet(self) -> Tensor:
        return self.log_pivots.sum()

    @property
    def log_pivots(self) -> Tensor:
        return 2 * self.lower.diagonal().abs().log()

    @property
    def dense(self) -> Tensor:
        return self.lower @ self.lower.mT

    def solve(self, x: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(self.lower, x, upper=False)
        return torch.linalg.solve_triangular(self.lower.mT, half, upper=True)

    def quadratic(self, x: Tensor, op: LinearOp) -> Tensor:
        return op(x, self.lower.mT).square().sum(op.channel_dim, keepdim=True)


class DiagonalLowRank(Factor):
    """A factor ``[diag(d) | L]``: covariance ``diag(d²) + L Lᵀ`` with ``L [n, rank]``."""

    def __init__(self, scale: Tensor, low_rank: Tensor | None = None) -> None:
        self.scale = scale
        self.low_rank = scale.new_empty(scale.shape[0], 0) if low_rank is None else low_rank
        if self.low_rank.ndim != 2 or self.low_rank.shape[0] != scale.shape[0]:
            raise ValueError(
                f"the low-rank part needs {scale.shape[0]} rows like the diagonal; "
                f"its shape is {tuple(self.low_rank.shape)}"
            )
        self.size = scale.shape[0]
        self.width = self.size + self.low_rank.shape[1]
        self.diagonal_only = self.low_rank.shape[1] == 0

    def color(self, e: Tensor) -> Tensor:
        n = self.scale.shape[0]
        if self.diagonal_only:
            return e * self.scale
        return e[..., :n] * self.scale + e[..., n:] @ self.low_rank.mT

    @property
    def variance(self) -> Tensor:
        return self.scale.square() + self.low_rank.square().sum(-1)

    def _capacitance(self) -> Tensor:
        """Return ``I + Lᵀ D⁻² L`` of the matrix determinant and inversion lemmas."""
        ratio = self.low_rank / self.scale.unsqueeze(-1)
        eye = torch.eye(ratio.shape[1], dtype=ratio.dtype, device=ratio.device)
        return eye + ratio.mT @ ratio

    @property
    def logdet(self) -> Tensor:
        diagonal = 2 * self.scale.abs().log().sum()
        return diagonal if self.diagonal_only else diagonal + torch.logdet(self._capacitance())

    @property
    def log_pivots(self) -> Tensor:
        return 2 * self.scale.abs().log() if self.diagonal_only else super().log_pivots

    @property
    def dense(self) -> Tensor:
        return torch.diag(self.scale.square()) + self.low_rank @ self.low_rank.mT

    def solve(self, x: Tensor) -> Tensor:
        inverse = self.scale.square().reciprocal().unsqueeze(-1)
        if self.diagonal_only:
            return inverse * x
        inner = torch.linalg.solve(self._capacitance(), self.low_rank.mT @ (inverse * x))
        return inverse * (x - self.low_rank @ inner)

    def quadratic(self, x: Tensor, op: LinearOp) -> Tensor:
        diagonal = op.skinny(op.square(x), self.scale.square().unsqueeze(0))
        if self.diagonal_only:
            return diagonal
        projected = op.skinny(x, self.low_rank.mT)
        return diagonal + projected.square().sum(op.channel_dim, keepdim=True)
