"""A model's config: its fields, the spec strings in them, and the modules made of it."""
