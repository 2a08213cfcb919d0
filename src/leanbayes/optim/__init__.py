"""Optimisers that know what a parameter of a posterior is."""

from leanbayes.optim.natural import NaturalGradient

__all__ = ["NaturalGradient"]
