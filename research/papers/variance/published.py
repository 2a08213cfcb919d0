"""Printed numbers of the networks that are studied here [variance, Tables 1 to 3, 3.3]."""

from collections.abc import Mapping

from research.publishing.paper import read_published

TABLE_1, TABLE_2, TABLE_3 = _TABLES = tuple[Mapping[str, Mapping[str, float]], ...](
    read_published(__file__).values()
)


def printed(name: str) -> dict[str, float]:
    """Return all that is printed of a network; what two tables print stands as the first has it.

    Example:
        >>> printed("mnist-lenet5-layer")["accuracy.ensemble"]
        0.992
    """
    rows = (table.get(name, {}) for table in reversed(_TABLES))
    return {column: value for row in rows for column, value in row.items()}
