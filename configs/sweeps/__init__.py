"""Sweeps: one file a question. `get_config()` returns it, with its arms and seeds."""
