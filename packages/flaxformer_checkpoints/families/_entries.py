"""Table entries that map `model` config fields to a family's fields and back."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from flaxformer_lite.config import variants
from flaxformer_lite.config.spec import Component
from flaxformer_lite.validation import quote

# A family's config.json.
Theirs = Mapping[str, Any]


class Copy:
    """A field that equals one of theirs, or several of theirs that must be equal."""

    def __init__(self, *names: str):
        self.names = names

    def read(self, theirs: Theirs) -> Any:
        values = [theirs[name] for name in self.names]
        if any(value != values[0] for value in values):
            words = ' and '.join(f'{name}={theirs[name]!r}' for name in self.names)
            raise ValueError(f'{words} must be equal: here they are one field')
        return values[0]

    def write(self, value: Any, theirs: Theirs) -> dict[str, Any]:
        return dict.fromkeys(self.names, value)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A field whose value depends on one of theirs, `name`.

    Attributes:
      values: Their value → ours.

    Examples:
      >>> entry = Choice('activation', {'relu': 'relu', 'gelu': 'gelu(tanh=False)'})
      >>> entry.read({'activation': 'gelu'})
      'gelu(tanh=False)'
    """

    name: str
    values: Mapping[Any, Any]

    def read(self, theirs: Theirs) -> Any:
        value = theirs[self.name]
        if value not in list(self.values):  # a list: it may be unhashable
            known = ', '.join(map(repr, self.values))
            raise ValueError(f'{self.name} must be one of {known}, not {quote(value)}')
        return self.values[value]

    def write(self, value: Any, theirs: Theirs) -> dict[str, Any]:
        """Returns their fields, or {} if they have no such value."""
        for their_value, ours in self.values.items():
            if ours == value:
                return {self.name: their_value}
        return {}


class Spec:
    """A field that names a variant whose arguments may be fields of theirs."""

    def __init__(self, entry: 'str | Choice', **arguments: str):
        """Creates the entry.

        Args:
          entry: The spec with its fixed arguments, or a choice of specs.
          arguments: Argument → name of their field. Values of 0 are omitted.
        """
        self.entry = entry
        self.arguments = arguments

    def read(self, theirs: Theirs) -> str:
        text = self.entry if isinstance(self.entry, str) else self.entry.read(theirs)
        component = Component.of(text)
        given = dict(component.arguments)
        for argument, their_name in self.arguments.items():
            if theirs[their_name]:
                given[argument] = theirs[their_name]
        return written(component.name, given)

    def write(self, value: str, theirs: Theirs) -> dict[str, Any]:
        component = Component.of(value)
        given = dict(component.arguments)
        found = {
            their_name: given.pop(argument)
            for argument, their_name in self.arguments.items()
            if argument in given
        }
        if isinstance(self.entry, Choice):
            found |= self.entry.write(written(component.name, given), theirs)
        return found

    def is_of(self, text: str) -> bool:
        if not isinstance(self.entry, str):
            return False
        return Component.of(text).name == Component.of(self.entry).name


class Pattern:
    """A field with a spec for each kind of layer, which they list."""

    def __init__(self, name: str, kinds: Mapping[str, Spec], depth: str):
        """Creates the entry.

        Args:
          name: Name of their list.
          kinds: Word in the list → its spec.
          depth: Their field for the number of layers, written before the list.
        """
        self.name = name
        self.kinds = kinds
        self.depth = depth

    def read(self, theirs: Theirs) -> str:
        for kind in theirs[self.name]:
            if kind not in list(self.kinds):
                known = ', '.join(map(repr, self.kinds))
                raise ValueError(
                    f'{self.name} must hold {known} only, not {quote(kind)}'
                )
        return pattern([self.kinds[kind].read(theirs) for kind in theirs[self.name]])

    def write(self, value: str, theirs: Theirs) -> dict[str, Any]:
        """Returns their fields; the first pattern written fixes the kinds of layers."""
        period = Component.of(value).entries
        # A period may itself begin with a shorter one, so write out every layer.
        texts = [str(period[i % len(period)]) for i in range(theirs[self.depth])]
        kinds = theirs.get(self.name) or [self._kind_of(text) for text in texts]
        found: dict[str, Any] = {self.name: kinds}
        for kind, text in zip(kinds, texts, strict=True):
            found |= self.kinds[kind].write(text, theirs)
        return found

    def _kind_of(self, text: str) -> str:
        kinds = [kind for kind, entry in self.kinds.items() if entry.is_of(text)]
        return (kinds or list(self.kinds))[0]


Entry = Copy | Choice | Spec | Pattern


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """Formats a spec such as `local(window=64)`, with sorted arguments."""
    if not arguments:
        return name
    inner = ', '.join(f'{key}={arguments[key]!r}' for key in sorted(arguments))
    return f'{name}({inner})'


def pattern(texts: Sequence[str]) -> str:
    """Returns the shortest pattern that gives each layer its spec.

    Examples:
      >>> pattern(['local', 'softmax', 'local', 'softmax'])
      '[local, softmax]'
    """
    texts = texts[: variants.shortest_period(texts)]
    return texts[0] if len(texts) == 1 else f'[{", ".join(texts)}]'
