"""Training costs of a config."""
