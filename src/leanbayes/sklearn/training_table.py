"""The rows of a table as training sees them: each distinct one once, in an order of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from leanbayes.errors import require

Floats = NDArray[np.float64]


class DistinctRows(NamedTuple):
    """Inputs ``[rows, features]``, targets and weights ``[rows]``, as numpy has them."""

    x: Floats
    y: Floats
    weight: Floats


def distinct_rows(x: Floats, y: Floats, weight: Floats) -> DistinctRows:
    """Merge equal rows, add their weights, leave out those of no weight, and sort the rest.

    A row of weight 3 is then the same as three rows, and the order of a table does not matter.

    Example:
        >>> x, y = np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 4.0, 5.0])
        >>> sorted(distinct_rows(x, y, np.ones(3)).weight.tolist())
        [1.0, 2.0]
    """
    kept = weight > 0
    require(bool(kept.any()), "all sample weights are zero; give at least one row some weight")
    table = np.ascontiguousarray(np.column_stack([x, y])[kept] + 0.0)  # -0.0 becomes 0.0
    keys = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    rows = table[first]
    weights = np.bincount(place.ravel(), weights=weight[kept]).astype(np.float64)
    return DistinctRows(rows[:, :-1], rows[:, -1], weights)


def fitted_scaler(columns: Floats, weight: Floats) -> StandardScaler:
    """Scikit-learn's scaler; columns that vary by rounding only do not become large numbers.

    Example:
        >>> column = np.full((30, 1), 1e30)
        >>> float(abs(fitted_scaler(column, np.ones(30)).transform(column)).max()) < 1e-3
        True
    """
    scaler = StandardScaler().fit(columns, sample_weight=weight)
    scaler.scale_ = np.maximum(scaler.scale_, 1e-12 * np.abs(scaler.mean_))
    return scaler


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """What a network is trained on.

    Attributes:
        x: scaled inputs ``[rows, features]``.
        y: targets, as the likelihood takes them.
        weight: how much each row counts, 1 on average.
        total: how many rows these stand for: the sum of the weights as given.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    total: float

    @staticmethod
    def of(x: Any, y: Any, weight: Floats, dtype: torch.dtype) -> WeightedRows:
        """From numpy's arrays; ``dtype`` is that of the targets."""
        total = float(weight.sum())
        relative = torch.as_tensor(weight * (len(weight) / total), dtype=torch.float32)
        inputs = torch.as_tensor(np.asarray(x), dtype=torch.float32)
        return WeightedRows(inputs, torch.as_tensor(np.asarray(y), dtype=dtype), relative, total)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> WeightedRows:
        """Some of the rows, as a table of their own."""
        weight = self.weight[index]
        share = float(weight.sum() / self.weight.sum())
        return WeightedRows(
            self.x[index], self.y[index], weight / weight.mean(), self.total * share
        )

    def split(self, fraction: float, seed: int) -> tuple[WeightedRows, WeightedRows]:
        """Rows to train on and rows to validate with; the same share of every class."""
        require(0 < fraction < 1, f"validation_fraction is {fraction}; it lies between 0 and 1")
        rng = np.random.RandomState(seed % 2**32)
        codes = self.y.numpy()
        whole = not self.y.is_floating_point()
        groups = [np.flatnonzero(codes == c) for c in np.unique(codes)] if whole else None
        chosen = [
            rng.permutation(group)[: round(fraction * len(group))]
            for group in groups or [np.arange(len(self))]
        ]
        held_out = np.zeros(len(self), dtype=bool)
        held_out[np.concatenate(chosen)] = True
        require(
            bool(held_out.any()) and not bool(held_out.all()),
            f"{len(self)} distinct rows cannot be split for validation; give more rows, another "
            "validation_fraction, or early_stopping=False",
        )
        return tuple(  # type: ignore[return-value]
            self.take(torch.as_tensor(np.flatnonzero(part))) for part in (~held_out, held_out)
        )


def round_off(values: Tensor) -> Floats:
    """Numbers in double precision, rounded to the 24 bits of single precision.

    What is left of the order in which a processor adds numbers up is far below that.

    Example:
        >>> bool(round_off(torch.tensor(1 / 3).double()) == np.float32(1 / 3))
        True
    """
    mantissa, exponent = np.frexp(values.detach().double().numpy())
    rounded: Floats = np.ldexp(np.round(mantissa * 2.0**24), exponent - 24)
    return rounded
