"""What others printed for the standard splits: one hidden layer of 50 units (protein 100)."""

from typing import NamedTuple

SETS = {
    "boston": "boston-housing",
    "concrete": "concrete",
    "energy": "energy",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
}
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


def _row(source: str, noise: str, means: str, errors: str = "") -> Printed:
    def numbers(text: str) -> dict[str, float]:
        values = (float(word) if word != "-" else None for word in text.split())
        return {name: v for name, v in zip(SETS, values, strict=True) if v is not None}

    return Printed(source, noise, numbers(means), numbers(errors) if errors else None)


LOG_LIKELIHOOD = {
    "PBP": _row(
        "Hernández-Lobato and Adams 2015", "learned",
        "-2.574 -3.161 -2.042 3.731 -2.837 -2.973 -0.968",
        "0.089 0.019 0.019 0.006 0.009 0.003 0.014"),
    "mean field (BBB)": _row(
        "Zhang et al. 2018, own splits", "learned",
        "-2.602 -3.149 -1.500 6.143 -2.807 -2.882 -0.977",
        "0.031 0.018 0.006 0.032 0.010 0.004 0.017"),
    DROPOUT: _row(
        "Mukhoti et al. 2018, 4000 epochs, a grid for every split", "learned",
        "-2.402 -2.937 -1.212 4.450 -2.808 -2.871 -0.928",
        "0.042 0.025 0.005 0.002 0.009 0.002 0.013"),
    "VMG": _row(
        "Louizos and Welling 2016", "learned",
        "-2.54 -2.98 -1.45 5.84 -2.78 -2.84 -0.93",
        "0.08 0.03 0.03 0.00 0.01 0.00 0.02"),
    KFAC: _row(
        "Zhang et al. 2018, own splits", "learned",
        "-2.446 -3.039 -1.421 7.079 -2.776 -2.836 -0.969",
        "0.029 0.025 0.005 0.034 0.011 0.002 0.014"),
    HMC: _row(
        "Bui et al. 2016", "learned",
        "-2.27 -2.72 -0.93 7.31 -2.70 -2.77 -0.91",
        "0.03 0.02 0.01 0.00 0.00 0.00 0.02"),
    "deep ensemble of 5": _row(
        "Lakshminarayanan et al. 2017, 40 epochs", "predicted",
        "-2.41 -3.06 -1.38 5.63 -2.79 -2.83 -0.94"),
    "NGBoost": _row(
        "as quoted by Amini et al. 2020", "predicted",
        "-2.43 -3.04 -0.60 5.34 -2.79 -2.81 -0.91"),
}  # fmt: skip
"""Test log likelihoods, nats for an example."""

RMSE = {
    "PBP": _row(
        "Hernández-Lobato and Adams 2015", "learned", "3.014 5.667 1.804 - 4.124 4.732 0.635",
        "0.180 0.093 0.048 - 0.035 0.013 0.008"),
    "mean field (BBB)": _row(
        "Zhang et al. 2018, own splits", "learned", "3.171 5.678 0.565 - 4.023 4.321 0.643",
        "0.149 0.087 0.018 - 0.036 0.017 0.012"),
    DROPOUT: _row(
        "Mukhoti et al. 2018", "learned", "2.904 4.827 0.539 - 4.014 4.274 0.622",
        "0.177 0.161 0.014 - 0.037 0.021 0.008"),
    "VMG": _row(
        "Louizos and Welling 2016", "learned", "2.81 4.70 1.16 - 3.88 4.14 0.61",
        "0.11 0.14 0.03 - 0.03 0.01 0.01"),
    KFAC: _row(
        "Zhang et al. 2018, own splits", "learned", "2.742 5.019 0.485 - 3.886 4.097 0.637",
        "0.125 0.127 0.023 - 0.041 0.009 0.011"),
    HMC: _row(
        "Bui et al. 2016", "learned", "2.76 4.12 0.48 - 3.73 3.91 0.63",
        "0.20 0.14 0.01 - 0.04 0.02 0.01"),
    "NGBoost": _row(
        "as quoted by Amini et al. 2020", "predicted", "2.94 5.06 0.46 - 3.79 4.33 0.63"),
}  # fmt: skip
"""Root mean squared errors of the test targets, in their units."""
