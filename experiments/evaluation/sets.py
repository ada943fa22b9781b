"""Evaluation sets: which are scored, and the files of their translations.

sacrebleu's and COMET's own commands read these: `sacrebleu val.reference.txt -i …`.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import storage
from experiments.data.tokenizers.base import on_one_line
from experiments.errors import UserError
from experiments.metrics.base import References
from experiments.runs.reading import outputs_path, pair_paths

Pairs = Sequence[tuple[str, tuple[str, ...]]]  # a source and its references
_EXAMPLES = 3  # of a set's translations that are shown


def chosen(
    sets: Mapping[str, Sequence[tuple[str, str | tuple[str, ...]]]],
    names: str,
    field: str,
) -> dict[str, Pairs]:
    """The sets with these comma-separated names; all, if none is named.

    Args:
      sets: as a source of data has them.
      names: of those that are wanted.
      field: that names them, for messages.

    Raises:
      UserError: a named set is not there, is empty, or has pairs with a blank side.
    """
    stripped = [name.strip() for name in names.split(',')]
    wanted = [name for name in stripped if name] or list(sets)
    found = {}
    for name in wanted:
        if name not in sets:
            raise UserError(
                f'{field}: there is no set {name!r}; there is {", ".join(sets)}'
            )
        if not len(sets[name]):
            raise UserError(f'{field}: the set {name!r} holds no sentences')
        pairs = []
        for source, known in sets[name]:
            pairs.append((source, (known,) if isinstance(known, str) else known))
        _check_not_blank(f'{field}: the set {name!r}', pairs)
        found[name] = pairs
    return found


def _check_not_blank(what: str, pairs: Pairs) -> None:
    """Refuses pairs that nothing can be said of: no reference, or nothing to translate.

    Public sets have such lines too, where a paragraph ends or a translation is missing.
    They are not left out in silence: the score would be that of another set.
    """
    blank = []
    for i, (source, references) in enumerate(pairs, 1):
        if not references or not all(map(str.strip, (source, *references))):
            blank.append(i)
    if blank:
        raise UserError(
            f'{what} has a blank source or reference in {len(blank)} of {len(pairs)} '
            f'lines, first in line {blank[0]}: take these lines out of both sides, or '
            'choose other sets'
        )


def write_translations(
    file: Path,
    name: str,
    sources: Sequence[str],
    references: References,
    outputs: Sequence[str],
) -> None:
    """Writes a set's translations, with its sources and references beside them.

    First references are one file, second ones another; a line is blank where a sentence
    has no more.
    """
    by_number = itertools.zip_longest(*references, fillvalue='')
    columns = [sources, *by_number, outputs]
    paths = [*pair_paths(file.parent, name, len(columns) - 2), file]
    for path, lines in zip(paths, columns, strict=True):
        storage.write(path, ''.join(f'{line}\n' for line in lines))


def lines_of(pairs: Pairs) -> tuple[list[str], list[tuple[str, ...]]]:
    """The sources and the references of a set, each text on one line.

    Line ends within a sentence become spaces: they would part it in a file.
    """
    sources = [on_one_line(source) for source, _ in pairs]
    references = [tuple(map(on_one_line, known)) for _, known in pairs]
    return sources, references


def first_references(pairs: Pairs) -> list[tuple[str, str]]:
    """Each source with its first reference, of which the loss is."""
    return [(source, references[0]) for source, references in pairs]


def examples(path: Path, name: str, step: int, pairs: Pairs) -> str:
    """Three of a set's translations with source and reference, spread over the set."""
    text = outputs_path(path, name, step).read_text(encoding='utf-8')
    rows = list(zip(pairs, text.split('\n')[:-1], strict=True))
    every = max(1, len(rows) // _EXAMPLES)
    lines = []
    for (source, references), output in rows[::every][:_EXAMPLES]:
        lines.append(f'  source      {source}')
        lines.append(f'  reference   {references[0]}')
        lines.append(f'  translation {output}')
    return '\n'.join(lines)
