"""The incomplete beta function, which torch lacks."""

import torch
from torch import Tensor

_TERMS = 500


def incomplete_beta(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The regularised incomplete beta function ``I_x(a, b)``, in double precision, no gradients.

    It is Lentz's continued fraction of DLMF 8.17.22, at ``x`` or, by ``I_x(a, b) = 1 −
    I_{1−x}(b, a)``, at ``1 − x``: whichever converges fast.
    """
    with torch.no_grad():
        a, b, x = torch.broadcast_tensors(a.double(), b.double(), x.double())
        mirrored = x > (a + 1) / (a + b + 2)
        a, b = torch.where(mirrored, b, a), torch.where(mirrored, a, b)
        x = torch.where(mirrored, 1 - x, x)
        log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
        front = (torch.xlogy(a, x) + torch.xlogy(b, 1 - x) - log_beta).exp() / a
        value = (front * _fraction(a, b, x)).clamp(0, 1)
        return torch.where(mirrored, 1 - value, value)


def _fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
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
    return value


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 1e-300, torch.full_like(x, 1e-300), x)
