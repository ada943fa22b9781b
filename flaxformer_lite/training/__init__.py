"""Training as pure functions."""
