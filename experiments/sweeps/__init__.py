"""Sweeps: sets of runs that answer a question, and their worker processes."""
