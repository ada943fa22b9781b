"""Positions in embeddings, in queries and keys, or in attention scores (§3.5)."""
