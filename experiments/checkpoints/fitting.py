"""How the variables that were saved of one model fit another."""

import re
from typing import NamedTuple

from experiments.errors import UserError
from flaxformer_lite.ranges import shown

_MOST_NAMES = 6  # of a kind in a message


class Fit(NamedTuple):
    """Which variables of a source a model can take over.

    Attributes:
      here, there: the model's and the source's, by path: {'params/…': 'float32[4]'}.
      ignored: paths of those that are not to be taken.
    """

    here: dict[str, str]
    there: dict[str, str]
    ignored: frozenset[str]

    @classmethod
    def of(cls, here: dict[str, str], there: dict[str, str], ignore: str) -> 'Fit':
        """The fit where what a regular expression is found in is not taken."""
        every = here.keys() | there.keys() if ignore else set()
        return cls(
            here,
            there,
            frozenset(path for path in every if re.search(ignore, name(path))),
        )

    @property
    def taken(self) -> frozenset[str]:
        common = self.here.items() & self.there.items()
        return frozenset(path for path, _ in common) - self.ignored

    def check(self, source: str, ignore: str) -> None:
        """Refuses what is not there, left over or of another shape.

        Args:
          source: what messages call it.
          ignore: the regular expression.

        Raises:
          UserError: names it, or says that the expression leaves all or nothing out.
        """
        pattern = f'init_ignore={shown(ignore)}'
        if ignore and not self.ignored:
            raise UserError(f'{pattern} is in the path of no parameter: leave it out')
        here, there = self.here.keys() - self.ignored, self.there.keys() - self.ignored
        changed = sorted(map(name, (here & there) - self.taken))
        kinds = {
            'not there': sorted(map(name, here - there)),
            'left over': sorted(map(name, there - here)),
            'of another shape': changed,
        }
        if any(kinds.values()):
            found = [f'{kind}: {listed(x)}' for kind, x in kinds.items() if x]
            names = [x for of_kind in kinds.values() for x in of_kind]
            raise UserError(
                f'{source} is of another model; {"; ".join(found)}. Give the fields '
                f'of model in its config.json, or let these begin anew: '
                f'{pattern_of(names)}'
            )
        if not any(path.startswith('params/') for path in self.taken):
            raise UserError(f'{pattern} leaves nothing to take: leave init_from out')


def name(path: str) -> str:
    """`params/encoder/layer_0/…` → `encoder/layer_0/…`."""
    return path.partition('/')[2]


def listed(names: list[str]) -> str:
    """Some names, or the first of many."""
    more = len(names) - _MOST_NAMES
    first = ', '.join(names[:_MOST_NAMES])
    return f'{first} and {more} more' if more > 0 else first


def pattern_of(names: list[str]) -> str:
    """The flag that leaves some parameters out."""
    if len(names) > _MOST_NAMES:
        return '--config.init_ignore=…'
    return f"--config.init_ignore='^({'|'.join(names)})(/|$)'"
