"""Printed numbers of clean and corrupted images [rank-1, Tables 1 to 4 and 8]."""

from collections.abc import Mapping

COLUMNS = ("nll", "accuracy", "ece", "cnll", "ca", "cece")

Printed = Mapping[str, tuple[float, ...]]

CIFAR10: Printed = {
    "deterministic": (0.159, 0.960, 0.023, 1.05, 0.761, 0.153),
    "mc-dropout": (0.160, 0.959, 0.024, 1.27, 0.688, 0.166),
    "mfvi": (0.214, 0.947, 0.029, 1.46, 0.713, 0.181),
    "batchensemble": (0.143, 0.962, 0.020, 1.02, 0.775, 0.129),
    "gaussian": (0.128, 0.963, 0.008, 0.84, 0.767, 0.080),
    "cauchy": (0.120, 0.965, 0.009, 0.74, 0.805, 0.090),
    "ensemble of WRN-28-5": (0.115, 0.963, 0.008, 0.84, 0.772, 0.089),
    "ensemble": (0.114, 0.966, 0.010, 0.81, 0.779, 0.087),
}
"""WRN-28-10, by the last word of a recipe's name."""

CIFAR100: Printed = {
    "deterministic": (0.875, 0.798, 0.085, 2.70, 0.513, 0.239),
    "mc-dropout": (0.830, 0.796, 0.050, 2.33, 0.515, 0.148),
    "mfvi": (1.030, 0.773, 0.111, 3.48, 0.480, 0.299),
    "batchensemble": (0.734, 0.815, 0.033, 2.49, 0.541, 0.191),
    "gaussian": (0.692, 0.813, 0.018, 2.24, 0.538, 0.117),
    "cauchy": (0.689, 0.824, 0.012, 2.04, 0.578, 0.142),
    "ensemble of WRN-28-5": (0.694, 0.815, 0.017, 2.19, 0.537, 0.111),
    "ensemble": (0.666, 0.827, 0.021, 2.27, 0.541, 0.138),
}

IMAGENET: Printed = {
    "deterministic": (0.943, 0.761, 0.0392, 3.20, 0.405, 0.105),
    "batchensemble": (0.951, 0.765, 0.0532, 3.23, 0.414, 0.120),
    "gaussian": (0.886, 0.773, 0.0166, 2.95, 0.429, 0.054),
    "cauchy": (0.897, 0.772, 0.0192, 2.98, 0.425, 0.059),
    "ensemble": (0.877, 0.775, 0.0305, 2.98, 0.421, 0.050),
}
"""ResNet-50."""

FEW_SAMPLES: Mapping[int, tuple[float, ...]] = {
    1: (0.128, 0.963, 0.008, 0.84, 0.767, 0.080),
    4: (0.126, 0.963, 0.008, 0.80, 0.773, 0.074),
    25: (0.125, 0.963, 0.007, 0.77, 0.778, 0.070),
}
"""Table 8: Gaussian factors on CIFAR-10, by samples of each of four members; the first row is that
of the main table."""


def printed(recipe: str) -> dict[str, float]:
    """Return what the paper prints for a recipe, by column; empty if it prints nothing.

    Example:
        >>> printed("cifar10-wrn-cauchy")["ca"]
        0.805
    """
    tables = {"cifar10-wrn-": CIFAR10, "cifar100-wrn-": CIFAR100}
    for start, table in tables.items():
        row = table.get(recipe.removeprefix(start)) if recipe.startswith(start) else None
        if row is not None:
            return dict(zip(COLUMNS, row, strict=True))
    return {}
