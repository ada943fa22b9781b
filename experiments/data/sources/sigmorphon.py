"""CoNLL-SIGMORPHON 2017, task 1 (Cotterell et al. 2017)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from experiments import storage
from experiments.data.digest import hex_digest, read_code
from experiments.data.sources._files import lines
from experiments.data.sources.base import Pair, Source
from experiments.errors import UserError
from flaxformer_lite.validation import Checked, Choices

SPACE = '▁'  # replaces a space in a lemma or form


@dataclass(frozen=True)
class Sigmorphon(Source, Checked):
    """`<V> <PST> <2> s i n g e n` → `s a n g s t`: features and lemma to a form.

    Files have the format of github.com/sigmorphon/conll2017, plain or `.gz`. `val` is
    `<language>-dev`, and `test` is `<language>-uncovered-test`.

    Attributes:
      path: A folder with the language's files, such as a clone of the repository; `~`
        is the home directory.
      language: The language in file names, such as `scottish-gaelic`.
      size: Size of the training set: 100 forms, 1,000 or 10,000.
    """

    path: str
    language: str
    size: Annotated[str, Choices('low', 'medium', 'high')] = 'high'
    source: ClassVar[str] = 'lemma'
    target: ClassVar[str] = 'form'

    def train(self):
        return self._pairs(f'train-{self.size}')

    def evaluation(self):
        return {
            'val': list(self._pairs('dev')),
            'test': list(self._pairs('uncovered-test')),
        }

    def digest(self):
        file = self._file(f'train-{self.size}')
        return hex_digest(read_code(Sigmorphon), storage.sha256(file))

    def _file(self, name: str) -> Path:
        folder = Path(self.path).expanduser()
        expected = f'{self.language}-{name}'
        found = [*folder.rglob(expected), *folder.rglob(f'{expected}.gz')]
        if not found:
            files = [file.name for file in folder.rglob('*-dev*')]
            languages = {name.rpartition('-dev')[0] for name in files}
            known = ', '.join(sorted(languages)) or '(none)'
            raise UserError(
                f'data: {self.path} has no file {expected}. Its languages are {known}.'
            )
        return found[0]

    def _pairs(self, name: str) -> Iterator[Pair]:
        file = self._file(name)
        for number, line in enumerate(lines(file), 1):
            cells = line.split('\t')
            if len(cells) != 3 or not all(cells):
                raise UserError(
                    f'data: {file}, line {number}, is {line!r:.60}. Give '
                    'lemma, form and features, separated by tabs.'
                )
            lemma, form, features = cells
            words = [f'<{feature}>' for feature in features.split(';')]
            words.append(space_letters(lemma))
            yield ' '.join(words), space_letters(form)


def space_letters(text: str) -> str:
    """Returns the letters as words."""
    return ' '.join(text.replace(' ', SPACE))
