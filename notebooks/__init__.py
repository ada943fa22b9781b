"""Notebooks, and what runs them."""
