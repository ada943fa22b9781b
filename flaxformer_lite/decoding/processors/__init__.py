"""Logits processors, one file each."""
