"""Frozen parameters."""

from collections.abc import Mapping, Set
from typing import Any

from flax import traverse_util

_SEPARATOR = '/'


def split(params: Any, frozen: Set[str] | str) -> tuple[Any, Any]:
    """Splits parameters into (trained, frozen), which keep their paths.

    Args:
      frozen: Paths such as 'encoder/layer_0/feed_forward/up/kernel', or one path.

    Raises:
      ValueError: A path has no parameter.

    Examples:
      >>> params = {'encoder': {'kernel': 1, 'bias': 2}, 'decoder': {'kernel': 3}}
      >>> split(params, {'encoder/bias'})
      ({'encoder': {'kernel': 1}, 'decoder': {'kernel': 3}}, {'encoder': {'bias': 2}})
    """
    if not frozen:
        return params, {}
    # Python would iterate over the letters of a string.
    frozen = {frozen} if isinstance(frozen, str) else set(frozen)
    by_path = paths(params)
    unknown = sorted(frozen - by_path.keys())
    if unknown:
        inside = [path for path in by_path if path.startswith(f'{unknown[0]}/')]
        example = min(inside or by_path)
        raise ValueError(
            f'frozen: unknown parameter {unknown[0]!r}. Pass whole paths, such as '
            f'{{{example!r}}}.'
        )
    trained = {path: x for path, x in by_path.items() if path not in frozen}
    frozen_params = {path: x for path, x in by_path.items() if path in frozen}
    return from_paths(trained), from_paths(frozen_params)


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
