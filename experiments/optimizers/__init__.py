"""Optimizers, built with optax."""
