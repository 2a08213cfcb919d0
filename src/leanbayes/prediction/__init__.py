"""Predictions with uncertainty."""
