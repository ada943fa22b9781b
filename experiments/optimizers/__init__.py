"""Optimizers of the config's section `optimizer`, built with optax."""
