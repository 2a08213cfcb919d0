"""An estimator: a function that says how far the noise of a drawn map is shared."""

import leanbayes as lb
from leanbayes.distributions import Map, WeightDistribution
from leanbayes.ops import LinearOp, Usage


@lb.extend.register_estimator
def local_for_many(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
    """``local`` where a batch has many examples to average over, one draw of the weights else."""
    many = usage.batch is not None and usage.batch >= 32
    return lb.estimators.local(q, op, usage) if many else lb.estimators.weights(q, op, usage)
