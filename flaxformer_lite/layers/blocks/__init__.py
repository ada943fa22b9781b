"""Blocks: the sublayers of a layer and their order."""
