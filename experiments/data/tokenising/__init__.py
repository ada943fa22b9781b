"""Tokenising a large text: in parts, in several processes, kept until it is whole."""
