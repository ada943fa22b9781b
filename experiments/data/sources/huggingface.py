"""Data sets of the Hugging Face Hub, by the package `datasets`."""

import dataclasses
import functools
import hashlib
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.data.sources.base import Source, check_arguments, plain_text
from experiments.errors import UserError

_ROWS = 8192  # in memory at once
_BY_LANGUAGE = 'translation'  # the column of sets whose cells are texts by language


@dataclasses.dataclass(frozen=True)
class Huggingface(Source):
    """`huggingface(path="wmt14", name="de-en", source="en", target="de")`.

    Texts are cells of the columns `source` and `target`, or of a column `translation`
    by these languages. A set is downloaded where there is a network, or found in the
    package's cache, and read from its files.

    Attributes:
      path: of the set on the Hub, or a folder.
      source: the language, or column, to translate from.
      target: the language, or column, to translate to.
      name: of the set's configuration; `''` where it has one.
      split: what to train on, in the package's notation: `'train'`, `'train[:99%]'`.
      dev: what judges the training, the evaluation set `'val'`. The splits of which
        neither holds a part are evaluation sets under their own names.
      revision: of the set on the Hub, such as a commit; `''` for the newest.

    Raises:
      UserError: when read, for a package, set, split, language or column that is not
        there, and for a set that cannot be loaded here.
      ValueError: an argument of the wrong type.
    """

    path: str
    source: str
    target: str
    name: str = ''
    split: str = 'train'
    dev: str = 'validation'
    revision: str = ''

    def __post_init__(self):
        check_arguments(self)

    def train(self) -> Iterator[tuple[str, str]]:
        return self._pairs(self._load(self.split))

    def evaluation(self) -> dict[str, list[tuple[str, str]]]:
        taken = {'val', self.split.split('[')[0], self.dev.split('[')[0]}
        others = [split for split in self._splits if split not in taken]
        sets = {'val': self.dev} | {split: split for split in others}
        return {name: list(self._pairs(self._load(x))) for name, x in sets.items()}

    def digest(self) -> str:
        """Of the files that are read, and of what is read of them."""
        rows = self._load(self.split)
        content = (self.source, self.target, self.split, len(rows))
        digest = hashlib.sha256(repr(content).encode())
        for file in rows.cache_files:
            with Path(file['filename']).open('rb') as opened:
                digest.update(hashlib.file_digest(opened, 'sha256').digest())
        return digest.hexdigest()

    @functools.cached_property
    def _package(self) -> Any:
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError(
                'data: huggingface needs datasets: pip install -e ".[datasets]"'
            ) from None
        datasets.disable_progress_bars()
        return datasets

    @property
    def _given(self) -> tuple[str, str | None]:
        """The set and its configuration, as the package takes them."""
        return str(Path(self.path).expanduser()), self.name or None

    @functools.cached_property
    def _splits(self) -> list[str]:
        ask = self._package.get_dataset_split_names
        return self._asked(lambda: ask(*self._given, revision=self.revision or None))

    def _load(self, split: str) -> Any:
        load = self._package.load_dataset
        revision = self.revision or None
        rows = self._asked(lambda: load(*self._given, split=split, revision=revision))
        if not len(rows):
            raise UserError(f'data: split {split!r} of {self.path} has no rows')
        return rows

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """What the package answers; its errors are of many kinds."""
        try:
            return ask()
        except Exception as error:
            reason = textwrap.shorten(str(error) or repr(error), 250, placeholder=' …')
            raise UserError(
                f'data: huggingface(path={self.path!r}): {reason}'
            ) from error

    def _pairs(self, rows: Any) -> Iterator[tuple[str, str]]:
        languages = (self.source, self.target)
        by_language = _BY_LANGUAGE in rows.column_names
        features = rows.features[_BY_LANGUAGE] if by_language else rows.features
        there = getattr(features, 'languages', None) or list(features)
        for language in languages:
            if language not in there:
                raise UserError(
                    f'data: {self.path} has no {language!r}; it has {", ".join(there)}'
                )
        for batch in rows.iter(_ROWS):
            if by_language:
                cells = [[row[x] for row in batch[_BY_LANGUAGE]] for x in languages]
            else:
                cells = [batch[x] for x in languages]
            for source, target in zip(*cells, strict=True):
                yield plain_text(source or ''), plain_text(target or '')
