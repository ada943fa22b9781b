"""The files of a set's translations: sources, references and outputs, line by line.

sacrebleu's and COMET's own commands read them: `sacrebleu val.reference.txt -i …`.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments import storage
from experiments.evaluation.sets import Pairs
from experiments.runs.reading import outputs_path

_EXAMPLES = 3  # of a set's translations that are shown


def write(
    file: Path,
    name: str,
    sources: Sequence[str],
    references: Sequence[str],
    outputs: Sequence[str],
) -> None:
    """Writes a set's translations, with its sources and references beside them."""
    _write_lines(file.with_name(f'{name}.source.txt'), sources)
    _write_lines(file.with_name(f'{name}.reference.txt'), references)
    _write_lines(file, outputs)


def _write_lines(file: Path, lines: Sequence[str]) -> None:
    storage.write(file, ''.join(f'{line}\n' for line in lines))


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
    outputs = text.split('\n')
    every = max(1, len(pairs) // _EXAMPLES)
    lines = []
    for i in range(0, len(pairs), every)[:_EXAMPLES]:
        source, reference = pairs[i]
        lines.append(f'  source      {source}')
        lines.append(f'  reference   {reference}')
        lines.append(f'  translation {outputs[i]}')
    return '\n'.join(lines)
