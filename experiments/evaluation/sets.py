"""Evaluation sets, and their lines."""

from collections.abc import Container, Sequence

from experiments import storage
from experiments.data import documents
from experiments.data.digest import text_digest
from experiments.data.documents import Documents
from experiments.data.sources.base import Pair, Sets, as_references
from experiments.data.tokenizers.base import on_one_line
from experiments.errors import UserError

Pairs = Sequence[tuple[str, tuple[str, ...]]]  # a source and its references


def select(sets: Sets, names: str, field: str) -> dict[str, Pairs]:
    """Returns the sets with the given comma-separated names, or all sets."""
    found = {}
    for name in split_names(names, sets) or sets:
        if name not in sets:
            raise UserError(
                f'{field}: unknown set {name!r}. Choose one of {", ".join(sets)}.'
            )
        if not storage.is_file_name(name):
            # Otherwise, its translations would be written to another folder.
            raise UserError(
                f'{field}: the set name {name!r} is not a file name. Rename the set.'
            )
        if not len(sets[name]):
            raise UserError(f'{field}: the set {name!r} has no sentences.')
        pairs = [(source, as_references(known)) for source, known in sets[name]]
        _check_not_blank(f'{field}: the set {name!r}', pairs)
        found[name] = pairs
    return found


def digest(pairs: Pairs, of_documents: Documents = ()) -> str:
    """Returns a hex digest of the text of a set, and of its documents if known."""
    return text_digest([*pairs, *of_documents])


def split_names(listed: str, sets: Container[str]) -> list[str]:
    """Returns the names in a comma-separated list. A set's name may have commas."""
    parts = listed.split(',')
    found = []
    while parts:
        size = len(parts)
        while size > 1 and ','.join(parts[:size]).strip() not in sets:
            size -= 1
        found.append(','.join(parts[:size]).strip())
        parts = parts[size:]
    return list(filter(None, found))


def _check_not_blank(what: str, pairs: Pairs) -> None:
    blank = [
        i
        for i, (source, references) in enumerate(pairs, 1)
        if not references or not all(map(str.strip, (source, *references)))
    ]
    if blank:
        raise UserError(
            f'{what} has a blank source or reference in {len(blank)} of {len(pairs)} '
            f'lines, first in line {blank[0]}. Remove these lines from both sides, or '
            'choose other sets.'
        )


def to_lines(pairs: Pairs) -> tuple[list[str], list[tuple[str, ...]]]:
    """Returns sources and references, each text on one line."""
    sources = [on_one_line(source) for source, _ in pairs]
    references = [tuple(map(on_one_line, known)) for _, known in pairs]
    return sources, references


def first_references(pairs: Pairs) -> list[Pair]:
    return [(source, references[0]) for source, references in pairs]


def joined_blocks(pairs: Pairs, sizes: Sequence[int]) -> Pairs:
    """Returns blocks of sentences as examples, with their references by number."""
    examples = []
    for block in documents.grouped(pairs, sizes):
        source = documents.joined([source for source, _ in block])
        by_number = zip(*(references for _, references in block), strict=False)
        examples.append((source, tuple(map(documents.joined, by_number))))
    return examples
