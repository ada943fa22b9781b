"""Parameters that stay as they are: a tree of them, parted in two and joined again."""

from collections.abc import Mapping, Set
from typing import Any

from flax import traverse_util

_SEPARATOR = '/'


def split(params: Any, frozen: Set[str]) -> tuple[Any, Any]:
    """A tree of parameters → (those that are trained, those that are frozen).

    Both are trees of the same form without what is in the other, so that paths stay
    what they were.

    Args:
      params: nested dictionaries.
      frozen: paths such as 'encoder/layer_0/feed_forward/up/kernel'.

    Raises:
      ValueError: there is no parameter of such a path.
    """
    if not frozen:
        return params, {}
    by_path = paths(params)
    unknown = sorted(frozen - by_path.keys())
    if unknown:
        raise ValueError(f'frozen: there is no parameter {unknown[0]!r}')
    trained = {path: x for path, x in by_path.items() if path not in frozen}
    held = {path: x for path, x in by_path.items() if path in frozen}
    return from_paths(trained), from_paths(held)


def join(trained: Any, held: Any) -> Any:
    """The inverse of `split`."""
    if not held:
        return trained
    return from_paths({**paths(trained), **paths(held)})


def paths(tree: Any) -> dict[str, Any]:
    """Path → leaf of nested dictionaries: {'encoder/layer_0/…/kernel': array}."""
    return traverse_util.flatten_dict(tree, sep=_SEPARATOR)


def from_paths(by_path: Mapping[str, Any]) -> Any:
    """The inverse of `paths`."""
    return traverse_util.unflatten_dict(by_path, sep=_SEPARATOR)
