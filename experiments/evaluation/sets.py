"""Evaluation sets: which of a source's sets are scored."""

from collections.abc import Mapping, Sequence

from experiments.data import set_names
from experiments.errors import UserError

Pairs = Sequence[tuple[str, str]]


def chosen(sets: Mapping[str, Pairs], names: str, field: str) -> dict[str, Pairs]:
    """The sets with these comma-separated names; all, if none is named.

    Raises:
      UserError: a named set is not there; or a set is empty, or its name cannot be that
        of a file.
    """
    wanted = _split(names)
    if not wanted:
        wanted = list(sets)
    for name in wanted:
        if name not in sets:
            raise UserError(
                f'{field}: there is no set {name!r}; there is {", ".join(sets)}'
            )
    for name in wanted:
        if not len(sets[name]):
            raise UserError(f'{field}: the set {name!r} holds no sentences')
    set_names.check(wanted)
    return {name: sets[name] for name in wanted}


def _split(names: str) -> list[str]:
    stripped = [name.strip() for name in names.split(',')]
    return [name for name in stripped if name]
