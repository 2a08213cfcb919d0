"""Ablations: models without their means, or with shuffled standard deviations [variance]."""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor, nn

from leanbayes.analysis.log_alpha import scaled_layers
from leanbayes.distributions import Masked, WeightDistribution
from leanbayes.errors import require
from leanbayes.layers import RandomMap
from leanbayes.models.random_maps import map_posteriors
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import MeanField, ZeroMean
from leanbayes.posteriors.independent import masked
from research.papers.scales import with_scales

M = TypeVar("M", bound=nn.Module)


def zero_means(model: M, *, include: Sequence[str] = ("**",)) -> M:
    """Return the zero-mean approximation: every mean is zero, noise stays as it is [variance, 4.3].

    A layer that predicts as well without its means has become a variance layer
    (:func:`~leanbayes.analysis.alpha_report`). Where standard deviations follow the means, as
    those of ``Dropout`` do, the layer becomes a ``ZeroMean`` with the standard deviations it has.
    Biases, points and rank-one factors are left as they are.

    Args:
        model: a converted model.
        include: patterns of layer names, as in :func:`~leanbayes.convert`.

    Returns:
        The model without means.

    Example:
        >>> import leanbayes as lb
        >>> q = lb.posteriors.VariationalDropout(log_alpha=4.0)
        >>> model = lb.convert(nn.Linear(3, 2), q, lb.priors.LogUniform())
        >>> zero = zero_means(model)
        >>> bool(zero.posterior().mean.any())
        False
        >>> torch.allclose(zero.posterior().variance, model.posterior().variance)
        True
    """
    return _changed(model, include, lambda name, layer: _without_means(layer))


def permute_scales(model: M, *, seed: int = 0, include: Sequence[str] = ("**",)) -> M:
    """Shuffle the standard deviations within every layer; means are unchanged.

    A control: what a model loses by it is what its standard deviations knew. A shuffled layer
    whose standard deviations are tied or follow the means becomes a ``MeanField``. Pruned weights
    stay pruned. Biases, points and rank-one factors are left as they are.

    Args:
        model: a converted model with independent weights.
        seed: of the shuffle; the global generator is left as it was.
        include: patterns of layer names, as in :func:`~leanbayes.convert`.

    Returns:
        The model with shuffled scales.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.posteriors.ZeroMean(), lb.priors.LogUniform())
        >>> permuted = permute_scales(model)
        >>> before, after = model.posterior().scale, permuted.posterior().scale
        >>> torch.equal(before, after)
        False
        >>> torch.equal(before.flatten().msort(), after.flatten().msort())
        True
    """
    generator = torch.Generator().manual_seed(seed)
    return _changed(model, include, lambda name, layer: _shuffled(name, layer, generator))


@torch.no_grad()
def _changed(
    model: M,
    include: Sequence[str],
    change: Callable[[str, RandomMap], Learned[WeightDistribution]],
) -> M:
    model = copy.deepcopy(model)
    changed = {name: change(name, layer) for name, layer in scaled_layers(model, include).items()}
    return map_posteriors(model, lambda name, old: changed.get(name, old), inplace=True)


def _without_means(layer: RandomMap) -> Learned[WeightDistribution]:
    q, posterior = layer.posterior(), copy.deepcopy(layer.posterior)
    means = {name: torch.zeros_like(posterior.value(name)) for name in posterior.tensors("means")}
    posterior.assign(**means)
    if torch.equal(posterior().variance, q.variance):
        return posterior
    return _keep_mask(q, with_scales(ZeroMean(), layer, scale=_scale(q)))


def _shuffled(name: str, layer: RandomMap, generator: Generator) -> Learned[WeightDistribution]:
    q, posterior = layer.posterior(), copy.deepcopy(layer.posterior)
    require(
        q.independent,
        f"layer {name!r} has correlated weights ({posterior.spec!r}), whose standard deviations "
        "cannot be shuffled one by one; exclude it",
    )
    scale = _scale(q).flatten()
    places = q.mask.flatten().nonzero().flatten() if isinstance(q, Masked) else None
    places = torch.arange(len(scale)) if places is None else places.cpu()
    scale[places] = scale[places[torch.randperm(len(places), generator=generator)]]
    scale = scale.view(q.event_shape)
    if "scale" in posterior.roles and posterior.value("scale").shape == scale.shape:
        posterior.assign(scale=scale)
        return posterior
    return _keep_mask(q, with_scales(MeanField(), layer, scale=scale))


def _scale(q: WeightDistribution) -> Tensor:
    """Standard deviations before any mask, in the precision of the weights and on the CPU."""
    base = q.base if isinstance(q, Masked) else q
    return base.variance.sqrt().cpu()


def _keep_mask(
    q: WeightDistribution, posterior: Learned[WeightDistribution]
) -> Learned[WeightDistribution]:
    return masked(posterior, q.mask) if isinstance(q, Masked) else posterior
