"""Simulation-based calibration: ranks of true parameters among draws of fitted posteriors.

Parameters come from the prior and data from the model. If a posterior is exact, the rank of the
true parameter among its draws is uniform (Talts et al., 2018). A posterior that is too narrow has
too many extreme ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal

import leanbayes as lb
from leanbayes.distributions import WeightDistribution
from leanbayes.lab.provenance import environment_facts
from research.publishing.study_file import StudyFile, Tell

NOISE = 0.5
INPUTS = 4

FAMILIES: dict[str, lb.posteriors.Posterior] = {
    "matrix normal": lb.posteriors.MatrixNormal(scale=0.3),
    "matrix normal + diagonal": lb.posteriors.MatrixNormal(scale=0.3, diagonal=True),
    "matrix normal, rank 2": lb.posteriors.MatrixNormal(scale=0.3, rank=2),
    "mean field": lb.MeanField(0.3),
    "k-tied, rank 2": lb.KTied(2, scale=0.3),
    "additive variational dropout": lb.posteriors.VariationalDropout("additive", log_alpha=-1.0),
    "variational dropout, layer": lb.posteriors.VariationalDropout("layer", log_alpha=-1.0),
    "variational dropout, neuron": lb.posteriors.VariationalDropout("neuron", log_alpha=-1.0),
    "variational dropout, weight": lb.posteriors.VariationalDropout("weight", log_alpha=-1.0),
    "zero mean": lb.posteriors.ZeroMean(),
}
"""Families with a prior over weights; ``WITHOUT`` are the others."""

BROKEN = {
    "too narrow by 20%": 0.8,
    "too wide by 25%": 1.25,
}
"""Factors on the deviations of draws from their mean, of posteriors that are broken on purpose."""

WITHOUT = {
    "LowRank": "the prior is over two factors, whose product has no closed law",
    "Point": "one value has no ranks",
    "Pruned": "the law of another posterior, with some weights set to zero",
    "Rank1": "the prior is over factors of a matrix that is itself estimated",
}
"""Why a posterior has no simulation-based calibration."""


@dataclass(frozen=True)
class Settings:
    """Settings of the simulation.

    Args:
        simulations: Number of simulated data sets per model and family.
        draws: Number of draws that a true parameter is ranked among.
        examples: Number of examples per data set.
        seed: Random seed.
    """

    simulations: int = 200
    draws: int = 99
    examples: int = 20
    seed: int = 0


def inputs(examples: int) -> Tensor:
    """Return correlated inputs, so that independent weights cannot be exact."""
    return torch.randn(examples, INPUTS) @ (torch.eye(INPUTS) + 0.7)


@dataclass(frozen=True)
class Model:
    """A likelihood of targets given the products of inputs and weights.

    Attributes:
        sample: draws targets given products.
        expected: expected log likelihood per target, given mean and variance of its product.
    """

    sample: Callable[[Tensor], Tensor]
    expected: Callable[[Tensor, Tensor, Tensor], Tensor]


def _gaussian(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    return Normal(mean, NOISE).log_prob(y) - 0.5 * variance / NOISE**2


def _quadrature(nodes: int = 15) -> tuple[Tensor, Tensor]:
    """Return Gauss–Hermite nodes and weights of a standard normal, by Golub and Welsch."""
    beside = torch.arange(1, nodes, dtype=torch.float64).sqrt()
    found = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return found.eigenvalues, found.eigenvectors[0].square()


def _bernoulli(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """By quadrature: the product is normal if the weights are."""
    nodes, weights = _quadrature()
    logits = mean + variance.sqrt() * nodes.view(-1, 1, 1)
    return (weights.view(-1, 1, 1) * Bernoulli(logits=logits).log_prob(y)).sum(0)


MODELS = {
    "linear regression": Model(lambda f: Normal(f, NOISE).sample(), _gaussian),
    "logistic regression": Model(lambda f: Bernoulli(logits=f).sample(), _bernoulli),
}


def fitted(
    family: lb.posteriors.Posterior, model: Model, x: Tensor, y: Tensor
) -> WeightDistribution:
    """Maximize the ELBO in closed form, so that only the family limits the posterior."""
    net = nn.Linear(INPUTS, 1, bias=False, dtype=torch.float64)
    layer: Any = lb.convert(net, family, lb.priors.Normal(1.0))
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-9
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        moments = layer.posterior().moments(x, lb.extend.ops.Linear())
        covariance = moments.covariance(lb.extend.ops.Linear())
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        likelihood = model.expected(moments.mean.expand_as(y), variance, y).sum()
        loss: Tensor = lb.kl(layer) - likelihood
        loss.backward()
        return loss

    optimizer.step(closure)
    posterior: WeightDistribution = layer.posterior()
    return posterior


def ranks(
    family: lb.posteriors.Posterior, model: Model, settings: Settings, *, widened: float = 1.0
) -> Tensor:
    """Return ranks of every weight and of their sum, ``[simulations, weights + 1]``.

    Args:
        family: the posterior.
        model: the likelihood.
        settings: of the simulation.
        widened: factor on deviations from the mean; any but 1 breaks the posterior.
    """
    rows = []
    for simulation in range(settings.simulations):
        torch.manual_seed(settings.seed * 1_000_003 + simulation)
        true = torch.randn(1, INPUTS, dtype=torch.float64)
        x = inputs(settings.examples).double()
        q = fitted(family, model, x, model.sample(x @ true.mT))
        with torch.no_grad():
            drawn = q.mean + widened * (q.rsample((settings.draws,)) - q.mean)
        rows.append((_with_sum(drawn[:, 0]) < _with_sum(true)).sum(0))
    return torch.stack(rows)


def _with_sum(weights: Tensor) -> Tensor:
    return torch.cat([weights, weights.sum(-1, keepdim=True)], -1)


def verdict(found: Tensor, draws: int) -> dict[str, Any]:
    """Compare ranks with a uniform distribution.

    ``spread`` is the standard deviation of ranks relative to that of uniform ones: above 1 the
    posterior is too narrow, below 1 too wide. ``worst`` is the largest deviation of mean or
    variance of a parameter's ranks, in standard errors.
    """
    uniform = (found.double() + 0.5) / (draws + 1) - 0.5
    count, variance = len(uniform), (1 - (draws + 1) ** -2) / 12
    fourth = 1 / 80 - variance**2
    shifts = uniform.mean(0) / math.sqrt(variance / count)
    excess = (uniform.square().mean(0) - variance) / math.sqrt(fourth / count)
    worst = float(torch.cat([shifts, excess]).abs().max())
    spread = float((uniform.square().mean() / variance).sqrt())
    allowed = lb.testing.threshold(2 * found.shape[1])
    return {"spread": spread, "worst": worst, "allowed": allowed, "uniform": worst <= allowed}


def study(settings: Settings, out: Path, tell: Tell) -> dict[str, Any]:
    """Calibrate every family on every model, and two posteriors that are broken on purpose."""
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], Mapping[str, Any]]] = {
        f"{model} | {family}": partial(_part, FAMILIES[family], MODELS[model], settings)
        for model in MODELS
        for family in FAMILIES
    }
    for name, factor in BROKEN.items():
        parts[f"linear regression | broken: {name}"] = partial(
            _part, FAMILIES["matrix normal"], MODELS["linear regression"], settings, factor
        )
    return StudyFile(out, "simulation-based calibration", asdict(settings)).fill(parts, tell)


def _part(
    family: lb.posteriors.Posterior, model: Model, settings: Settings, widened: float = 1.0
) -> dict[str, Any]:
    started = time.monotonic()
    found = ranks(family, model, settings, widened=widened)
    bins = torch.histc(found.float(), 10, 0, settings.draws + 1)
    return {
        **verdict(found, settings.draws),
        "histogram": [int(n) for n in bins],
        "duration": time.monotonic() - started,
        **environment_facts(),
    }
