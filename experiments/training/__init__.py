"""Training of a run, from its config to its result."""
