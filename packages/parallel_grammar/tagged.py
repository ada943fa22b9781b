"""Rendered words, tagged with the units of the tree that they express.

Both languages tag their words with units of the same tree, so words that share a unit
translate each other.
"""

from collections.abc import Callable, Iterable

# A node's `id`, and an aspect of the node: '', or 'not' for the negation of a clause.
# Units and deciders are plain tuples, because each word of each sentence has some.
Unit = tuple[int, str]
Decider = tuple[str, Unit]  # a phenomenon, and the unit that decides the form


class Word(str):
    """A word with its units.

    Attributes:
      sure: Units that the word expresses.
      possible: Units that the word only helps to express, as 'is' in 'is sleeping'.
      deciders: Returns the phenomena of the word's form with the deciding units.
    """

    __slots__ = ('deciders', 'possible', 'sure')

    sure: tuple[Unit, ...]
    possible: tuple[Unit, ...]
    deciders: Callable[[], Iterable[Decider]]

    def __new__(
        cls,
        text: str,
        *sure: Unit,
        possible: tuple[Unit, ...] = (),
        deciders: Callable[[], Iterable[Decider]] = tuple,
    ) -> 'Word':
        word = str.__new__(cls, text)
        word.sure = sure
        word.possible = possible
        word.deciders = deciders
        return word

    def also(
        self,
        *sure: Unit,
        text: str = '',
        possible: tuple[Unit, ...] = (),
        deciders: Callable[[], Iterable[Decider]] = tuple,
    ) -> 'Word':
        """Returns the word with more units and deciders, and with a new text if any."""
        own = self.deciders
        return Word(
            text or self,
            *self.sure,
            *sure,
            possible=self.possible + possible,
            deciders=own if deciders is tuple else lambda: [*own(), *deciders()],
        )


def unit(node: object, aspect: str = '') -> Unit:
    return id(node), aspect


def decided_by(phenomenon: str, units: Iterable[Unit]) -> list[Decider]:
    return [(phenomenon, unit) for unit in units]


def expression(text: str, node: object) -> list[Word]:
    """Tags the words of an idiom, such as 'at night' for 'in der Nacht'.

    The first words translate each other, as do the last words. Either of them is a
    possible translation of any word.
    """
    first, last = unit(node, 'first'), unit(node, 'last')
    words = [Word(word, possible=(first, last)) for word in text.split()]
    words[0] = words[0].also(first)
    words[-1] = words[-1].also(last)
    return words
