"""Where the text comes from: one file a data source, chosen by a spec string."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

from experiments.errors import UserError
from flaxformer_lite import ranges
from flaxformer_lite.config import spec as specs


class Source(Protocol):
    """What a data source offers.

    A new one is a file `<name>.py` here with a class `<Name>`.

    The arguments in the spec are those of the class, which raises ValueError or
    UserError on bad ones and reads no text until a method is called. Text is NFC and
    holds no line break.

    Attributes:
      source: the code of the language to translate from, such as `'en'`.
      target: the code of the language to translate to.
    """

    source: str
    target: str

    def train(self) -> Iterator[tuple[str, str]]:
        """Streams the (source, target) training pairs, in the same order each time."""
        ...

    def evaluation(self) -> dict[str, list[tuple[str, str]]]:
        """The evaluation sets by name, whole; the first, `'val'`, is the dev set."""
        ...

    def digest(self) -> str:
        """A hexadecimal digest of what `train` gives, without reading all pairs."""
        ...


def load(spec: str) -> Source:
    """The data source that the config field `data` names.

    Raises:
      UserError: the spec, its name or one of its arguments is wrong.
    """
    try:
        return specs.make('experiments.data.sources', spec)
    except ValueError as error:
        raise UserError(f'data: {error}') from None
    # A path too long, a folder without permission, the home of a user that is not
    # there.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'data={ranges.shown(spec)}: {reason}') from None


def check_arguments(source: Any) -> None:
    """Refuses arguments of a source of files that are wrong by themselves.

    Raises:
      ValueError: one is of another type than annotated, or both languages are one.
    """
    for field in dataclasses.fields(source):
        ranges.check(field.name, field.type, getattr(source, field.name))
    if source.source == source.target:
        raise ValueError(
            f'source and target are both {source.source!r}; name two languages'
        )
