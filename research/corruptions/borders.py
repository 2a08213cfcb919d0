"""Images beyond their borders: filters and samples that look past the last pixel."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Border = Literal["edge", "mirror", "double"]
"""What lies beyond ``a b c``: ``c c c`` (edge), ``b a`` (mirror) or ``c b a`` (double)."""


def inside(index: Tensor, count: int, border: Border) -> Tensor:
    """Return indices that may lie outside ``0 … count − 1``, brought inside.

    Example:
        >>> [inside(torch.arange(-2, 5), 3, border).tolist() for border in ("edge", "mirror")]
        [[0, 0, 0, 1, 2, 2, 2], [2, 1, 0, 1, 2, 1, 0]]
        >>> inside(torch.arange(-2, 5), 3, "double").tolist()
        [1, 0, 0, 1, 2, 2, 1]
    """
    if border == "edge":
        return index.clamp(0, count - 1)
    if border == "double":
        index = index.remainder(2 * count)
        return torch.minimum(index, 2 * count - 1 - index)
    period = max(2 * (count - 1), 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index).clamp_max(count - 1)


def padded(x: Tensor, rows: int, columns: int, border: Border) -> Tensor:
    """Return images with so many more rows and columns on every side."""
    for dim, reach in ((-2, rows), (-1, columns)):
        count = x.shape[dim]
        index = torch.arange(-reach, count + reach, device=x.device)
        x = x.index_select(dim, inside(index, count, border))
    return x


def filtered(x: Tensor, kernel: Tensor, border: Border) -> Tensor:
    """Return one odd-sized symmetric kernel over every channel."""
    rows, columns = (side // 2 for side in kernel.shape)
    y = padded(x, rows, columns, border).flatten(0, 1).unsqueeze(1)
    return F.conv2d(y, kernel.to(x)[None, None]).view_as(x)


def window(scale: float, reach: int) -> Tensor:
    """Return a Gaussian window of one dimension, which sums to one; without width, a single one."""
    places = torch.arange(-reach, reach + 1, dtype=torch.float64)
    if scale == 0:
        return (places == 0).double()
    weights = torch.exp(-0.5 * (places / scale).square())
    return weights / weights.sum()


def smoothed(x: Tensor, scale: float, border: Border = "edge", truncate: float = 4.0) -> Tensor:
    """Return a Gaussian filter that ends after so many standard deviations, of any width.

    The filter is one matrix for the rows and one for the columns.
    """
    weights = window(scale, int(truncate * scale + 0.5))
    rows, columns = (_filter_matrix(weights, side, border).to(x) for side in x.shape[-2:])
    return rows @ x @ columns.mT


def _filter_matrix(weights: Tensor, count: int, border: Border) -> Tensor:
    reach = len(weights) // 2
    places = torch.arange(count).unsqueeze(1) + torch.arange(-reach, reach + 1)
    matrix = weights.new_zeros(count, count)
    return matrix.scatter_add_(1, inside(places, count, border), weights.expand(count, -1))


def sampled(x: Tensor, rows: Tensor, columns: Tensor, border: Border) -> Tensor:
    """Return values between pixels, bilinear in the four around."""
    height, width = x.shape[-2:]
    top, left = rows.floor(), columns.floor()
    down, right = ((rows - top).unsqueeze(1), (columns - left).unsqueeze(1))
    pixels = x.flatten(2)

    def at(row: Tensor, column: Tensor) -> Tensor:
        flat = inside(row.long(), height, border) * width + inside(column.long(), width, border)
        index = flat.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
        return pixels.gather(-1, index).view(*x.shape[:2], *rows.shape[1:])

    upper = torch.lerp(at(top, left), at(top, left + 1), right)
    lower = torch.lerp(at(top + 1, left), at(top + 1, left + 1), right)
    return torch.lerp(upper, lower, down)
