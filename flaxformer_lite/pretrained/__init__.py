"""Published checkpoints: read from a folder as a model and its variables, and back."""
