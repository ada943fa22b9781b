"""Attention of one trained run: weights, heads, and what each head is worth."""
