"""Numbers with the digits that are worth keeping."""

import math
from typing import Any

from torch import Tensor


def rounded(values: Any, digits: int = 6) -> Any:
    """Round numbers, tensors or lists of them to significant digits; infinite ones are ``None``.

    Example:
        >>> rounded([1 / 3, [2.0]]), rounded(math.inf)
        ([0.333333, [2.0]], None)
    """
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [rounded(value, digits) for value in values]
    return float(f"{values:.{digits}g}") if math.isfinite(values) else None
