"""Sweeps: sets of runs that answer a question."""
