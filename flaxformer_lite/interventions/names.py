"""Interventions by name, and patterns of names."""

import fnmatch
from collections.abc import Callable, Mapping

import jax

from flaxformer_lite.taps import Where as Where

# (value, where) → a value of the same shape.
Intervention = Callable[[jax.Array, Where], jax.Array]
Interventions = Mapping[str, Intervention]


def matches(key: str, name: str) -> bool:
    """Returns whether an activation has the name `key`, in which '*' is any part."""
    keys, parts = key.split('/'), name.split('/')
    pairs = zip(keys, parts, strict=False)
    return len(keys) == len(parts) and all(fnmatch.fnmatchcase(b, a) for a, b in pairs)
