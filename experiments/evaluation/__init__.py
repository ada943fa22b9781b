"""Scores of a model: loss, and BLEU and chrF of its translations."""
