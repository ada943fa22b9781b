"""Schema, loading and validation of configs."""
