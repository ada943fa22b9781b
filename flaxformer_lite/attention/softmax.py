"""Scaled dot-product attention (paper §3.2.1, equation 1)."""

from flaxformer_lite.attention.base import ScaledDotProduct


class Softmax(ScaledDotProduct):
    """softmax(Q Kᵀ · scale / T) V: what they all share, and nothing else."""
