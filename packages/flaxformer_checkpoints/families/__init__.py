"""Families of published checkpoints: their configs and array names."""
