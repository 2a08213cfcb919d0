"""What others printed for the standard splits: one hidden layer of 50 units (protein 100)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from research.publishing.paper import read_published

_PUBLISHED = read_published(__file__)
SETS: dict[str, str] = _PUBLISHED["sets"]
"""The data sets' names in a table, and in leanbayes."""

DROPOUT, KFAC, HMC = "strong MC dropout", "noisy K-FAC", "HMC"


class Printed(NamedTuple):
    """A row of somebody's table.

    Attributes:
        source: who printed it.
        noise: ``"learned"``, one level for all rows, or ``"predicted"``, one for each.
        means: by the name of a set in :data:`SETS`.
        errors: standard errors; ``None`` where the ± is a standard deviation.
    """

    source: str
    noise: str
    means: dict[str, float]
    errors: dict[str, float] | None


def _rows(table: dict[str, dict[str, Any]]) -> dict[str, Printed]:
    def numbers(values: Sequence[float | None]) -> dict[str, float]:
        return {name: v for name, v in zip(SETS, values, strict=True) if v is not None}

    return {
        name: Printed(
            row["source"],
            row["noise"],
            numbers(row["means"]),
            numbers(row["errors"]) if "errors" in row else None,
        )
        for name, row in table.items()
    }


LOG_LIKELIHOOD, RMSE = (_rows(_PUBLISHED[table]) for table in ("log likelihood", "rmse"))
"""Test log likelihoods, nats for an example, and errors of the test targets, in their units."""
