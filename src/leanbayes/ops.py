"""Ops: how a matrix acts on an input.

Every op turns a matrix ``a [rows, in]`` into a linear function with ``rows`` output channels, and
it acts **row by row**: output channel ``i`` depends on row ``i`` alone. That one property makes
structure cheap. With ``p`` the (never materialized) input patch,

* ``op(x, M)`` is the mean ``M p`` of a random output,
* ``op(op.square(x), V)`` its variance when weights are independent with variances ``V``,
* ``op(x, A.T).square().sum(channel)`` is the quadratic form ``pᵀ A Aᵀ p``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import require

__all__ = ["Conv", "ConvTranspose", "Linear", "LinearOp", "Lookup", "Usage"]

_Functions = Sequence[Callable[..., Tensor]]
_CONV: _Functions = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED: _Functions = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class Usage(NamedTuple):
    """Intended use of a drawn map.

    Attributes:
        batch: the number of examples; ``None`` for a map that is kept and applied to any batch, or
            for an input in which no dimension counts examples.
        reused: whether a weight meets the same example more than once (positions, time steps).
        noise: a :class:`~leanbayes.distributions.NoiseSource`; ``None`` for fresh noise.
        entries: indices of a table that will be looked up; ``None``: any column may be used.
    """

    batch: int | None
    reused: bool
    noise: Any = None
    entries: Tensor | None = None


class LinearOp(ABC):
    """Action of a matrix ``a [rows, in]`` on an input; a value without parameters."""

    channel_dim: ClassVar[int]
    batch_dim: int = 0
    groups: int = 1

    @abstractmethod
    def __call__(self, x: Tensor, a: Tensor) -> Tensor:
        """Apply ``a [rows, in]`` to ``x``, giving ``rows`` output channels."""

    def affine(self, x: Tensor, a: Tensor, bias: Tensor | None) -> Tensor:
        """Apply ``a`` and add a bias ``[rows]``, if there is one, in one go where torch can."""
        y = self(x, a)
        return y if bias is None else self.add_bias(y, bias)

    def add_bias(self, y: Tensor, bias: Tensor) -> Tensor:
        """Add a bias ``[rows]`` to outputs, in their dtype."""
        return y + self.spread(bias.unsqueeze(0), y.ndim).to(y.dtype)

    @abstractmethod
    def usage(self, x: Tensor) -> Usage:
        """Say how ``x`` uses each weight."""

    @abstractmethod
    def is_batched(self, x: Tensor) -> bool:
        """Return whether dimension ``batch_dim`` of ``x`` counts examples."""

    @abstractmethod
    def matrix(self, weight: Tensor) -> Tensor:
        """View a weight in torch's own shape as ``[out, in]``."""

    @abstractmethod
    def unmatrix(self, matrix: Tensor) -> Tensor:
        """Bring ``[..., out, in]`` back to torch's own shape."""

    def skinny(self, x: Tensor, a: Tensor) -> Tensor:
        """Compute ``op(x, a)`` for a matrix of few rows; the memory layout may differ."""
        return self(x, a)

    @abstractmethod
    def check_input(self, x: Tensor, channels: int) -> None:
        """Raise a sentence if ``x`` cannot be an input with so many channels."""

    def square(self, x: Tensor) -> Tensor:
        """Return the input whose op with a variance matrix gives the output variance: ``x²``."""
        return x * x

    def input_channels(self, columns: int) -> int:
        """Return how many input channels a matrix with so many columns reads."""
        return columns

    def fan_in(self, columns: int) -> int:
        """Return how many weights are added up in one output of a matrix with so many columns."""
        return columns

    def column_factor(self, s: Tensor, rows: int) -> Tensor:
        """Lay a factor per input channel ``[..., channels]`` out over a matrix ``[..., 1, in]``.

        The result broadcasts with ``[..., rows, in]``; grouped ops give all ``rows``.
        """
        return s.unsqueeze(-2)

    def spread(self, v: Tensor, ndim: int) -> Tensor:
        """Reshape ``[batch, channels]`` so that it broadcasts with ``ndim``-dimensional data."""
        sizes = [1] * ndim
        sizes[self.batch_dim], sizes[self.channel_dim] = v.shape
        return v.reshape(sizes)

    def scaled(self, x: Tensor, s: Tensor, a: Tensor) -> Tensor:
        """Return ``op(x ∘ s, a)`` for a factor ``s [batch, channels]`` on the input channels."""
        return self(x * self.spread(s, x.ndim), a)

    def shifted(self, x: Tensor, s: Tensor, a: Tensor) -> Tensor:
        """Return ``op(x + s, a)`` for a shift ``s [batch, channels]`` of the input channels."""
        return self(x + self.spread(s, x.ndim), a)

    def silence(self, x: Tensor, y: Tensor) -> Tensor:
        """Zero the outputs of positions that hold no input; only a padded look-up has any."""
        return y


@dataclass(frozen=True)
class Linear(LinearOp):
    """A matrix times the last dimension.

    Args:
        batch_dim: dimension that counts examples: 0, or 1 for inputs ``[time, batch, in]``.
    """

    batch_dim: int = field(default=0, kw_only=True, repr=False)
    channel_dim: ClassVar[int] = -1

    def __call__(self, x: Tensor, a: Tensor) -> Tensor:
        return F.linear(x, a)

    def affine(self, x: Tensor, a: Tensor, bias: Tensor | None) -> Tensor:
        own = type(self) is Linear  # a subclass may multiply otherwise
        return F.linear(x, a, bias) if own else super().affine(x, a, bias)

    def skinny(self, x: Tensor, a: Tensor) -> Tensor:
        """Multiply with the small dimension first, which is several times faster on a CPU."""
        return (a @ x.t()).t() if x.ndim == 2 else F.linear(x, a)

    def check_input(self, x: Tensor, channels: int) -> None:
        if not x.ndim or x.shape[-1] != channels:
            raise ValueError(
                f"the input has shape {tuple(x.shape)}; its last dimension must be {channels}"
            )

    def usage(self, x: Tensor) -> Usage:
        return Usage(x.shape[self.batch_dim], x.ndim > 2)

    def is_batched(self, x: Tensor) -> bool:
        return x.ndim > self.batch_dim + 1

    def matrix(self, weight: Tensor) -> Tensor:
        return weight

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix


@dataclass(frozen=True)
class _Convolution(LinearOp):
    """What convolutions and transposed convolutions share: a kernel laid out as matrix columns."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    channel_dim: ClassVar[int] = 1

    def __post_init__(self) -> None:
        dims = self.dims
        require(dims in (1, 2, 3), f"kernel_size has {dims} dimensions; 1, 2 or 3 are possible")
        for name in ("stride", "padding", "dilation", "output_padding"):
            if getattr(self, name, None) == ():
                object.__setattr__(self, name, (0 if "padding" in name else 1,) * dims)

    def __call__(self, x: Tensor, a: Tensor) -> Tensor:
        return self.affine(x, a, None)

    @property
    def dims(self) -> int:
        """Over how many dimensions the kernel moves."""
        return len(self.kernel_size)

    def usage(self, x: Tensor) -> Usage:
        return Usage(x.shape[0], True)

    def is_batched(self, x: Tensor) -> bool:
        return x.ndim == self.dims + 2

    def check_input(self, x: Tensor, channels: int) -> None:
        dims, given = self.dims, f"the input has shape {tuple(x.shape)}"
        require(
            x.ndim in (dims + 1, dims + 2),
            f"{given}; a convolution over {dims} dimensions needs {dims + 2} dimensions, or "
            f"{dims + 1} without a batch",
        )
        axis = x.ndim - dims - 1
        require(
            x.shape[axis] == channels,
            f"{given}; it must have {channels} channels in dimension {axis}",
        )

    def input_channels(self, columns: int) -> int:
        return columns // prod(self.kernel_size) * self.groups

    def column_factor(self, s: Tensor, rows: int) -> Tensor:
        columns = s.unflatten(-1, (self.groups, -1)).repeat_interleave(prod(self.kernel_size), -1)
        return columns if self.groups == 1 else columns.repeat_interleave(rows // self.groups, -2)

    def _kernel(self, a: Tensor) -> Tensor:
        require(
            a.shape[-2] % self.groups == 0,
            f"{a.shape[-2]} rows cannot be shared among {self.groups} groups; give a multiple",
        )
        return a.reshape(*a.shape[:-1], -1, *self.kernel_size)


@dataclass(frozen=True)
class Conv(_Convolution):
    """A 1-, 2- or 3-dimensional convolution; the matrix is ``[out, in/groups · kernel]``.

    Args:
        kernel_size: Size of the kernel by dimension.
        stride: Stride by dimension; 1 if empty.
        padding: Padding by dimension, ``"same"`` or ``"valid"``.
        dilation: Dilation by dimension; 1 if empty.
        groups: Number of groups of channels.
        padding_mode: Padding mode of ``torch.nn.Conv2d``.
    """

    padding_mode: str = "zeros"

    def affine(self, x: Tensor, a: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self.pad_widths(), mode=self.padding_mode)
            padding = (0,) * self.dims
        conv = _CONV[self.dims - 1]
        return conv(x, self._kernel(a), bias, self.stride, padding, self.dilation, self.groups)

    def pad_widths(self) -> list[int]:
        """Return the padding in the order of :func:`torch.nn.functional.pad`."""
        if isinstance(self.padding, tuple):
            return [width for p in reversed(self.padding) for width in (p, p)]
        if self.padding == "valid":
            return [0, 0] * self.dims
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [width for t in reversed(totals) for width in (t // 2, t - t // 2)]

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.flatten(1)

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return self._kernel(matrix)


@dataclass(frozen=True)
class ConvTranspose(_Convolution):
    """A transposed convolution; the matrix is ``[out, in/groups · kernel]`` all the same.

    Args:
        kernel_size: Size of the kernel by dimension.
        stride: Stride by dimension; 1 if empty.
        padding: Padding by dimension.
        dilation: Dilation by dimension; 1 if empty.
        groups: Number of groups of channels.
        output_padding: Extra size of the output by dimension.
    """

    output_padding: tuple[int, ...] = ()

    def affine(self, x: Tensor, a: Tensor, bias: Tensor | None) -> Tensor:
        options = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return _TRANSPOSED[self.dims - 1](x, self.unmatrix(a), bias, *options)

    def with_output_size(self, x: Tensor, output_size: Sequence[int]) -> ConvTranspose:
        """Return the op whose output for ``x`` has this size, which the stride leaves open."""
        size = tuple(output_size)[-self.dims :]
        assert not isinstance(self.padding, str)
        shape = x.shape[-self.dims :]
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        least = tuple(
            (n - 1) * stride - 2 * padding + r
            for n, stride, padding, r in zip(shape, self.stride, self.padding, reach, strict=True)
        )
        most = tuple(n + stride - 1 for n, stride in zip(least, self.stride, strict=True))
        require(
            len(output_size) in (self.dims, x.ndim)
            and all(a <= n <= b for a, n, b in zip(least, size, most, strict=True)),
            f"output_size is {tuple(output_size)}; for an input of shape {tuple(x.shape)} it lies "
            f"between {least} and {most}",
        )
        return replace(self, output_padding=tuple(n - a for n, a in zip(size, least, strict=True)))

    def matrix(self, weight: Tensor) -> Tensor:
        grouped = weight.unflatten(0, (self.groups, -1))  # [groups, in, out, *kernel]
        return grouped.transpose(1, 2).flatten(0, 1).flatten(1)

    def unmatrix(self, matrix: Tensor) -> Tensor:
        lead = matrix.ndim - 2
        kernel = self._kernel(matrix).unflatten(lead, (self.groups, -1))
        return kernel.transpose(lead + 1, lead + 2).flatten(lead, lead + 1)


@dataclass(frozen=True)
class Lookup(LinearOp):
    """An embedding: the matrix ``[dimension, entries]`` applied to one-hot inputs.

    Positions that hold ``padding_index`` give zero, without noise.

    Args:
        padding_index: Index whose row is zero.
        batch_dim: Dimension that counts examples.
    """

    padding_index: int | None = None
    batch_dim: int = field(default=0, kw_only=True, repr=False)
    channel_dim: ClassVar[int] = -1

    def __call__(self, x: Tensor, a: Tensor) -> Tensor:
        return self.silence(x, F.embedding(x, a.t()))

    def silence(self, x: Tensor, y: Tensor) -> Tensor:
        if self.padding_index is None:
            return y
        return y.masked_fill((x == self.padding_index).unsqueeze(-1), 0.0)

    def square(self, x: Tensor) -> Tensor:
        return x

    def fan_in(self, columns: int) -> int:
        """Return a one-hot input picks one column."""
        return 1

    def check_input(self, x: Tensor, channels: int) -> None:
        """Indices are checked by the look-up itself."""

    def usage(self, x: Tensor) -> Usage:
        return Usage(x.shape[self.batch_dim], x.ndim > 1, entries=x)

    def is_batched(self, x: Tensor) -> bool:
        return x.ndim > self.batch_dim

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.t()

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix.mT

    def scaled(self, x: Tensor, s: Tensor, a: Tensor) -> Tensor:
        if s.shape[0] == 1:
            return self(x, a) * s[0][x].unsqueeze(-1)
        index = x.movedim(self.batch_dim, 0)
        factor = s.gather(1, index.reshape(len(index), prod(index.shape[1:])))
        factor = factor.reshape(index.shape).movedim(0, self.batch_dim)
        return self(x, a) * factor.unsqueeze(-1)

    def shifted(self, x: Tensor, s: Tensor, a: Tensor) -> Tensor:
        y = self(x, a)
        return self.silence(x, y + self.spread(torch.matmul(s, a.t()), y.ndim))
