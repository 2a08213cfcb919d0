"""A criterion of pruning: a function that says how much every weight matters."""

from torch import Tensor
from torch.distributions import Distribution

import leanbayes as lb
from leanbayes.distributions import WeightDistribution


@lb.extend.register_criterion("second_moment")
def second_moment(q: WeightDistribution, p: Distribution) -> Tensor:
    """``E w²``: what a weight adds to the mean square of its output, by mean or by noise."""
    return q.mean.square() + q.variance
