"""The incomplete beta function and ratios of gamma functions, which torch lacks."""

import math
from functools import lru_cache

import torch
from torch import Tensor

_TERMS = 2000
_LARGE = 2000.0
"""Where both arguments are at least this, the integral is computed instead of the fraction."""
_NODES = 48
_STIRLING = 30.0
"""From here on three terms of Stirling's series have all digits of a double."""


def incomplete_beta(a: Tensor, b: Tensor, x: Tensor, rest: Tensor | None = None) -> Tensor:
    """Compute the regularized incomplete beta function ``I_x(a, b)`` without gradients.

    It is Lentz's continued fraction of DLMF 8.17.22, at ``x`` or, by ``I_x(a, b) = 1 −
    I_{1−x}(b, a)``, at ``1 − x``: whichever converges fast. Where both ``a`` and ``b`` are large,
    that takes many terms, and the density is integrated. Where one is far larger than the other,
    it loses digits, and the hypergeometric series of DLMF 8.17.8 does not.

    Args:
        a: positive.
        b: positive.
        x: from 0 to 1.
        rest: ``1 − x``, if known with more digits than the difference has.
    """
    with torch.no_grad():
        rest = 1 - x.double() if rest is None else rest
        a, b, x, rest = torch.broadcast_tensors(*(v.double() for v in (a, b, x, rest)))
        large, lopsided = torch.minimum(a, b) >= _LARGE, _lopsided(a, b, x, rest)
        mirrored = torch.where(lopsided & ~large, a > b, x > (a + 1) / (a + b + 2))
        a, b = torch.where(mirrored, b, a), torch.where(mirrored, a, b)
        x, rest = torch.where(mirrored, rest, x), torch.where(mirrored, x, rest)
        value = torch.empty_like(x)
        methods = (
            (large, _integral),
            (lopsided & ~large, _series),
            (~lopsided & ~large, _fraction),
        )
        for which, method in methods:
            if bool(which.any()):
                value[which] = method(*(v[which] for v in (a, b, x, rest)))
        value = value.clamp(0, 1)
        return torch.where(mirrored, 1 - value, value)


def log_rising(x: Tensor, n: Tensor) -> Tensor:
    """Compute ``log Γ(x + n) − log Γ(x) − n log x``, without loss of digits for large x."""
    small, large = x.clamp_max(_STIRLING), x.clamp_min(_STIRLING)
    direct = torch.lgamma(small + n) - torch.lgamma(small) - n * small.log()
    series = (large + n - 0.5) * torch.log1p(n / large) - n
    series = series + _stirling(large + n) - _stirling(large)
    return torch.where(x < _STIRLING, direct, series)


def _stirling(x: Tensor) -> Tensor:
    """Return what is missing in ``(x − ½) log x − x + ½ log 2π`` to be ``log Γ(x)``."""
    inverse = 1 / x
    square = inverse.square()
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


def _lopsided(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    """Return whether one argument is far larger, and the integral not that of a far tail."""
    less, more = torch.minimum(a, b), torch.maximum(a, b)
    small = torch.where(a < b, x, rest)
    return (more > 1e3 * less) & (small * more < less + 5 * less.sqrt() + 10)


def _log(x: Tensor, rest: Tensor) -> Tensor:
    return torch.where(x < 0.5, x.log(), torch.log1p(-rest))


def _integral(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    """The integral of the density from ``x``, about the mean or below it, down to 9 deviations.

    The exponent is that of the density over its value at the mean: there, large logarithms cancel.
    """
    total = a + b
    mean = a / total
    spread = (a / total * (b / total) / (total + 1)).sqrt()
    ahead = torch.where(x < 0.5, x - mean, b / total - rest)
    width = torch.minimum(9 * spread, ahead + mean)
    nodes, weights = _gauss_legendre(x.device)
    places = ahead - width * nodes.unsqueeze(-1)
    exponent = (a - 1) * torch.log1p(places / mean) + (b - 1) * torch.log1p(-places / (b / total))
    area = weights @ exponent.exp() * width
    front = 1.5 * total.log() - 0.5 * (a.log() + b.log() + math.log(2 * math.pi))
    return area * (front + _stirling(total) - _stirling(a) - _stirling(b)).exp()


@lru_cache
def _gauss_legendre(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights on 0…1, from eigenvectors of the Jacobi matrix (Golub and Welsch, 1969)."""
    k = torch.arange(1, _NODES, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(torch.diag(k / (4 * k.square() - 1).sqrt(), -1))
    return (values.to(device) + 1) / 2, vectors[0].square().to(device)


def _front(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    more, less = torch.maximum(a, b), torch.minimum(a, b)
    log_beta = torch.lgamma(less) - log_rising(more, less) - less * more.log()
    powers = torch.where(x > 0, a * _log(x, rest) + b * _log(rest, x), -torch.inf)
    return (powers - log_beta).exp() / a


def _series(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    term = _front(a, b, x, rest)
    value = term
    for n in range(_TERMS * 2):
        ratio = (a + b + n) * x / (a + 1 + n)
        term = term * ratio
        value = value + term
        if bool(((term <= 1e-16 * value) & (ratio < 1)).all()):
            break
    return value


def _fraction(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    c, d = torch.ones_like(x), _away_from_zero(1 - (a + b) * x / (a + 1)).reciprocal()
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = _away_from_zero(1 + term * d).reciprocal()
            c = _away_from_zero(1 + term / c)
            value = value * d * c
        if bool(((value - before).abs() <= 1e-14 * value.abs()).all()):
            break
    return _front(a, b, x, rest) * value


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 1e-300, torch.full_like(x, 1e-300), x)
