"""Evaluation sets: which of a source's sets are scored, and what they may be called."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from experiments.errors import UserError

Pairs = Sequence[tuple[str, str]]
LONGEST = 150  # bytes; most file systems keep 255, and a step and an ending are added
_STRANGE = re.compile(r'^\.|[\x00-\x1f\x7f/\\:*?"<>|\ud800-\udfff]')


def chosen(sets: Mapping[str, Pairs], names: str, field: str) -> dict[str, Pairs]:
    """The sets with these comma-separated names; all, if none is named.

    Raises:
      UserError: a named set is not there; or a set is empty, or its name cannot be that
        of a file.
    """
    stripped = [name.strip() for name in names.split(',')]
    wanted = [name for name in stripped if name] or list(sets)
    for name in wanted:
        if name not in sets:
            raise UserError(
                f'{field}: there is no set {name!r}; there is {", ".join(sets)}'
            )
        if not len(sets[name]):
            raise UserError(f'{field}: the set {name!r} holds no sentences')
    check_names(wanted)
    return {name: sets[name] for name in wanted}


def check_names(names: Iterable[str]) -> None:
    """Refuses names that a file of translations cannot have, or not beside the others'.

    Raises:
      UserError: names the set, and what is wrong with its name.
    """
    by_key: dict[str, str] = {}
    for name in dict.fromkeys(names):  # a set may be asked for twice
        strange = _STRANGE.search(name)
        wrong = ''
        if strange:
            wrong = f'it holds {strange[0]!r}'
        elif not 0 < len(name.encode()) <= LONGEST:
            wrong = f'it is empty, or longer than {LONGEST} bytes'
        if wrong:
            raise UserError(
                f'data: the evaluation set {name!r} cannot be the name of a file of '
                f'its translations: {wrong}; rename it, or choose other sets'
            )
        # As file systems compare them that know no capitals, or write ä as two
        # characters.
        other = by_key.setdefault(unicodedata.normalize('NFC', name).casefold(), name)
        if other != name:
            raise UserError(
                f'data: the evaluation sets {other!r} and {name!r} would have the '
                'same files where capitals do not count; rename one, or choose other '
                'sets'
            )
