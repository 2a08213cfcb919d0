"""Curvature of a trained network: Kronecker factors and diagonals of its Gauss–Newton matrix.

A layer has inputs ``a`` and gradients ``g`` at its outputs. Summed over the data, the Gauss–Newton
matrix of its weights is approximately ``G ⊗ A``, with ``A = Σ a aᵀ`` and ``G`` the mean of
``g gᵀ``. Positions of sequences and convolutions count as inputs (KFAC-expand).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Gaussian, Likelihood
from leanbayes.training.batches import Called, parts_of

_MOST_ROOTS = 20
"""Up to this many classes or targets the Gauss–Newton matrix is exact; beyond, labels are drawn."""


@dataclass
class LayerCurvature:
    """Sums over the data for one layer with ``out`` outputs and ``in`` inputs.

    Attributes:
        inputs: ``Σ a aᵀ [in, in]``.
        outputs: ``Σ g gᵀ [out, out]``.
        diagonal: ``Σ (∂/∂w)² [out, in]``; zeros if it was not asked for.
        bias: ``Σ (∂/∂b)² [out]``.
        rows: number of inputs, counted with their positions.
    """

    inputs: Tensor
    outputs: Tensor
    diagonal: Tensor
    bias: Tensor
    rows: int = 0

    @classmethod
    def zeros(cls, layer: nn.Module) -> LayerCurvature:
        """Return sums over nothing."""
        out, columns = layer.weight.flatten(1).shape  # type: ignore[operator]
        zeros = layer.weight.detach().new_zeros  # type: ignore[operator]
        square = torch.float64
        return cls(
            zeros(columns, columns, dtype=square),
            zeros(out, out, dtype=square),
            zeros(out, columns, dtype=square),
            zeros(out, dtype=square),
        )

    @property
    def kronecker(self) -> tuple[Tensor, Tensor]:
        """Factors ``G [out, out]`` and ``A [in, in]`` whose product is the Gauss–Newton matrix."""
        return self.outputs / max(self.rows, 1), self.inputs


def is_supported(layer: nn.Module) -> bool:
    """Return whether the curvature is known: linear layers, ungrouped 2-D convolutions."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    return type(layer) is nn.Linear


def curvature(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Any],
    likelihood: Likelihood,
    *,
    diagonal: bool = True,
    target: str = "labels",
    output: Callable[[Any], Tensor] | None = None,
) -> tuple[dict[str, LayerCurvature], float]:
    """Return sums of the curvature of layers over batches, and the log likelihood of the data.

    Args:
        model: Trained plain network; runs in eval mode.
        layers: Its layers to look at, by name.
        batches: Pairs ``(x, y)`` or dictionaries.
        likelihood: Likelihood of the outputs.
        diagonal: Whether to sum squared gradients of single weights, the slowest part.
        target: Key of the targets in dictionaries.
        output: Chooses the tensor that the likelihood describes.
    """
    sums = {name: LayerCurvature.zeros(layer) for name, layer in layers.items()}
    total = 0.0
    for batch in batches:
        parts = parts_of(batch, target)
        with _recorded(layers) as calls:
            outputs = Called(model, parts.names, output)(*parts.inputs)
        y = parts.with_target(target)
        require(
            bool(outputs.isfinite().all()),
            "the network gives outputs that are not finite; look for a NaN in the inputs",
        )
        total -= float(likelihood.nll(outputs, y).detach()) * len(y)
        places = [(name, _patches(layers[name], a)) for name in layers for a, _ in calls[name]]
        leaves = [z for name in layers for _, z in calls[name]]
        for name, patches in places:
            sums[name].inputs += (patches.flatten(0, 1).mT @ patches.flatten(0, 1)).double()
            sums[name].rows += patches.shape[0] * patches.shape[1]
        for root in _roots(likelihood, outputs):
            found = torch.autograd.grad(outputs, leaves, root, retain_graph=True)
            for (name, patches), g in zip(places, found, strict=True):
                gradients = _gradients(layers[name], g)
                _add(sums[name], gradients)
                if diagonal:
                    sums[name].diagonal += _squares(gradients, patches).double()
    return sums, total


def _add(sums: LayerCurvature, gradients: Tensor) -> None:
    """Add one gradient of every example to the sums over outputs."""
    flat = gradients.flatten(0, 1)
    sums.outputs += (flat.mT @ flat).double()
    sums.bias += gradients.sum(1).square().sum(0).double()


def _squares(gradients: Tensor, patches: Tensor) -> Tensor:
    """Return squared gradients of single weights, summed over examples."""
    if gradients.shape[1] == 1:
        return gradients[:, 0].square().mT @ patches[:, 0].square()
    return torch.einsum("bto,bti->boi", gradients, patches).square().sum(0)


def _patches(layer: nn.Module, a: Tensor) -> Tensor:
    """Return inputs ``[batch, positions, in]`` of the matrix of a layer."""
    if isinstance(layer, nn.Conv2d):
        padding: Any = layer.padding
        if padding == "same":
            sizes = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
            left_right = [(n // 2, n - n // 2) for n in reversed(sizes)]
            a, padding = F.pad(a, [n for pair in left_right for n in pair]), 0
        padding = 0 if padding == "valid" else padding
        unfolded = F.unfold(a, layer.kernel_size, layer.dilation, padding, layer.stride)
        return unfolded.mT
    return a.reshape(a.shape[0], -1, a.shape[-1])


def _gradients(layer: nn.Module, g: Tensor) -> Tensor:
    """Return gradients ``[batch, positions, out]`` at the output of a layer."""
    if isinstance(layer, nn.Conv2d):
        return g.flatten(2).mT
    return g.reshape(g.shape[0], -1, g.shape[-1])


@contextmanager
def _recorded(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """Inputs and outputs of every call of the layers; what follows cannot change them in place."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], z: Tensor) -> Tensor:
            z = z if z.requires_grad else z.detach().requires_grad_()  # a frozen layer
            calls[name].append((inputs[0].detach(), z))
            return z.clone()

        return record

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _roots(likelihood: Likelihood, outputs: Tensor) -> Iterator[Tensor]:
    """Vectors whose outer products add up to the Hessian of the NLL by the outputs."""
    outputs = outputs.detach()
    width = outputs.shape[-1]
    if isinstance(likelihood, Categorical) and outputs.ndim == 2 and width <= _MOST_ROOTS:
        p = outputs.softmax(-1)
        for c in range(width):
            unit = F.one_hot(torch.tensor(c), width).to(p)
            yield p[:, c : c + 1].sqrt() * (unit - p)
    elif type(likelihood) is Gaussian and likelihood.noise != "predicted" and width <= _MOST_ROOTS:
        scale = likelihood.distribution(outputs).stddev.detach()
        for d in range(width):
            yield F.one_hot(torch.tensor(d), width).to(outputs).expand_as(outputs) / scale
    else:
        drawn = likelihood.sample(outputs)
        leaf = outputs.requires_grad_()
        nll = -likelihood.log_prob(leaf, drawn).sum()
        yield torch.autograd.grad(nll, leaf)[0]
