"""Looks into models: attention and heads of a trained run, gradients of new ones."""
