"""Parallel text files: `text(path="corpus", source="en", target="de")`."""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path

from experiments.data.sources import check_arguments
from experiments.errors import UserError


@dataclasses.dataclass(frozen=True)
class Text:
    """A folder of files named `<set>.<language>`, plain or `.gz`, with parallel lines.

    `train` is trained on and `val` judges the training; every other set that has both
    languages is one more evaluation set. Files are UTF-8, one sentence a line; where a
    plain file and a `.gz` of the same name lie side by side, the plain one is read.
    Text is brought to Unicode's NFC.

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
        with _reading(self._folder):
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

    def evaluation(self) -> dict[str, list[tuple[str, str]]]:
        names = ['val', *sorted(self._names() - {'train', 'val'})]
        return {name: list(self._pairs(name)) for name in names}

    def digest(self) -> str:
        """Of the files as they are."""
        digest = hashlib.sha256()
        for language in (self.source, self.target):
            path = self._file('train', language)
            with _reading(path), path.open('rb') as file:
                digest.update(hashlib.file_digest(file, 'sha256').digest())
        return digest.hexdigest()

    @property
    def _folder(self) -> Path:
        return Path(self.path).expanduser()

    def _names(self) -> set[str]:
        """The sets that are there in both languages."""
        with _reading(self._folder):
            files = {file.name.removesuffix('.gz') for file in self._folder.iterdir()}
        stems = {
            file.removesuffix(f'.{self.source}')
            for file in files
            if file.endswith(f'.{self.source}') and not file.startswith('.')
        }
        return {stem for stem in stems if f'{stem}.{self.target}' in files}

    def _file(self, name: str, language: str) -> Path:
        plain = self._folder / f'{name}.{language}'
        packed = plain.with_name(f'{plain.name}.gz')
        for file in (plain, packed):
            with _reading(file):
                if file.is_file():
                    return file
        remedy = 'hold back some lines of train for it'
        if name == 'train':
            remedy = 'what is trained on'
        raise UserError(
            f'data: {plain} (or {packed.name}) is missing: {remedy}; sets with both '
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
        yield from zip(_lines(source), _lines(target), strict=True)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns the errors of reading a file, or of a damaged one, into UserErrors."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'data: {path} cannot be read: {reason}') from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.BufferedIOBase]:
    with (
        _reading(path),
        gzip.open(path) if path.suffix == '.gz' else path.open('rb') as file,
    ):
        yield file


def _count_lines(path: Path) -> int:
    with _open(path) as file:
        return sum(1 for _ in file)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file; only `\\n` ends one: sentences may hold other separators."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
                yield unicodedata.normalize('NFC', text.rstrip('\r\n'))
    except UnicodeDecodeError as error:
        raise UserError(
            f'data: {path}, line {number}, is not UTF-8 ({error.reason}, byte '
            f'{error.start + 1} of it); convert the file, for example with iconv'
        ) from None
