"""The fields of a `model` config that name files, and what those files hold."""

import contextlib
from collections.abc import Iterator
from typing import Any

from flaxformer_lite import spec

# The folder whose files a field of a `model` config names.
FOLDERS = {
    'architecture': 'architectures',
    'attention': 'attention',
    'decoder_attention': 'attention',
    'cross_attention': 'attention',
    'positions': 'positions',
    'decoder_positions': 'positions',
    'cross_positions': 'positions',
    'norm': 'norms',
    'residual': 'residual',
    'feed_forward': 'feed_forward',
    'init': 'init',
}


def variants(field: str) -> list[str]:
    """The names that a field may have.

    Raises:
      KeyError: it is not one of `FOLDERS`.
    """
    return spec.available(_package(field))


def find(field: str, config: Any) -> Any:
    """The class that a field of a config names.

    Raises:
      ValueError: there is no such file; the message names the field.
    """
    with _naming(field):
        name, _ = spec.parse(config[field])
        return spec.find(_package(field), name)


def make(field: str, text: str, **defaults: Any) -> Any:
    """The object that a spec in a field names, as `spec.make`.

    Raises:
      ValueError: as `spec.make`; the message names the field.
    """
    with _naming(field):
        return spec.make(_package(field), text, **defaults)


def idle(config: Any) -> set[str]:
    """The fields of a `model` config that are not used by what others of its fields name.

    Raises:
      ValueError: there is no such architecture or residual.
    """
    names = set(find('architecture', config).idle)
    return names if 'residual' in names else names | set(find('residual', config).idle)


def _package(field: str) -> str:
    return f'flaxformer_lite.{FOLDERS[field]}'


@contextlib.contextmanager
def _naming(field: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f'model.{field}: {error}') from None
