"""Nested dictionaries as flat ones: `{'model': {'d_ff': 8}}` as `{'model.d_ff': 8}`."""

from collections.abc import Mapping
from typing import Any


def flatten(nested: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """`{'model': {'d_ff': 8}}` → `{'model.d_ff': 8}`."""
    flat = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f'{prefix}{key}.')
        else:
            flat[prefix + key] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`.

    Raises:
      ValueError: a name stands both for a value and for a section.
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, key = name.split('.')
        part = nested
        for section in sections:
            part = part.setdefault(section, {})
            if not isinstance(part, dict):
                raise ValueError(f'{section} of {name} is a value, and no section')
        if key in part:
            raise ValueError(f'{name} is a section, and no value')
        part[key] = value
    return nested
