"""What happens between heads: queries, keys and values in, one output a query (paper §3.2.1)."""
