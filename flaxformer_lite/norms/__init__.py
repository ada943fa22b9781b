"""Normalisation of each token over its features."""
