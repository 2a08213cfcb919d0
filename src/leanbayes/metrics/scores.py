"""An average over examples and its standard error, of tensors and what becomes one."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Generator, Tensor

from leanbayes.errors import require

P = ParamSpec("P")
R = TypeVar("R")
_SMALL = (torch.int8, torch.int16, torch.int32)


def as_tensor(values: Any) -> Tensor:
    """Return an array, a Series, a DataFrame or a list as a tensor; small integers become int64."""
    if not isinstance(values, Tensor):
        values = values.to_numpy() if hasattr(values, "to_numpy") else values
        flags = getattr(values, "flags", None)
        values = torch.as_tensor(values if flags is None or flags.writeable else values.copy())
    return values.long() if values.dtype in _SMALL else values


def takes_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of tensors take what :func:`as_tensor` takes."""

    @wraps(function)
    def converted(*args: Any, **named: Any) -> R:
        tensors = {name: _converted(value) for name, value in named.items()}
        return function(*map(_converted, args), **tensors)

    return converted


def _converted(value: Any) -> Any:
    is_array = hasattr(value, "__array_interface__") or hasattr(value, "to_numpy")
    return as_tensor(value) if isinstance(value, Tensor | list) or is_array else value


class Score(NamedTuple):
    """An average over examples and its standard error.

    Attributes:
        value: the average.
        error: the standard deviation over examples divided by √examples; of an accuracy ``p``
            it is ``√(p (1 − p) / examples)``.
    """

    value: float
    error: float

    def __repr__(self) -> str:
        if not (math.isfinite(self.error) and self.error > 0):
            return f"{self.value:.4g} ± {self.error:g}"
        digits = min(max(1 - math.floor(math.log10(self.error)), 0), 6)
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"

    def __float__(self) -> float:
        return self.value


def average(values: Tensor) -> Score:
    """Return the average of one number per example, with its standard error.

    Args:
        values: ``[examples]``, such as minus ``Prediction.log_likelihood(y)``.

    Returns:
        The average, with its standard error.

    Raises:
        ValueError: If there are no values.
    """
    require(
        values.ndim == 1 and len(values) > 0,
        f"values have shape {tuple(values.shape)}; give one number for each of several examples",
    )
    values = values.detach().double()
    error = values.std(correction=0) / math.sqrt(len(values))
    return Score(float(values.mean()), float(error))


def bootstrap(
    metric: Callable[..., Any],
    *values: Tensor,
    strata: Tensor | None = None,
    draws: int = 100,
    seed: int = 0,
) -> Score:
    """Return any metric of a whole test set, with its spread over test sets drawn from this one.

    Args:
        metric: a function of tensors that gives one number.
        values: its arguments, each with one entry per example.
        strata: classes ``[examples]`` whose sizes every drawn test set keeps.
        draws: number of test sets.
        seed: seed of the draws.

    Returns:
        The metric, with its standard error.

    Raises:
        ValueError: If there are fewer than 2 draws or no examples.
    """
    require(draws >= 2, f"draws is {draws}; a spread needs at least 2")
    require(
        len(values) > 0 and all(len(v) == len(values[0]) > 0 for v in values),
        "give tensors with one entry for each of several examples, all equally long",
    )
    classes = torch.zeros(len(values[0])) if strata is None else strata.cpu()
    groups = [(classes == c).nonzero().squeeze(-1) for c in classes.unique()]
    generator = Generator().manual_seed(seed)
    drawn = []
    for _ in range(draws):
        index = torch.cat([g[torch.randint(len(g), g.shape, generator=generator)] for g in groups])
        drawn.append(float(metric(*(v[index.to(v.device)] for v in values))))
    error = torch.tensor(drawn, dtype=torch.float64).std()
    return Score(float(metric(*values)), float(error))


def average_over_ties(key: Tensor, values: Tensor) -> Tensor:
    """Return values in the order of a key, averaged where keys are equal, in float64."""
    _, group, count = key.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(count), dtype=torch.float64, device=key.device)
    means = sums.index_add(0, group, values.double()) / count
    return means.repeat_interleave(count)
