"""All samples of a prediction in one pass, where examples provably do not interact."""
