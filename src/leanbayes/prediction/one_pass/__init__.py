"""Predictions in one pass: mean and variance of every activation instead of samples."""

from leanbayes.prediction.one_pass import (
    activations,
    arithmetic,
    linear,
    normalization,
)
from leanbayes.prediction.one_pass.gaussian import RULES, NoRuleError, Uncertain, register_moments
from leanbayes.prediction.one_pass.propagate import propagate
