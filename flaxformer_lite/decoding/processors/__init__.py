"""What changes logits before tokens are chosen: one file a processor."""
