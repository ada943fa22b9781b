"""A nested config as one dictionary, with the fields' dotted names as its keys."""

from collections.abc import Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """`{'model': {'d_ff': 8}}` → `{'model.d_ff': 8}`."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f'{prefix}{key}.')
        else:
            flat[prefix + key] = value
    return flat
