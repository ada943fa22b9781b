"""Parallel text in files."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import storage
from experiments.data.digest import hex_digest
from experiments.data.sources._files import lines, opened, reading, same_content
from experiments.data.sources.base import (
    Pair,
    Source,
    check_disjoint,
    check_sides,
)
from experiments.errors import UserError


@dataclasses.dataclass(frozen=True)
class Text(Source):
    """`text(path="corpus", source="en", target="de")`: parallel lines of two files.

    Files are named `<set>.<language>`, plain or `.gz`, in UTF-8. `train` is the
    training set, and `val` the dev set. Every other set with both languages is an
    additional evaluation set. Additional references of a set are in `val.de.1`,
    `val.de.2` or any other numbers.

    Attributes:
      path: The folder; `~` is the home directory.

    Raises:
      UserError: A folder or file is missing. On reading, files are empty, not UTF-8 or
        of unequal length.
    """

    path: str
    source: str
    target: str

    def __post_init__(self):
        check_sides(self.source, self.target)
        if not self._folder.is_dir():
            raise UserError(
                f'data: {self._folder} is not a folder. Give the folder with the text.'
            )
        for name in ('train', 'val'):
            self._files(name)

    def train(self):
        check_disjoint([self])
        return _pairs(*self._files('train'))

    def evaluation(self):
        check_disjoint([self])
        for name in self._source_names() - self._names():
            for file in self._more_references(name):
                expected = f'{name}.{self.target}'
                raise UserError(
                    f'data: {file} is an additional reference, but {expected} is '
                    'missing. '
                    f'Rename the first reference to {expected}.'
                )
        sets = {}
        for name in ['val', *sorted(self._names() - {'train', 'val'})]:
            source, target = self._files(name)
            sets[name] = read_set(source, [target, *self._more_references(name)])
        return sets

    def overlap_with(self, other):
        languages = (self.source, self.target)
        is_same_kind = isinstance(other, Text)
        if not is_same_kind or languages != (other.source, other.target):
            return ''
        for name in sorted(other._names() - {'train'}):
            if all(map(same_content, self._files('train'), other._files(name))):
                return (
                    f'the set {name!r} of {other._folder} is the training text of '
                    f'{self._folder}. Use lines that are not in train.'
                )
        return ''

    def digest(self):
        source, target = self._files('train')
        return hex_digest(storage.sha256(source), storage.sha256(target))

    @property
    def _folder(self) -> Path:
        return Path(self.path).expanduser()

    def _names(self) -> set[str]:
        files = self._file_names()
        return {x for x in self._source_names() if f'{x}.{self.target}' in files}

    def _source_names(self) -> set[str]:
        ending = f'.{self.source}'
        files = [file for file in self._file_names() if file.endswith(ending)]
        return {x.removesuffix(ending) for x in files if not x.startswith('.')}

    def _file_names(self) -> set[str]:
        with reading(self._folder):
            return {file.name.removesuffix('.gz') for file in self._folder.iterdir()}

    def _more_references(self, name: str) -> list[Path]:
        pattern = re.compile(re.escape(f'{name}.{self.target}.') + '([0-9]+)')
        matches = filter(None, map(pattern.fullmatch, self._file_names()))
        numbered = sorted((int(match[1]), match[0]) for match in matches)
        return [file for _, name in numbered if (file := self._find(name))]

    def _find(self, name: str) -> Path | None:
        files = (self._folder / name, self._folder / f'{name}.gz')
        return next(filter(Path.is_file, files), None)

    def _files(self, name: str) -> list[Path]:
        files = []
        for language in (self.source, self.target):
            expected = f'{name}.{language}'
            file = self._find(expected)
            if file is None:
                there = ', '.join(sorted(self._names())) or 'none'
                raise UserError(
                    f'data: {self._folder / expected} (or {expected}.gz) is missing. '
                    'Both train and val need files in both languages. Sets found: '
                    f'{there}.'
                )
            files.append(file)
        return files


def read_set(
    source: Path, references: Sequence[Path]
) -> list[tuple[str, tuple[str, ...]]]:
    """Reads an evaluation set: each source with its references.

    In all but the first file of references, a blank line means no reference.
    """
    first, *others = references
    columns = list(zip(*_pairs(source, first), strict=True))
    size = len(columns[0])
    for file in others:
        further = tuple(lines(file))
        if len(further) != size:
            raise UserError(
                f'data: {file} has {len(further):,} lines but the set has {size:,}. '
                'Line n must translate line n of the source.'
            )
        columns.append(further)
    found = []
    for text, target, *further in zip(*columns, strict=True):
        found.append((text, (target, *filter(str.strip, further))))
    return found


def _pairs(source: Path, target: Path) -> Iterator[Pair]:
    # Count all lines before yielding the first pair, to never train on misaligned
    # lines.
    source_lines = _count_lines(source)
    target_lines = _count_lines(target)
    if source_lines != target_lines:
        raise UserError(
            f'data: {source} has {source_lines:,} lines and {target} has '
            f'{target_lines:,}. Line n of one must translate line n of the other.'
        )
    if not source_lines:
        raise UserError(f'data: {source} and {target} are empty')
    yield from zip(lines(source), lines(target), strict=True)


def _count_lines(path: Path) -> int:
    with opened(path) as file:
        return sum(1 for _ in file)
