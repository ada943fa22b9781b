"""Attention variants: map queries, keys and values of heads to outputs (§3.2.1)."""
