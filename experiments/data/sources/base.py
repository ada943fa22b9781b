"""Base classes and helpers of data sources."""

import dataclasses
import itertools
import re
import types
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any, TypeVar

from experiments.data.digest import hex_digest, read_code
from experiments.data.documents import Documents
from experiments.errors import UserError
from flaxformer_lite.validation import Checked

T = TypeVar('T')
Pair = tuple[str, str]  # a source and its target
# Name of a set → sources, each with its reference or a tuple of its references.
Sets = Mapping[str, Sequence[tuple[str, str | tuple[str, ...]]]]


class Source:
    """Base class of data sources. Only methods read text.

    An invalid argument of the spec raises ValueError or UserError. Text is NFC, without
    line breaks.

    Attributes:
      source, target: Codes of the languages, such as `'en'`.
      left_out: Number of pairs that the last pass of `train` excluded, by reason.
      may_download: Whether reading may download a data set. A dry run skips the check
        of such a source.
      tags: The languages in the tag before each source, as in `mix`.
      window: Number of consecutive sentences of a document per training example.
    """

    source: str
    target: str
    may_download: bool = False
    tags: bool | str = False
    window: int = 1
    left_out: Mapping[str, int] = types.MappingProxyType({})

    def train(self) -> Iterator[Pair]:
        """Streams the (source, target) training pairs, in the same order each time."""
        raise NotImplementedError

    def evaluation(self) -> Sets:
        """Returns the evaluation sets by name; the first, `'val'`, is the dev set."""
        raise NotImplementedError

    def directions(self) -> list[tuple[str, str]]:
        """Returns the distinct directions: source and target language."""
        return [(self.source, self.target)]

    def direction(self, name: str) -> tuple[str, str]:
        """Returns the languages of an evaluation set, which joins those of several."""
        return self.source, self.target

    def documents(self, name: str) -> Documents:
        """Returns the documents of an evaluation set, if known."""
        return ()

    def groups(self, name: str) -> Mapping[str, Sequence[int]]:
        """Returns the indices of an evaluation set's pairs in each group, if any.

        Reports score each group, such as the sentences with a phenomenon.
        """
        return {}

    def gold(self) -> Mapping[str, Sequence[Any]]:
        """Returns the gold annotation of each pair by set, as `parallel_grammar.Gold`.

        Raises UserError if the source has none.
        """
        raise UserError(f'data: {type(self).__name__} has no gold. Use grammar.')

    def digest(self) -> str:
        """Returns a hex digest of the training pairs, without reading all of them."""
        raise NotImplementedError

    def overlap_with(self, other: 'Source') -> str:
        """Names the evaluation data of `other` that this source trains on; '' for none.

        Compares splits or files, not sentences.
        """
        return ''


def as_references(known: str | tuple[str, ...]) -> tuple[str, ...]:
    return (known,) if isinstance(known, str) else known


def plain_text(text: str) -> str:
    """Returns NFC text with a space for each line end, without byte order marks.

    Raises UnicodeEncodeError for half of a surrogate pair, which JSON may have.
    """
    text.encode()
    text = unicodedata.normalize('NFC', text.replace('\ufeff', ''))
    return re.sub('\r\n|\r|\n', ' ', text)


def cell_text(value: Any, where: str) -> str:
    """Returns the text of a table cell; `''` for None. Errors begin with `where`."""
    if value is None:
        return ''
    if not isinstance(value, str):
        raise UserError(f'data: {where} must be text, not {value!r:.60}')
    try:
        return plain_text(value)
    except UnicodeEncodeError:
        raise UserError(
            f'data: {where} is {value!r:.60}, which has an unpaired surrogate. Encode '
            'it as valid Unicode.'
        ) from None


def distinct(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yields pairs without repeated sources or targets."""
    seen = set()
    for source, target in pairs:
        if source not in seen:
            seen.add(source)
            yield source, target


def pick(rng: Random, items: Sequence[T]) -> T:
    """Returns a random item, the same on every platform and Python version."""
    return items[int(rng.random() * len(items))]


def take_first(streams: Mapping[str, Iterator[T]], sizes: Mapping[str, int]):
    """Takes the first `sizes` items of each stream, which sets may share."""
    return {name: list(islice(stream, sizes[name])) for name, stream in streams.items()}


def check_disjoint(sources: Sequence[Source]) -> None:
    """Raises UserError if sources read text that others are evaluated on."""
    for source, other in itertools.product(sources, repeat=2):
        shared = source.overlap_with(other)
        if shared:
            raise UserError(f'data: {shared}')


def check_sides(source: str, target: str) -> None:
    """Raises UserError if the languages are equal or can't name files."""
    if source == target:
        raise ValueError(f'source and target are both {source!r}. Name two.')


class GeneratedSource(Source, Checked):
    """A dataclass whose pairs are determined by arguments and code."""

    def digest(self):
        return hex_digest(repr(self), read_code(type(self)))


class SplitSource(Source):
    """A data set with a training split and a dev split.

    Splits that overlap with neither are evaluation sets under their own names.
    """

    may_download = True
    split: str
    dev: str

    def splits(self) -> Sequence[str]:
        raise NotImplementedError

    def pairs(self, split: str) -> Iterator[Pair]:
        raise NotImplementedError

    def overlap(self, split: str, other: str) -> bool:
        raise NotImplementedError

    def train(self):
        check_disjoint([self])
        return self.pairs(self.split)

    def evaluation(self):
        check_disjoint([self])
        sets = {'val': self.dev}
        for name in self.splits():
            parts = (self.split, self.dev)
            if not any(self.overlap(name, part) for part in parts):
                sets.setdefault(name, name)
        return {name: list(self.pairs(split)) for name, split in sets.items()}

    def overlap_with(self, other):
        if not isinstance(other, type(self)):
            return ''
        fields: dict[str, Any] = {'split': self.split, 'dev': self.dev}
        is_same_set = dataclasses.replace(other, **fields) == self  # pyright: ignore
        if not (is_same_set and self.overlap(self.split, other.dev)):
            return ''
        return (
            f'split={self.split!r} overlaps dev={other.dev!r}. Keep them apart, for '
            'example with split="train[:99%]" and dev="train[99%:]".'
        )
