"""Config schema, loading and validation."""
