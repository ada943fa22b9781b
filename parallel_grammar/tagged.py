"""Rendered words, tagged with the units of the tree that they express.

Both languages tag their words with units of the same tree, so words that share a unit
translate each other.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Unit(NamedTuple):
    """A node of a tree, or an aspect of it, such as the negation of a clause."""

    node: int  # the node's `id`
    aspect: str = ''


class Decider(NamedTuple):
    """A unit that decides the form or place of a word, by a rule of German."""

    phenomenon: str
    unit: Unit


class Word(str):
    """A word with its units.

    Attributes:
      sure: Units that the word expresses.
      possible: Units that the word only helps to express, as 'is' in 'is sleeping'.
      deciders: What decides the form of the word.
    """

    sure: tuple[Unit, ...]
    possible: tuple[Unit, ...]
    deciders: tuple[Decider, ...]

    def __new__(
        cls,
        text: str,
        *sure: Unit,
        possible: Iterable[Unit] = (),
        deciders: Iterable[Decider] = (),
    ) -> 'Word':
        word = super().__new__(cls, text)
        word.sure = sure
        word.possible = tuple(possible)
        word.deciders = tuple(deciders)
        return word

    def also(
        self,
        *sure: Unit,
        text: str = '',
        possible: Iterable[Unit] = (),
        deciders: Iterable[Decider] = (),
    ) -> 'Word':
        """Returns the word with more units and deciders, and with a new text if any."""
        return Word(
            text or self,
            *self.sure,
            *sure,
            possible=(*self.possible, *possible),
            deciders=(*self.deciders, *deciders),
        )


def unit(node: object, aspect: str = '') -> Unit:
    return Unit(id(node), aspect)


def decided_by(phenomenon: str, units: Iterable[Unit]) -> list[Decider]:
    return [Decider(phenomenon, unit) for unit in units]


def expression(text: str, node: object) -> list[Word]:
    """Tags the words of an idiom, such as 'at night' for 'in der Nacht'.

    The first words translate each other, as do the last words. Any other pair of words
    is possible.
    """
    words = text.split()
    tagged = []
    for i, word in enumerate(words):
        ends = []
        if i == 0:
            ends.append(unit(node, 'first'))
        if i == len(words) - 1:
            ends.append(unit(node, 'last'))
        tagged.append(Word(word, *ends, possible=[unit(node)]))
    return tagged
