"""Decoding strategies, one file each, selected by a spec string."""
