"""What every data source offers, and a check that those of files share."""

import dataclasses
import re
import types
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flaxformer_lite import ranges


class Source:
    """What a data source offers.

    The arguments in the spec are those of the class, which raises ValueError or
    UserError on bad ones and reads no text until a method is called. Text is NFC and
    holds no line break.

    Attributes:
      source: the code of the language to translate from, such as `'en'`.
      target: the code of the language to translate to.
      left_out: how many pairs the last whole pass of `train` did not give, by why.
    """

    source: str
    target: str
    left_out: Mapping[str, int] = types.MappingProxyType({})

    def train(self) -> Iterator[tuple[str, str]]:
        """Streams the (source, target) training pairs, in the same order each time."""
        raise NotImplementedError

    def evaluation(self) -> Mapping[str, Sequence[tuple[str, str | tuple[str, ...]]]]:
        """The evaluation sets by name, whole; the first, `'val'`, is the dev set.

        A sentence is a source and its reference, or all its references.
        """
        raise NotImplementedError

    def digest(self) -> str:
        """A hexadecimal digest of what `train` gives, without reading all pairs."""
        raise NotImplementedError


def plain_text(text: str) -> str:
    """Unicode's NFC, with a space in place of each line end."""
    return re.sub('\r\n|\r|\n', ' ', unicodedata.normalize('NFC', text))


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
