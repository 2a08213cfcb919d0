"""Posteriors with the means of a trained layer and other standard deviations."""

import torch
from torch import Tensor

from leanbayes.distributions import WeightDistribution
from leanbayes.layers import RandomMap
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import Posterior


def with_scales(spec: Posterior, layer: RandomMap, **values: Tensor) -> Learned[WeightDistribution]:
    """Return another posterior with the layer's own means, where it has any, and these scales."""
    before = layer.posterior
    (loc,) = before.tensors("means").values()
    trained = any(p.requires_grad for p in before.tensors("scales").values())
    with torch.random.fork_rng(devices=[]):  # first values are drawn, and not used
        after = spec(torch.zeros_like(loc, device="cpu"), layer.op).to(loc.device)
    for name in after.tensors("means"):
        after.register_parameter(name, loc)
    after.assign(**values)
    for parameter in after.tensors("scales").values():
        parameter.requires_grad_(trained)
    return after.train(before.training)
