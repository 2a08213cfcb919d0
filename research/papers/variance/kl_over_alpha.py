"""KL of one weight N(μ, α μ²) from three priors, over α [variance, section 4.3]."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Normal, StudentT, kl_divergence

from leanbayes.distributions import LocationScale, LogUniformDensity, RelevanceNormal
from leanbayes.lab import plots

_DF = 1e-16
_BELOW, _ABOVE, _POINTS = 60.0, 40.0, 20_001
"""Range of log |w| below the largest weight, of that weight in σ, and points of the integral."""


def kls_over_alpha(log_alphas: Sequence[float]) -> dict[str, list[float]]:
    """Return the KL in nats per weight from every prior, less that of a weight of mean zero.

    Under the Student-t prior it is an integral; the library estimates it by one sample.
    """
    scales = (0.5 * torch.tensor(log_alphas, dtype=torch.float64)).exp()
    weights = [LocationScale(torch.ones(1, 1, dtype=torch.float64), s.view(1, 1)) for s in scales]
    priors = {
        "log-uniform": LogUniformDensity(exact=True),
        "log-uniform, the paper's approximation": LogUniformDensity(),
        "ARD": RelevanceNormal(),
    }
    found = {
        name: [float(kl_divergence(q, prior)) for q in weights] for name, prior in priors.items()
    }
    zero_mean = _student_t(0.0, torch.ones(()).double())
    found["Student-t"] = [float(_student_t(1.0, scale) - zero_mean) for scale in scales]
    return found


def _student_t(mean: float, scale: Tensor) -> Tensor:
    """Integrate by the trapezoidal rule in log |w|, where the prior's density is smooth."""
    q, prior = Normal(mean, scale), StudentT(torch.tensor(_DF, dtype=torch.float64))
    top = math.log(abs(mean) + _ABOVE * float(scale))
    logs = torch.linspace(top - _BELOW, top, _POINTS, dtype=torch.float64)
    size = logs.exp()
    terms = sum(q.log_prob(w).exp() * prior.log_prob(w) for w in (size, -size)) * size
    return -torch.trapezoid(terms, logs) - q.entropy()


def draw_kls() -> bytes:
    """Draw the KL over log α, on a logarithmic axis."""
    log_alphas = [0.25 * i for i in range(-32, 41)]
    kls = kls_over_alpha(log_alphas)
    return plots.curves(log_alphas, kls, "KL of one weight, nats", xlabel="log α", log=True)
