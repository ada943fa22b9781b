"""Models: tokens to logits. One file per architecture."""
