"""Names of evaluation sets, which become names of files: bad ones are refused early."""

import re
import unicodedata
from collections.abc import Iterable

from experiments.errors import UserError

LONGEST = 150  # bytes; most file systems keep 255, and a step and an ending are added
_STRANGE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
# Devices of Windows, whatever ending they are given.
_RESERVED = {'con', 'prn', 'aux', 'nul'} | {
    f'{d}{n}' for d in ('com', 'lpt') for n in range(10)
}


def check(names: Iterable[str]) -> None:
    """Refuses names that a file of translations cannot have, or not beside the others'.

    Raises:
      UserError: names the set, and what is wrong with its name.
    """
    kept: dict[str, str] = {}
    for name in dict.fromkeys(names):  # a set may be asked for twice
        wrong = _wrong(name)
        if wrong:
            raise UserError(
                f'data: the evaluation set {name!r} cannot be the name of a file of '
                f'its translations: {wrong}; rename it, or choose other sets'
            )
        # As file systems compare them that know no capitals, or write ä as two
        # characters.
        key = unicodedata.normalize('NFC', name).casefold()
        if key in kept:
            raise UserError(
                f'data: the evaluation sets {kept[key]!r} and {name!r} would have the '
                'same files where capitals do not count; rename one, or choose other '
                'sets'
            )
        kept[key] = name


def _wrong(name: str) -> str:
    """What keeps a name from being a file's; empty if nothing does."""
    strange = _STRANGE.search(name)
    if not name:
        return 'it is empty'
    if strange:
        return f'it holds {strange[0]!r}'
    if name.startswith('.'):
        return 'it begins with a dot'
    if name.split('.')[0].lower() in _RESERVED:
        return 'Windows keeps it for a device'
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return 'it is not UTF-8'
    return f'it is longer than {LONGEST} bytes' if length > LONGEST else ''
