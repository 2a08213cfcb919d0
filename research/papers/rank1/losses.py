"""Losses of averaged outputs and of averaged parameters, which the paper compares with others.

Training minimizes :func:`leanbayes.training.average_nll` (eq. 13), and evaluation reports
:func:`leanbayes.training.mixture_nll` (eq. 14).
"""

from collections.abc import Callable

from torch import Tensor
from torch.distributions import Bernoulli, Distribution
from torch.distributions import Categorical as Classes

from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.likelihoods.mixtures import example_log_prob, is_binary, is_finite, log_mean


def mean_logits_nll(outputs: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Tensor:
    """Return the NLL of averaged outputs ``[samples, batch, …]`` [rank-1, eq. 11]."""
    return (likelihood or Categorical()).nll(outputs.mean(0), y)


def mean_probs_nll(outputs: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Tensor:
    """Return the NLL of the averaged predictive parameters [rank-1, eq. 12], in log space."""
    likelihood = likelihood or Categorical()
    law = averaged(likelihood, outputs)
    return -example_log_prob(law, likelihood.targets(y, outputs)).mean()


def averaged(likelihood: Likelihood, outputs: Tensor) -> Distribution:
    """Return the distribution with parameters averaged over the first axis."""
    law = likelihood.distribution(outputs)
    if is_binary(law):
        off, on = log_mean(likelihood.class_log_probs(outputs)).unbind(-1)
        return Bernoulli(logits=on - off, validate_args=False)
    if is_finite(law):
        mixed = log_mean(likelihood.class_log_probs(outputs))
        return Classes(logits=mixed, validate_args=False)
    make: Callable[..., Distribution] = type(law)
    means = {name: getattr(law, name).mean(0) for name in law.arg_constraints if name in vars(law)}
    if not means:
        raise TypeError(f"{type(likelihood).__name__} has no parameters to average")
    return make(**means, validate_args=False)
