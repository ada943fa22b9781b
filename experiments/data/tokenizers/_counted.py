"""Base class of tokenizers that count units."""

import collections
import dataclasses
import functools
import json
from typing import Annotated

import msgspec

from experiments.data.tokenizers.base import (
    UNK,
    UNKNOWN,
    Tokenizer,
    normalize,
    text_ids,
)
from experiments.errors import UserError, check_list
from flaxformer_lite.validation import Range, Size

SPECIAL = ('<pad>', '</s>', '<s>', '<unk>')  # in the order of their ids


@dataclasses.dataclass(frozen=True)
class CountedVocabulary(Tokenizer):
    """A tokenizer with the most frequent units of a text as pieces.

    Attributes:
      vocab_size: Maximum number of ids, including the four special ones.
      min_count: Rarer units are unknown.
    """

    vocab_size: Annotated[int, Range(at_least=5)] = 50_000
    min_count: Size = 1
    model: bytes = dataclasses.field(default=b'', repr=False)

    def split(self, text: str) -> list[str]:
        """Returns the units of a text."""
        raise NotImplementedError

    def joined(self, units: list[str]) -> str:
        """Inverts `split`."""
        raise NotImplementedError

    def train(self, texts):
        counts = collections.Counter()
        for text in texts:
            counts.update(self.split(normalize(text)))
        # Sort equal counts by characters, independently of the order in the text.
        ordered = sorted(counts, key=lambda unit: (-counts[unit], unit))
        frequent = [unit for unit in ordered if counts[unit] >= self.min_count]
        if not frequent:
            raise UserError(
                f'tokenizer: nothing occurs min_count={self.min_count} times in the '
                'training text. Lower min_count.'
            )
        found = frequent[: self.vocab_size - len(SPECIAL)]
        return json.dumps(found, ensure_ascii=False).encode()

    def opened(self, model):
        size = len(SPECIAL) + len(msgspec.json.decode(model, type=list[str]))
        return dataclasses.replace(self, model=model, vocab_size=size)

    @functools.cached_property
    def _units(self) -> list[str]:
        return [*SPECIAL, *json.loads(self.model)]

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        units = enumerate(self._units)
        return {unit: i for i, unit in units if i >= len(SPECIAL)}

    def encode(self, texts):
        check_list('texts', texts)
        rows = []
        for text in texts:
            units = self.split(normalize(text))
            rows.append([self._ids.get(unit, UNK) for unit in units])
        return rows

    def decode(self, ids):
        rows = []
        for row in ids:
            known = [UNKNOWN if i == UNK else self._units[i] for i in text_ids(row)]
            rows.append(self.joined(known))
        return rows

    def pieces(self, ids):
        return [self._units[int(i)] for i in ids]
