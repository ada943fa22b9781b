"""Modules shared by all models: stacks, blocks, attention heads, linear layers."""
