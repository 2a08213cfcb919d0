"""Scores of one estimator, split by split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from research.publishing.cells import Cell, averaged


@dataclass(frozen=True)
class Measured:
    """Scores of one estimator on one set, by split.

    Args:
        splits: from the number of a split to its scores.
    """

    splits: Mapping[int, Mapping[str, float]]

    def cell(self, score: str) -> Cell:
        """Return mean and standard error over splits.

        Example:
            >>> str(Measured({0: {"rmse": 1.0}, 1: {"rmse": 3.0}}).cell("rmse"))
            '2.0 ± 1.0'
        """
        return averaged([part[score] for part in self.splits.values()])

    def minus(self, other: Measured, score: str) -> Cell:
        """Return the mean difference on the splits that both have, paired.

        Example:
            >>> a = Measured({0: {"rmse": 1.0}, 1: {"rmse": 3.0}})
            >>> b = Measured({0: {"rmse": 0.5}, 1: {"rmse": 2.0}})
            >>> str(a.minus(b, "rmse"))
            '0.75 ± 0.25'
        """
        both = sorted(self.splits.keys() & other.splits.keys())
        return averaged([self.splits[i][score] - other.splits[i][score] for i in both])
