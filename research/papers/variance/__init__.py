"""Variance networks [variance]."""
