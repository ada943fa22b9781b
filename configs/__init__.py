"""Configs: one file a run. `get_config()` returns an `ml_collections.ConfigDict`."""
