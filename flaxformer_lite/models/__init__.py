"""Models: tokens to logits. One file an architecture."""
