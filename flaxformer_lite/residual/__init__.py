"""How a sublayer is joined to the stream that passes it by (paper §3.1)."""
