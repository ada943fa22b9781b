"""Evaluation of a model: loss, translations and their scores."""
