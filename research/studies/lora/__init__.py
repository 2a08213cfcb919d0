"""Bayesian LoRA on a pretrained MiniLM: IMDB, foreign text, a table."""
