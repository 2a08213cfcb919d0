"""Predictions with uncertainty."""

__all__: list[str] = []
