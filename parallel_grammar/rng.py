"""Random choices that come out the same on every platform and Python version."""

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar('T')


class Rng:
    """Uses `Random.random` alone, the only method whose sequence Python guarantees."""

    def __init__(self, seed: int):
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def draw(self, weights: Mapping[T, float]) -> T:
        """One of the keys, each as often as its weight says."""
        rest = self._random() * sum(weights.values())
        for key, weight in weights.items():
            rest -= weight
            if rest < 0:
                return key
        # Rounding has left a little: then it is the last.
        return list(weights)[-1]
