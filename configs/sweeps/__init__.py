"""Sweeps: one file per question. `get_config()` returns it with its arms and seeds."""
