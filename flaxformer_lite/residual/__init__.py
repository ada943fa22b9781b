"""Residual connections around sublayers (paper §3.1)."""
