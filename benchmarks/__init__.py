"""Benchmarks against other implementations, on the same text and machine."""
