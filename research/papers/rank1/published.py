"""Printed numbers of clean and corrupted images [rank-1, Tables 1 to 4 and 8]."""

from collections.abc import Mapping

from research.publishing.paper import read_published

_PUBLISHED = read_published(__file__)
COLUMNS: tuple[str, ...] = tuple(_PUBLISHED["columns"])
TABLES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    data: _PUBLISHED[data] for data in ("CIFAR-10", "CIFAR-100", "ImageNet")
}
FEW_SAMPLES: Mapping[int, tuple[float, ...]] = _PUBLISHED["few samples"]


def printed(recipe: str) -> dict[str, float]:
    """Return what the paper prints for a recipe, by column; empty if it prints nothing.

    Example:
        >>> printed("cifar10-wrn-cauchy")["ca"]
        0.805
    """
    data, _, method = recipe.partition("-wrn-")
    table = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}.get(data, "")
    row = TABLES.get(table, {}).get(method)
    return {} if row is None else dict(zip(COLUMNS, row, strict=True))
