"""Pairs that were there before."""

import dataclasses
import hashlib

from experiments.data.filters.base import Filter


@dataclasses.dataclass(frozen=True)
class Duplicates(Filter):
    """Leaves out a pair whose two sides, to the character, were together before.

    It keeps 16 bytes of a hash of each pair, some 100 bytes of memory.
    """

    _seen: set[bytes] = dataclasses.field(default_factory=set, init=False, repr=False)

    def keeps(self, source, target):
        pair = f'{source}\n{target}'.encode()  # neither holds a line break
        known = hashlib.blake2b(pair, digest_size=16).digest()
        is_new = known not in self._seen
        self._seen.add(known)
        return is_new
