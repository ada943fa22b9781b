"""Frozen parameters."""

import re
from collections.abc import Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from flaxformer_lite.layers.scanned_stack import (
    periods_of,
    stack_layers,
    unstack_layers,
)
from flaxformer_lite.validation import Pattern, quote

_SEPARATOR = '/'


def split(params: Any, frozen: Set[str] | str) -> tuple[Any, Any]:
    """Splits parameters into (trained, frozen), which keep their paths.

    Args:
      frozen: Paths such as 'encoder/layer_0/feed_forward/up/kernel', or a regular
        expression, as in `matching`.

    Raises:
      ValueError: A path has no parameter, or as `matching`.

    Examples:
      >>> params = {'encoder': {'kernel': 1, 'bias': 2}, 'decoder': {'kernel': 3}}
      >>> split(params, {'encoder/bias'})
      ({'encoder': {'kernel': 1}, 'decoder': {'kernel': 3}}, {'encoder': {'bias': 2}})

      >>> split(params, 'bias|decoder')
      ({'encoder': {'kernel': 1}}, {'encoder': {'bias': 2}, 'decoder': {'kernel': 3}})
    """
    if not frozen:
        return params, {}
    by_path = paths(params)
    if isinstance(frozen, str):
        frozen = matching(frozen, params)
    unknown = sorted(frozen - by_path.keys())
    if unknown:
        inside = [path for path in by_path if path.startswith(f'{unknown[0]}/')]
        example = min(inside or by_path)
        raise ValueError(
            f'frozen: unknown parameter {unknown[0]!r}. Pass whole paths, such as '
            f'{{{example!r}}}, or a regular expression.'
        )
    trained = {path: x for path, x in by_path.items() if path not in frozen}
    frozen_params = {path: x for path, x in by_path.items() if path in frozen}
    return from_paths(trained), from_paths(frozen_params)


def matching(
    pattern: str,
    params: Any,
    others: Set[str] = frozenset(),
    name: str = 'frozen',
) -> frozenset[str]:
    """Returns the paths of the parameters that a regular expression matches.

    Args:
      pattern: It is searched in paths with separate layers, such as
        'encoder/layer_0/feed_forward/up/kernel', also if the layers are stacked.
      params: Parameters, or their shapes.
      others: Paths that are frozen, too.
      name: Name of the pattern in errors.

    Raises:
      ValueError: The pattern is not a regular expression, or matches no parameter, all
        parameters, or only some of the layers in one array.
    """
    Pattern().check(name, pattern)
    where = f'{name}={quote(pattern)}'
    separate = paths(jax.eval_shape(unstack_layers, params))
    found = {path: re.search(pattern, path) is not None for path in sorted(separate)}
    if not any(found.values()):
        first, *_, last = found
        raise ValueError(
            f'{where} matches no parameter. The parameters are {first}, …, {last}.'
        )
    stacked = _stacked_paths(found, periods_of(params), where)
    frozen = others | {path for path, is_frozen in stacked.items() if is_frozen}
    if len(frozen) == len(stacked):
        raise ValueError(
            f'{where} matches every parameter that would train. Narrow the pattern.'
        )
    return frozenset(frozen)


def _stacked_paths(
    found: dict[str, bool], periods: Mapping[str, int], where: str
) -> dict[str, bool]:
    """Maps separate layers' flags, which must agree, to stacked parameters."""
    if not periods:
        return found
    stacked = {}
    with jax.ensure_compile_time_eval():  # also while a training step is traced
        flags = from_paths({path: jnp.asarray(x) for path, x in found.items()})
        for path, flag in paths(stack_layers(flags, periods)).items():
            if flag.any() != flag.all():
                raise ValueError(
                    f'{where} matches only some of the layers that scan_layers=True '
                    f'stacks in {path}. Freeze all or none of them, or set '
                    'scan_layers=False.'
                )
            stacked[path] = bool(flag.all())
    return stacked


def join(trained: Any, frozen_params: Any) -> Any:
    """Joins the results of `split`."""
    if not frozen_params:
        return trained
    return from_paths({**paths(trained), **paths(frozen_params)})


def paths(tree: Any) -> dict[str, Any]:
    """Flattens nested dictionaries to {'encoder/layer_0/…/kernel': array}.

    Examples:
      >>> paths({'encoder': {'kernel': 1, 'bias': 2}})
      {'encoder/kernel': 1, 'encoder/bias': 2}
    """
    return traverse_util.flatten_dict(tree, sep=_SEPARATOR)


def from_paths(by_path: Mapping[str, Any]) -> Any:
    """Inverts `paths`."""
    return traverse_util.unflatten_dict(by_path, sep=_SEPARATOR)
