"""Conversion of a network to Bayesian layers, and back."""

from leanbayes.conversion.convert import Plan, convert, deterministic, plan

__all__ = ["Plan", "convert", "deterministic", "plan"]
