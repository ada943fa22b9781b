"""Training costs of a config, computed from shapes alone."""
