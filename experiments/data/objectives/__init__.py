"""Objectives on one side of the pairs, one per module."""
