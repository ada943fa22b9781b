"""Attention of heads: queries, keys and values in, one output a query (§3.2.1)."""
