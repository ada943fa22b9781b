"""Notebooks, and the programs that install and run them."""
