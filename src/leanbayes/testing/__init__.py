"""Checks for contributors: of a posterior, prior, op, layer kind or likelihood.

Each check raises ``AssertionError`` with a sentence that says what is missing. Statistical
comparisons share one failure rate, :data:`FAILURE_RATE`, which is split over all numbers compared.
"""

from leanbayes.testing.assertions import FAILURE_RATE, assert_mean, threshold
from leanbayes.testing.layers import check_layer, check_op
from leanbayes.testing.likelihoods import check_likelihood
from leanbayes.testing.weights import check_posterior, check_prior

__all__ = [
    "FAILURE_RATE",
    "assert_mean",
    "check_layer",
    "check_likelihood",
    "check_op",
    "check_posterior",
    "check_prior",
    "threshold",
]
