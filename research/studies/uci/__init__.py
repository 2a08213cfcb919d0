"""Estimators with their defaults on the UCI regression sets, beside published numbers."""
