"""Explanations of what a model computes, and pages that show them.

`explanations` uses `flaxformer_lite`; the commands also need `experiments`.
"""
