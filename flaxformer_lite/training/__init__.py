"""Training as pure functions: a state, a batch and a key in, the next state out."""
