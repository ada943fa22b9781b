"""Sweeps: a question as a set of runs, and the processes that make them."""
