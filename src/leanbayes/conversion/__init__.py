"""Conversion of a network to Bayesian layers, and back."""

__all__: list[str] = []
