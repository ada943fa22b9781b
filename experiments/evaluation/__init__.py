"""Scores of a model: loss, and its translations."""
