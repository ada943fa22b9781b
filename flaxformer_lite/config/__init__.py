"""The `model` config: its fields, spec strings, and the modules built from them."""
