"""Rank-1 Bayesian neural networks [rank-1]."""
