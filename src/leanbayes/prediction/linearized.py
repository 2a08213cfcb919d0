"""Linearized predictions: the network is replaced by its tangent at the posterior mean.

``f(x) + J(x) (w − E w)`` for draws ``w`` of the weights. Draws of a Laplace approximation underfit
in the network itself; its curvature is that of the tangent (Immer et al. 2021).
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.estimators import mean
from leanbayes.models.random_maps import random_maps, using
from leanbayes.prediction.eval_mode import evaluating, noise_by
from leanbayes.prediction.inputs import Inputs
from leanbayes.prediction.sampling import examples_first

_MEANS = "loc"


def draw_linearized(
    model: nn.Module,
    batches: Iterable[Inputs],
    samples: int,
    batch_size: int | None,
    seed: int | None,
) -> Tensor:
    """Linearized outputs ``[samples, examples, …]`` of all batches, by the same weight draws."""
    seed = int(torch.randint(2**62, ())) if seed is None else seed
    parts = []
    for inputs in batches:
        step = batch_size or max(inputs.sizes[0], 1)
        for start in range(0, max(inputs.sizes[0], 1), step):
            cut = inputs.cut(start, step)
            with torch.no_grad(), evaluating(model), noise_by(seed, model):
                parts.append(linearized_samples(model, partial(_outputs, cut), samples))
    return torch.cat(parts, 1)


def _outputs(inputs: Inputs, model: nn.Module) -> Tensor:
    return examples_first(inputs.run(model, inputs.tensors), inputs.sizes[0], inputs.dims[0])


def linearized_samples(
    model: nn.Module, run: Callable[[nn.Module], Tensor], samples: int
) -> Tensor:
    """Return outputs ``[samples, …]`` of the tangent of a model, one draw of all weights each."""
    maps = dict(random_maps(model))
    require(bool(maps), "the model has no Bayesian layer; call lb.convert or lb.laplace first")
    for name, layer in maps.items():
        require(
            layer.posterior.roles.get(_MEANS) == "means" and layer.members == 1,
            f"layer {name!r} has the posterior {layer.posterior.spec}, which has no mean to "
            "linearize at; leave linearized out",
        )
    means = {f"{name}.posterior.{_MEANS}": layer for name, layer in maps.items()}
    at = {name: layer.posterior.get_parameter(_MEANS).detach() for name, layer in means.items()}

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        with using(model, mean):
            return run(_Called(model, parameters))

    drawn = []
    for _ in range(samples):
        tangents = {name: _deviation(layer.posterior) for name, layer in means.items()}
        value, change, *_ = torch.func.jvp(outputs, (at,), (tangents,))
        drawn.append(value + change)
    return torch.stack(drawn)


class _Called(nn.Module):
    """A model that runs with other parameters."""

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self._run = (model, parameters)

    def forward(self, *inputs: object, **named: object) -> object:
        model, parameters = self._run
        return torch.func.functional_call(model, parameters, inputs, named)


def _deviation(posterior: nn.Module) -> Tensor:
    """Return a draw of the weights minus their mean, in the shape in which means are stored."""
    q = posterior()
    deviation = (q.rsample() - q.mean).detach()
    transform = posterior.transforms.get(_MEANS)  # type: ignore[union-attr, operator]
    stored: Tensor = deviation if transform is None else transform.inverse(deviation)
    return stored
