"""Whole models from source and target tokens to logits."""
