"""Our heads as CTranslate2 has them: of one width, for queries, keys and values alike.

The narrower ones get features that are zero, which change no product. Matrices are
outputs × inputs there; those of queries, keys and values stand one above the other.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flaxformer_lite.attention.base import ScaledDotProduct
from flaxformer_lite.sizes import Sizes

Params = Mapping[str, Any]


def width(sizes: Sizes) -> int:
    """Of a head there."""
    return max(sizes.d_k, sizes.d_v)


def fill(theirs: Any, ours: Params, sizes: Sizes, core: ScaledDotProduct) -> None:
    """An attention's matrices, sizes and scale, and what it has of its own.

    Args:
      theirs: its description.
      ours: its parameters.
      sizes: of heads.
      core: what happens between heads.
    """
    theirs.head_dim = np.int32(width(sizes))
    theirs.num_heads_kv = np.int32(sizes.num_kv_heads)
    theirs.queries_scale = np.float32(core.scale_of(sizes.d_k))
    parts = [_one_matrix(ours[x], width(sizes)) for x in ('query', 'key', 'value')]
    is_self = len(theirs.linear) == 2
    # All three are one matrix, or those of the source are.
    together = [parts] if is_self else [parts[:1], parts[1:]]
    together.append([_out(ours['out_proj'], sizes)])
    for linear, matrices in zip(theirs.linear, together, strict=True):
        fill_linear(linear, *matrices)
    if core.query_key_norm:
        norms = ours['core_attention']
        theirs.q_norm.gamma = core.query_key_offset + norms['query_norm']['scale']
        theirs.k_norm.gamma = core.query_key_offset + norms['key_norm']['scale']
    if hasattr(theirs, 'relative_position_keys'):
        shaw = ours['positions']
        features = width(sizes)
        theirs.relative_position_keys = padded(shaw['key'], -1, features)
        theirs.relative_position_values = padded(shaw['value'], -1, features)


def fill_linear(linear: Any, *parts: Params) -> None:
    """One matrix of ours, inputs × outputs, one above the other; with their biases."""
    weights = [part['kernel'].T for part in parts]
    linear.weight = np.ascontiguousarray(np.concatenate(weights))
    if 'bias' in parts[0]:
        linear.bias = np.concatenate([part['bias'] for part in parts])


def padded(x: np.ndarray, axis: int, to: int) -> np.ndarray:
    """The same features, then zeros, so many in all."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, to - x.shape[axis])
    return np.pad(x, widths)


def _one_matrix(part: Params, features: int) -> Params:
    found = {}
    for name, x in part.items():
        x = padded(x, -1, features)
        found[name] = x.reshape(*x.shape[:-2], -1)
    return found


def _out(part: Params, sizes: Sizes) -> Params:
    """The matrix that reads what all heads have made."""
    kernel = padded(part['kernel'], 1, width(sizes))
    return {**part, 'kernel': kernel.reshape(-1, kernel.shape[-1])}
