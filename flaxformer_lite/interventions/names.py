"""Interventions by name, and patterns of names."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from flaxformer_lite import validation
from flaxformer_lite.taps import Where as Where

# (value, where) → a value of the same shape.
Intervention = Callable[[jax.Array, Where], jax.Array]
Interventions = Mapping[str, Intervention]


def matches(key: str, name: str) -> bool:
    """Returns whether an activation has the name `key`, in which '*' is any part."""
    keys, parts = key.split('/'), name.split('/')
    pairs = zip(keys, parts, strict=False)
    return len(keys) == len(parts) and all(fnmatch.fnmatchcase(b, a) for a, b in pairs)


def check_functions(interventions: Any) -> None:
    """Raises ValueError unless `interventions` maps names to functions."""
    if not isinstance(interventions, Mapping):
        raise ValueError(
            'interventions must be a dict of functions by name, such as '
            f"{{'decoder/layer_0/mlp_out': set_to(0.0)}}, not {interventions!r:.60}."
        )
    for name, function in interventions.items():
        if not callable(function):
            raise ValueError(
                f'interventions: {name!r} needs a function of (value, where), such '
                f'as set_to({function!r:.40}), not {function!r:.40}.'
            )


def check_known(field: str, keys: Iterable[str], known: Iterable[str]) -> None:
    """Raises ValueError if a key matches no activation of a called model."""
    known = list(known)
    for key in keys:
        if not known or any(matches(key, name) for name in known):
            continue
        patterns = dict.fromkeys(re.sub(r'layer_\d+', 'layer_*', x) for x in known)
        raise ValueError(
            f'{field}: unknown activation {key!r}'
            f'{validation.did_you_mean(key, known) or "."} '
            f'Choose from {", ".join(patterns)}.'
        )
