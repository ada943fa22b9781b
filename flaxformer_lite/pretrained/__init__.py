"""Published checkpoints."""
