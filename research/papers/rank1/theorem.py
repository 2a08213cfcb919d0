"""Theorem 1 in numbers: noise in s fluctuates as noise in the weights [rank-1, appendix A].

A network ``f = aᵀ tanh(W_H … tanh(W_1 x))`` is disturbed in one layer after the other. To second
order its mean changes by half of ``Σ_ijkl ∂²f/∂W_ij∂W_kl E[ΔW_ij ΔW_kl]``. A factor on the inputs
of a layer, ``s = 1 + δ`` with ``E δδᵀ = Σ``, changes weights by ``ΔW_ij = W_ij δ_j``, whose
covariance is ``W_ij Σ_jl W_kl``; the theorem says that weights with that covariance and factors
with ``Σ`` do the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes.lab.provenance import environment_facts
from research.publishing.study_file import StudyFile, Tell


@dataclass(frozen=True)
class TheoremSettings:
    """A tanh network and its noise.

    Args:
        width: of every layer.
        depth: how many layers there are.
        scales: standard deviations of δ to draw with.
        draws: of the noise, at each scale.
        seed: of weights, input and noise.
    """

    width: int = 8
    depth: int = 3
    scales: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.4)
    draws: int = 200_000
    seed: int = 42


@dataclass(frozen=True, eq=False)
class _Network:
    weights: Sequence[Tensor]
    x: Tensor
    a: Tensor

    @classmethod
    def of(cls, settings: TheoremSettings) -> _Network:
        generator = torch.Generator().manual_seed(settings.seed)
        n = settings.width

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        weights = [1.5 * normal(n, n) / n**0.5 for _ in range(settings.depth)]
        return cls(weights, normal(n), normal(n))

    def inputs(self, layer: int) -> Tensor:
        """Return what comes into a layer, ``[width]``."""
        h = self.x
        for w in self.weights[:layer]:
            h = torch.tanh(w @ h)
        return h

    def onwards(self, layer: int, z: Tensor) -> Tensor:
        """Return the output from what a layer has before its activation, ``[…, width]``."""
        h = torch.tanh(z)
        for w in self.weights[layer + 1 :]:
            h = torch.tanh(h @ w.mT)
        return h @ self.a


def second_orders(network: _Network, layer: int, sigma: Tensor) -> dict[str, float]:
    """Return second-order changes of the mean of one layer, by several formulas.

    Returns:
        ``factors``: by the curvature in s; ``weights``: by the curvature in the weights and the
        covariance with the indices j, l; ``indices j, k``: the same as equation 4 prints it; ``one
        curvature``: with the second derivative of equation 6, which leaves out the activations of
        later layers.
    """
    w, h = network.weights[layer], network.inputs(layer)
    hessian: Callable[..., Tensor] = torch.autograd.functional.hessian

    def of_factors(s: Tensor) -> Tensor:
        return network.onwards(layer, w @ (s * h))

    def of_weights(v: Tensor) -> Tensor:
        return network.onwards(layer, v @ h)

    in_weights = hessian(of_weights, w)
    activated = torch.tanh(w @ h).requires_grad_()
    (slope,) = torch.autograd.grad(_after(network, layer, activated), activated)
    spread = torch.einsum("ij,j,jl,il,l->i", w, h, sigma, w, h)
    curvature = -2 * activated * (1 - activated.square())
    changes = {
        "factors": (sigma * hessian(of_factors, torch.ones_like(h))).sum(),
        "weights": torch.einsum("ijkl,ij,jl,kl->", in_weights, w, sigma, w),
        "indices j, k": torch.einsum("ijkl,ij,jk,kl->", in_weights, w, sigma, w),
        "one curvature": (slope * curvature * spread).sum(),
    }
    return {name: 0.5 * float(change.detach()) for name, change in changes.items()}


def _after(network: _Network, layer: int, activated: Tensor) -> Tensor:
    h = activated
    for w in network.weights[layer + 1 :]:
        h = torch.tanh(w @ h)
    return h @ network.a


def theorem(settings: TheoremSettings, out: Path, *, tell: Tell | None = None) -> dict[str, Any]:
    """Measure the mean of a disturbed network and compare it with second-order formulas."""
    network = _Network.of(settings)
    parts = {
        f"layer {layer + 1}": partial(_measured, network, layer, settings)
        for layer in range(settings.depth)
    }
    return StudyFile(out, "theorem", asdict(settings)).fill(parts, tell)


def _measured(network: _Network, layer: int, settings: TheoremSettings) -> dict[str, Any]:
    """Formulas at a scale of one, and means over draws at every scale, with standard errors."""
    started, n = time.monotonic(), settings.width
    drawn = [_drawn(network, layer, scale, settings) for scale in settings.scales]
    return {
        "per_variance": second_orders(network, layer, torch.eye(n, dtype=torch.float64)),
        "scales": list(settings.scales),
        **{
            kind: {key: [at[kind][key] for at in drawn] for key in ("mean", "error")}
            for kind in ("signs", "normal weights")
        },
        "seconds": round(time.monotonic() - started, 1),
        **environment_facts(),
    }


def _drawn(
    network: _Network, layer: int, scale: float, settings: TheoremSettings
) -> dict[str, dict[str, float]]:
    """Random signs as δ, and normal weights of the same covariance, with the same number of draws.

    Two distributions that share two moments alone: the theorem speaks of no more.
    """
    generator = torch.Generator().manual_seed(settings.seed + 1000 * layer)
    w, h = network.weights[layer], network.inputs(layer)
    shape = (settings.draws, settings.width)
    before = network.onwards(layer, w @ h)
    coins = torch.randint(2, shape, generator=generator, dtype=torch.int8)
    noise = {
        "signs": (2 * coins - 1).double(),
        "normal weights": torch.randn(shape, generator=generator, dtype=torch.float64),
    }
    found = {}
    for kind, delta in noise.items():
        changes = network.onwards(layer, (h + scale * delta * h) @ w.mT) - before
        error = float(changes.std() / settings.draws**0.5)
        found[kind] = {"mean": float(changes.mean()), "error": error}
    return found
