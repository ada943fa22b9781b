"""Random choices of the grammar."""

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar('T')


class Rng:
    """Random numbers that are identical on every platform and Python version.

    Uses `Random.random`, the only method whose sequence Python guarantees.

    Examples:
      >>> rng = Rng(1)
      >>> [rng.pick('abc') for _ in range(5)], rng.draw({'rare': 1, 'common': 99})
      (['a', 'c', 'c', 'a', 'b'], 'common')
    """

    def __init__(self, seed: int):
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def draw(self, weights: Mapping[T, float]) -> T:
        """Returns a random key, with probability proportional to its weight."""
        rest = self._random() * sum(weights.values())
        for key, weight in weights.items():
            rest -= weight
            if rest < 0:
                return key
        # Rounding may leave a positive rest.
        return list(weights)[-1]
