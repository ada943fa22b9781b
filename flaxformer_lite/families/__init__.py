"""Families of published checkpoints: their configs and the names of their arrays."""
