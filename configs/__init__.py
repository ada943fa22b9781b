"""Configs: one file per run. `get_config()` returns an `ml_collections.ConfigDict`."""
