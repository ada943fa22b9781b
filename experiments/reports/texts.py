"""Translations side by side, and where the scores come from: lengths and phenomena."""

import contextlib
import difflib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from experiments.data import phenomena
from experiments.errors import UserError
from experiments.reports.arms import Study
from experiments.reports.statistics import spread
from experiments.reports.tables import Table
from experiments.runs import reading

LENGTHS = (5, 10, 15, 20, 25, 30, 40, 60, 1000)  # words: the last of each range
FEWEST = 5  # sentences for a score of their own
_SHOWN = 15  # sentences of a kind


class Part(NamedTuple):
    """Words of a translation.

    Attributes:
      text: the words.
      mark: '' where the reference has them too, 'added' where not, and 'missing' for
        words that only the reference has.
    """

    text: str
    mark: str


class Sentence(NamedTuple):
    """A sentence with the translations of all arms, by their names."""

    source: str
    reference: str
    translations: dict[str, list[Part]]


class Translated(NamedTuple):
    """A set as all arms translate it.

    Attributes:
      data: the source of its sentences.
      sources, references: its sentences.
      outputs: arm → each seed's translations.
    """

    data: str
    sources: list[str]
    references: list[str]
    outputs: dict[str, list[list[str]]]


def translated(study: Study, name: str) -> Translated | None:
    """The translations of a set; arms that translated other sentences are left out.

    Raises:
      UserError: translations cannot be read.
    """
    first: Translated | None = None
    for arm in study.arms:
        for run in arm.scored:
            found = reading.read_translations(run, name)
            if found is None:
                continue
            sources, references, outputs = found
            if first is None:
                data = str(run.config.get('data'))
                first = Translated(data, sources, references, {})
            if (sources, references) == (first.sources, first.references):
                first.outputs.setdefault(arm.name, []).append(outputs)
    return first


def marked(output: str, reference: str) -> list[Part]:
    """A translation with its differences from the reference, word by word."""
    words = output.split()
    wanted = reference.split()
    matcher = difflib.SequenceMatcher(None, wanted, words, autojunk=False)
    parts = []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind != 'equal':
            parts.append(Part(' '.join(wanted[i:j]), 'missing'))
        parts.append(Part(' '.join(words[k:m]), '' if kind == 'equal' else 'added'))
    return [part for part in parts if part.text]


def examples(found: Translated) -> dict[str, list[Sentence]]:
    """Sentences to read, evenly spread: over the set, and over where arms differ."""
    firsts = zip(*(seeds[0] for seeds in found.outputs.values()), strict=True)
    differing = [i for i, outputs in enumerate(firsts) if len(set(outputs)) > 1]
    chosen: dict[str, Sequence[int]] = {
        'Spread over the set': range(len(found.sources))
    }
    if differing:
        chosen['Where the arms differ'] = differing
    shown = {}
    for title, rows in chosen.items():
        step = max(1, len(rows) // _SHOWN)
        shown[title] = [_sentence(found, i) for i in rows[::step][:_SHOWN]]
    return shown


def _sentence(found: Translated, i: int) -> Sentence:
    """With the translation of each arm's first seed."""
    reference = found.references[i]
    marks = {arm: marked(x[0][i], reference) for arm, x in found.outputs.items()}
    return Sentence(found.sources[i], reference, marks)


def by_group(found: Translated, name: str) -> Table | None:
    """BLEU by the length of the reference, and by what the grammar put into a sentence.

    Args:
      name: of the set.

    Returns:
      None where all sentences are of one group.
    """
    groups = _by_length(found.references)
    pairs = list(zip(found.sources, found.references, strict=True))
    with contextlib.suppress(UserError):  # the text is not of a source that is known
        groups |= phenomena.rows(found.data, name, pairs)
    groups = {key: members for key, members in groups.items() if len(members) >= FEWEST}
    if len(groups) < 2:
        return None
    rows = []
    for key, members in groups.items():
        references = [found.references[i] for i in members]
        scores = []
        for seeds in found.outputs.values():
            values = [
                _bleu([outputs[i] for i in members], references) for outputs in seeds
            ]
            scores.append(spread(values))
        rows.append((key, len(members), *scores))
    note = (
        'Lengths are words of the reference. Phenomena are what the grammar that made '
        'the sentences says; a sentence holds several.'
    )
    columns = ('sentences of', 'sentences', *found.outputs)
    scores = frozenset(found.outputs)
    title = f'BLEU by length and phenomenon: {name}'
    return Table(f'by_group_{name}', title, columns, tuple(rows), scores, note)


def _by_length(references: Sequence[str]) -> dict[str, list[int]]:
    groups = {}
    for low, high in itertools.pairwise((0, *LENGTHS)):
        lengths = enumerate(len(reference.split()) for reference in references)
        label = f'{low + 1}–{high} words'
        groups[label] = [i for i, length in lengths if low < length <= high]
    return groups


def _bleu(outputs: Sequence[str], references: Sequence[str]) -> float:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU().corpus_score(outputs, [references]).score
