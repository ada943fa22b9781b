"""A model's config: its fields, their spec strings, and the modules made of it."""
