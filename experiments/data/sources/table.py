"""Columns of tables."""

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.data.digest import hex_digest
from experiments.data.documents import blocks, joined
from experiments.data.sources._files import lines, same_content
from experiments.data.sources.base import (
    Pair,
    Source,
    cell_text,
    check_disjoint,
    check_sides,
)
from experiments.errors import UserError
from flaxformer_lite import validation

Row = dict[str, Any]  # column → cell


class TableSource(Source):
    """`table(train="a.tsv", val="b.tsv", source="word", target="sounds")`.

    `.tsv` and `.csv` have column names in the first line; quotation marks are special
    only in CSV. `.jsonl` has an object per line. Files are UTF-8, plain or `.gz`. Line
    ends within a cell become spaces.

    Args:
      train, val: The training file and that of the dev set; `~` is the home directory.
      source, target: Columns. Results use them as languages.
      sets: Additional evaluation sets, such as `{"test": "test.tsv"}`.
      references: Columns with additional references, which may be blank.
      document: Column of document names. A document's rows must be consecutive.
      window: Sentences of a document per example.

    Raises:
      ValueError: `window` is less than 1, or has no `document`.
      UserError: A file is missing or has another extension. On reading, it is not a
        table, has no rows, or lacks a column, or rows of a document are not
        consecutive.
    """

    def __init__(
        self,
        train: str,
        val: str,
        source: str,
        target: str,
        sets: dict | None = None,
        references: list | tuple = (),
        document: str = '',
        window: int = 1,
    ):
        check_sides(source, target)
        validation.check('window', validation.Size, window)
        if window > 1 and not document:
            raise ValueError(
                f'window={window} needs the column of documents. Set document.'
            )
        if sets and 'val' in sets:
            raise ValueError("sets: 'val' is the set of the argument val. Rename it.")
        self.source = source
        self.target = target
        self._references = tuple(references)
        self._document = document
        self.window = window
        self._train = _check_file(train)
        files = {'val': val} | (sets or {})
        self._sets = {name: _check_file(file) for name, file in files.items()}

    def train(self):
        check_disjoint([self])
        columns = (self.source, self.target)
        if self.window == 1:
            return map(tuple, self._rows(self._train, columns))
        return self._windows(self._rows_of_documents(self._train, columns))

    def _windows(self, rows: Iterator[list[str]]) -> Iterator[Pair]:
        for _, same in itertools.groupby(rows, key=lambda row: row[-1]):
            # Training skips pairs with a blank side.
            pairs = ((x, y) for x, y, _ in same if x.strip() and y.strip())
            while block := list(itertools.islice(pairs, self.window)):
                source, target = map(joined, zip(*block, strict=True))
                yield source, target

    def _rows_of_documents(
        self, file: Path, columns: tuple[str, ...]
    ) -> Iterator[list[str]]:
        """Yields the cells of columns, and the document's name as the last one."""
        names = set()
        last = ''
        for number, row in enumerate(self._rows(file, (*columns, self._document)), 1):
            name = row[-1]
            where = f'data: {file}, row {number}: {self._document}'
            if not name.strip():
                raise UserError(f'{where} is blank. Name the document of each row.')
            if name != last and name in names:
                raise UserError(
                    f'{where} is {name!r:.60} again, after other documents. Put the '
                    'rows of a document together, in order.'
                )
            names.add(name)
            last = name
            yield row

    def documents(self, name):
        if not self._document or name not in self._sets:
            return ()
        rows = self._rows_of_documents(self._sets[name], ())
        sizes = [len(list(same)) for _, same in itertools.groupby(rows)]
        return [blocks(size, self.window) for size in sizes]

    def evaluation(self):
        check_disjoint([self])
        columns = (self.source, self.target, *self._references)
        sets = {}
        for name, file in self._sets.items():
            self.documents(name)  # raises for a missing column
            sets[name] = []
            for source, target, *others in self._rows(file, columns):
                known = (target, *filter(str.strip, others))
                sets[name].append((source, known))
        return sets

    def overlap_with(self, other):
        columns = (self.source, self.target)
        is_same_kind = isinstance(other, TableSource)
        if not is_same_kind or columns != (other.source, other.target):
            return ''
        for name, file in other._sets.items():
            if same_content(self._train, file):
                return (
                    f'the set {name!r}, {file}, is the training table {self._train}. '
                    'Give a table of other rows.'
                )
        return ''

    def digest(self):
        columns = (self._train.name, self.source, self.target)
        if self.window > 1:
            columns += (self._document, str(self.window))
        return hex_digest(repr(columns), storage.sha256(self._train))

    def _rows(self, file: Path, columns: tuple[str, ...]) -> Iterator[list[str]]:
        read = _READERS[_kind(file)]
        number = 0
        for number, row in enumerate(read(file), 1):
            yield [_cell(file, number, row, name) for name in columns]
        if not number:
            raise UserError(f'data: {file} has no rows')


def _check_file(name: str) -> Path:
    file = Path(str(name)).expanduser()
    if _kind(file) not in _READERS:
        kinds = ', '.join(_READERS)
        raise UserError(f'data: {file} is not a table. Its name must end with {kinds}.')
    if not file.is_file():
        raise UserError(f'data: {file} is missing')
    return file


def _kind(file: Path) -> str:
    return Path(file.name.removesuffix('.gz')).suffix.lower()


def _cell(file: Path, number: int, row: Row, name: str) -> str:
    if name not in row:
        raise UserError(
            f'data: {file} has no column {name!r} in row {number}. It has '
            f'{", ".join(row)}.'
        )
    return cell_text(row[name], f'{file}, row {number}: {name}')


def _separated(rows: Iterator[list[str]], file: Path) -> Iterator[Row]:
    number = 0
    try:
        names = next(rows, [])
        try:
            _check_distinct(names)
        except ValueError as error:
            raise UserError(f'data: {file}, line 1: {error}') from None
        for number, cells in enumerate(rows, 1):
            if cells and len(cells) != len(names):
                raise UserError(
                    f'data: {file}, row {number}, has {len(cells)} cells, but the '
                    f'header has {len(names)}'
                )
            yield dict(zip(names, cells or [''] * len(names), strict=True))
    except csv.Error as error:
        hint = ''
        if 'field limit' in str(error):
            hint = (
                '. Close each quotation mark, or write longer cells as .tsv or .jsonl.'
            )
        raise UserError(f'data: {file}, below row {number}: {error}{hint}') from None


def _check_distinct(names: Sequence[str]) -> None:
    for name in filter(None, names):
        if names.count(name) > 1:
            raise ValueError(f'several columns are called {name!r}. Rename them.')


def _object(fields: Sequence[tuple[str, Any]]) -> Row:
    _check_distinct([name for name, _ in fields])
    return dict(fields)


def _tsv(file: Path) -> Iterator[Row]:
    rows = (line.split('\t') if line else [] for line in lines(file))
    return _separated(rows, file)


def _csv(file: Path) -> Iterator[Row]:
    text = (f'{line}\n' for line in lines(file))
    return _separated(csv.reader(text, strict=True), file)


def _jsonl(file: Path) -> Iterator[Row]:
    for number, line in enumerate(lines(file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise UserError(f'data: {file}, line {number}: {error}') from None
        if not isinstance(row, dict):
            raise UserError(f'data: {file}, line {number}, is not a JSON object')
        yield row


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    '.tsv': _tsv,
    '.csv': _csv,
    '.jsonl': _jsonl,
}
