"""Evaluation sets: which are scored, and the files of their translations.

sacrebleu's and COMET's own commands read these: `sacrebleu val.reference.txt -i …`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import storage
from experiments.errors import UserError
from experiments.runs.reading import outputs_path

Pairs = Sequence[tuple[str, str]]
_EXAMPLES = 3  # of a set's translations that are shown


def chosen(sets: Mapping[str, Pairs], names: str, field: str) -> dict[str, Pairs]:
    """The sets with these comma-separated names; all, if none is named.

    Raises:
      UserError: a named set is not there or is empty.
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
    return {name: sets[name] for name in wanted}


def write_translations(
    file: Path,
    name: str,
    sources: Sequence[str],
    references: Sequence[str],
    outputs: Sequence[str],
) -> None:
    """Writes a set's translations, with its sources and references beside them."""
    texts = {
        file.with_name(f'{name}.source.txt'): sources,
        file.with_name(f'{name}.reference.txt'): references,
        file: outputs,
    }
    for path, lines in texts.items():
        storage.write(path, ''.join(f'{line}\n' for line in lines))


def lines_of(pairs: Pairs) -> tuple[list[str], list[str]]:
    """The sources and the references of a set, each text on one line.

    Line ends within a sentence become spaces: they would part it in a file.
    """
    sources = [on_one_line(source) for source, _ in pairs]
    references = [on_one_line(reference) for _, reference in pairs]
    return sources, references


def on_one_line(text: str) -> str:
    """The text with spaces in place of its line ends, of whichever kind."""
    return ' '.join(text.splitlines())


def examples(path: Path, name: str, step: int, pairs: Pairs) -> str:
    """Three of a set's translations with source and reference, spread over the set."""
    text = outputs_path(path, name, step).read_text(encoding='utf-8')
    rows = list(zip(pairs, text.split('\n')[:-1], strict=True))
    every = max(1, len(rows) // _EXAMPLES)
    lines = []
    for (source, reference), output in rows[::every][:_EXAMPLES]:
        lines.append(f'  source      {source}')
        lines.append(f'  reference   {reference}')
        lines.append(f'  translation {output}')
    return '\n'.join(lines)
