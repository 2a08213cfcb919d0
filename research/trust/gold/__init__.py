"""Predictions of long NUTS chains on five small problems, and how near every family comes."""
