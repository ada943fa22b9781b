"""Parallel text in files, plain or packed."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from experiments.data.sources._files import lines, opened, reading
from experiments.data.sources.base import Source, check_arguments
from experiments.errors import UserError


@dataclasses.dataclass(frozen=True)
class Text(Source):
    """`text(path="corpus", source="en", target="de")`.

    The path is a folder of files named `<set>.<language>`, plain or `.gz`, with
    parallel lines.

    `train` is trained on and `val` judges the training; every other set that has both
    languages is one more evaluation set. Files are UTF-8, one sentence a line; where a
    plain file and a `.gz` of the same name lie side by side, the plain one is read.
    Text is brought to Unicode's NFC.

    An evaluation set may have further references, `val.de.1`, `val.de.2`, … beside
    `val.de`: line n of each translates line n of the source, and a blank line says that
    this sentence has no such reference.

    Attributes:
      path: the folder; `~` is the home directory.
      source: language code of the files to translate from.
      target: language code of the files to translate to.

    Raises:
      UserError: when made, for a folder or file that is missing; when read, for files
        that are empty, not UTF-8 or of unequal length.
      ValueError: an argument of the wrong type.
    """

    path: str
    source: str
    target: str

    def __post_init__(self):
        check_arguments(self)
        with reading(self._folder):
            is_folder = self._folder.is_dir()
        if not is_folder:
            raise UserError(
                f'data: {self._folder} is not a folder; give the one that holds the '
                'text'
            )
        for name in ('train', 'val'):
            for language in (self.source, self.target):
                self._file(name, language)

    def train(self) -> Iterator[tuple[str, str]]:
        return self._pairs('train')

    def evaluation(self) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
        names = ['val', *sorted(self._names() - {'train', 'val'})]
        return {name: self._with_references(name) for name in names}

    def digest(self) -> str:
        """Of the files as they are."""
        digest = hashlib.sha256()
        for language in (self.source, self.target):
            path = self._file('train', language)
            with reading(path), path.open('rb') as file:
                digest.update(hashlib.file_digest(file, 'sha256').digest())
        return digest.hexdigest()

    @property
    def _folder(self) -> Path:
        return Path(self.path).expanduser()

    def _names(self) -> set[str]:
        """The sets that are there in both languages."""
        with reading(self._folder):
            files = {file.name.removesuffix('.gz') for file in self._folder.iterdir()}
        stems = {
            file.removesuffix(f'.{self.source}')
            for file in files
            if file.endswith(f'.{self.source}') and not file.startswith('.')
        }
        return {stem for stem in stems if f'{stem}.{self.target}' in files}

    def _with_references(self, name: str) -> list[tuple[str, tuple[str, ...]]]:
        """Each source of a set with all its references."""
        rows = list(self._pairs(name))
        columns = []
        for number in itertools.count(1):
            file = self._find(f'{name}.{self.target}.{number}')
            if file is None:
                break
            columns.append(list(lines(file)))
            if len(columns[-1]) != len(rows):
                raise UserError(
                    f'data: {file} has {len(columns[-1]):,} lines and the set '
                    f'{len(rows):,}; line n must translate line n of the source'
                )
        further = zip(*columns, strict=True) if columns else [()] * len(rows)
        found = []
        for (source, target), others in zip(rows, further, strict=True):
            found.append((source, (target, *(x for x in others if x.strip()))))
        return found

    def _find(self, name: str) -> Path | None:
        """The file of a name, plain or packed."""
        for file in (self._folder / name, self._folder / f'{name}.gz'):
            with reading(file):
                if file.is_file():
                    return file
        return None

    def _file(self, name: str, language: str) -> Path:
        plain = self._folder / f'{name}.{language}'
        file = self._find(plain.name)
        if file is not None:
            return file
        remedy = 'hold back some lines of train for it'
        if name == 'train':
            remedy = 'what is trained on'
        raise UserError(
            f'data: {plain} (or {plain.name}.gz) is missing: {remedy}; sets with both '
            f'languages there: {", ".join(sorted(self._names())) or "none"}'
        )

    def _pairs(self, name: str) -> Iterator[tuple[str, str]]:
        source = self._file(name, self.source)
        target = self._file(name, self.target)
        # All lines are counted before the first pair is given out: text whose lines are
        # shifted must train nothing.
        source_lines, target_lines = _count_lines(source), _count_lines(target)
        if source_lines != target_lines:
            raise UserError(
                f'data: {source} has {source_lines:,} lines and {target} has '
                f'{target_lines:,}; line n of one must translate line n of the other'
            )
        if not source_lines:
            raise UserError(f'data: {source} and {target} are empty')
        yield from zip(lines(source), lines(target), strict=True)


def _count_lines(path: Path) -> int:
    with opened(path) as file:
        return sum(1 for _ in file)
