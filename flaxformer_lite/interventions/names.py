"""The place of an activation, and patterns of its name."""

import fnmatch
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax


class Where(NamedTuple):
    """The place of an activation.

    While decoding, the axis T holds the N hypotheses of a sentence instead of tokens.

    Attributes:
      axes: A letter per axis: B rows, T tokens, H heads, S keys, and others.
      step_BT: int32, the decoding step that reads the token; -1 for source tokens, None
        in an encoder.
      positions_BT: int32 position of each token, or None if unknown.
      mask_BT: bool, False for padding; None while decoding or if unknown.
      index_BT: int32, index of the token in its row with teacher forcing.
      row_B: int32, index of each row in the batch.
    """

    name: str
    axes: str
    step_BT: jax.Array | None
    positions_BT: jax.Array | None
    mask_BT: jax.Array | None
    index_BT: jax.Array
    row_B: jax.Array

    @property
    def layer(self) -> int | None:
        """Number of the layer; None outside of layers."""
        parts = self.name.split('/')
        if len(parts) > 1 and parts[1].startswith('layer_'):
            return int(parts[1].removeprefix('layer_'))
        return None


# (value, where) → a value of the same shape.
Intervention = Callable[[jax.Array, Where], jax.Array]
Interventions = Mapping[str, Intervention]


def matches(key: str, name: str) -> bool:
    """Returns whether an activation has the name `key`, in which '*' is any part."""
    keys, parts = key.split('/'), name.split('/')
    pairs = zip(keys, parts, strict=False)
    return len(keys) == len(parts) and all(fnmatch.fnmatchcase(b, a) for a, b in pairs)
