"""Printed numbers of the networks that are studied here [variance, Tables 1 to 3, 3.3]."""

from collections.abc import Mapping

Printed = Mapping[str, Mapping[str, float]]

_ONE = ("elbo.elbo", "elbo.data", "elbo.kl", "accuracy.mean", "accuracy.ensemble")
_TWO = ("accuracy.sample", "accuracy.mean", "accuracy.ensemble")
_THREE = ("accuracy.sample", "accuracy.ensemble")


def _row(columns: tuple[str, ...], *values: float) -> Mapping[str, float]:
    return dict(zip(columns, values, strict=True))


TABLE_1: Printed = {
    "mnist-lenet5-zero-mean": _row(_ONE, -4.0, -4.0, 0.0, 0.113, 0.994),
    "mnist-lenet5-layer": _row(_ONE, -17.4, -15.8, 1.7, 0.113, 0.992),
    "mnist-lenet5-neuron": _row(_ONE, -31.4, -17.0, 14.4, 0.113, 0.992),
    "mnist-lenet5-additive": _row(_ONE, -227.9, -31.2, 196.7, 0.992, 0.992),
    "mnist-lenet5-weight": _row(_ONE, -602.6, -33.8, 568.8, 0.966, 0.994),
}
"""By recipe, in the order of the printed ELBOs."""

TABLE_2: Printed = {
    "mnist-lenet5-dropout": _row(_TWO, 0.991, 0.994, 0.994),
    "mnist-lenet5-all-layers": _row(_TWO, 0.982, 0.113, 0.993),
    "mnist-lenet5-zero-mean": {},
    "mnist-lenet5-bernoulli": {"accuracy.ensemble": 0.987},
    "mnist-lenet5-uniform": {"accuracy.ensemble": 0.987},
    "cifar10-vgg-dropout": _row(_TWO, 0.910, 0.931, 0.934),
    "cifar10-vgg-variance": _row(_TWO, 0.913, 0.100, 0.934),
    "cifar100-coarse-vgg-dropout": _row(_TWO, 0.775, 0.798, 0.817),
    "cifar100-coarse-vgg-variance": _row(_TWO, 0.769, 0.050, 0.822),
}
"""Its variance networks are layer-wise, in all four layers of LeNet-5 (section 6.1); Bernoulli and
uniform noise are of section 3.3."""

TABLE_3: Printed = {
    "mnist-lenet5-tanh-deterministic": _row(_THREE, 0.994, 0.994),
    "mnist-lenet5-tanh-conv2": _row(_THREE, 0.988, 0.994),
    "mnist-lenet5-tanh-dense1": _row(_THREE, 0.988, 0.992),
    "mnist-lenet5-tanh-both": _row(_THREE, 0.932, 0.975),
    "mnist-lenet5-tanh-dense1-bias": {},
}
"""The last row is ours: with biases."""


def printed(name: str) -> dict[str, float]:
    """Return all that is printed of a network; what two tables print stands as the first has it.

    Example:
        >>> printed("mnist-lenet5-layer")["accuracy.ensemble"]
        0.992
    """
    rows = (table.get(name, {}) for table in (TABLE_3, TABLE_2, TABLE_1))
    return {column: value for row in rows for column, value in row.items()}
