"""Attention variants: map queries, keys and values to outputs (§3.2.1)."""
