"""The parameters that are matrices, and their axes."""

from collections.abc import Sequence
from typing import Any

# Embeddings and the matrix of logits, which have a row per token of the vocabulary.
TABLES = ('embedding', 'source_embedding', 'output')
NAMES = ('kernel', *TABLES, 'lora_a', 'lora_b')

Axes = tuple[int, ...]


def axes(names: Sequence[Any], ndim: int) -> tuple[Axes, Axes] | None:
    """Returns the axes of a kernel's inputs and outputs, or None for other parameters.

    The heads of an attention form one matrix: query kernels are d_model × (h d_k). The
    first axis of an expert's kernel, the expert, is in neither.

    Args:
      names: The path of the parameter.
      ndim: Its number of axes.
    """
    if names[-1] != 'kernel' or ndim < 2:
        return None
    if 'experts' in names:
        return (1,), (2,)
    inputs = ndim - 1 if 'out_proj' in names else 1
    every = tuple(range(ndim))
    return every[:inputs], every[inputs:]
