"""Densities of a variance layer's outputs, class by class [variance, appendix D]."""

import math
from typing import Any

import torch
from torch import Tensor

from leanbayes.analysis.log_alpha import quartiles, scaled_layers
from leanbayes.ops import Linear
from leanbayes.prediction.predict import predict
from research.papers.variance.split_at_noise import cut_at
from research.papers.variance.trained import Trained
from research.publishing.rounding import rounded

_POINTS = 61
_WIDTH = 2.5
_LEAST = 1e-3


@torch.no_grad()
def densities(trained: Trained, name: str, neurons: int = 4) -> dict[str, Any] | None:
    """Return what single neurons of a dense layer say of the class.

    Given its inputs, an output is normal with known moments, so the density of an image needs no
    samples (Bernoulli and uniform noise are nearly so, as sums of many terms). What is kept is the
    average over the images of a class. The few images that leave a neuron hardly any noise count
    as a thousandth of its typical one.

    Returns:
        For each neuron ``std`` by class and densities at points that lie denser in the middle; and
        quartiles over all neurons of ``contrast`` (the largest of the standard deviations of
        classes over the smallest) and of ``explained`` (the share of the variance of images' log σ
        that lies between classes). ``None`` if the layer is not dense.
    """
    layer = scaled_layers(trained.rest)[name]
    if not isinstance(layer.op, Linear) or "." in name or not name:
        return None
    before = cut_at(trained.rest, name).before
    x = predict(before, trained.x, samples=1, batch_size=trained.batch_size, seed=trained.seed)
    moments = layer.posterior().moments(x.samples[0], layer.op)
    if moments.variance is None or moments.common is not None:
        return None
    scale = moments.variance.sqrt()
    typical = scale.square().mean(0).sqrt()
    alive, scale = typical.nonzero().flatten(), scale.clamp_min(_LEAST * typical)
    loc = moments.mean.expand_as(scale)
    classes = [trained.y == c for c in trained.y.unique()]
    spread = torch.stack([_spread(loc[of], scale[of]) for of in classes])
    generator = torch.Generator().manual_seed(trained.seed)
    shown = alive[torch.randperm(len(alive), generator=generator)[:neurons]].sort().values
    between = [_explained(scale[:, neuron].log(), classes) for neuron in alive]
    contrast = spread[:, alive].amax(0) / spread[:, alive].amin(0)
    return {
        "layer": name,
        "neurons": {
            str(int(n)): _neuron(loc[:, n], scale[:, n], spread[:, n], classes) for n in shown
        },
        "contrast": rounded(list(quartiles(contrast))) if len(alive) else None,
        "explained": rounded(list(quartiles(torch.tensor(between)))) if len(alive) else None,
        "dead": scale.shape[1] - len(alive),
    }


def _spread(loc: Tensor, scale: Tensor) -> Tensor:
    """Return the standard deviation of an output over noise and the images of a class."""
    return (scale.square().mean(0) + loc.var(0, correction=0)).sqrt()


def _explained(values: Tensor, classes: list[Tensor]) -> float:
    """Return the share of the variance that lies between classes."""
    total = values.var(correction=0)
    within = sum(values[of].var(correction=0) * float(of.double().mean()) for of in classes)
    return float(1 - within / total) if total > 0 else 0.0


def _neuron(loc: Tensor, scale: Tensor, spread: Tensor, classes: list[Tensor]) -> dict[str, Any]:
    reach, steps = _WIDTH * float(spread.max()), torch.linspace(-1, 1, _POINTS)
    grid = loc.mean() + reach * steps * steps.abs()
    of_images = (-0.5 * ((grid - loc[:, None]) / scale[:, None]).square()).exp()
    of_images = of_images / (scale[:, None] * math.sqrt(2 * math.pi))
    return {
        "at": rounded(grid, 3),
        "std": rounded(spread),
        "density": [rounded(of_images[of].mean(0), 3) for of in classes],
    }
