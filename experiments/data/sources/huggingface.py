"""Data sets of the Hugging Face Hub, by the package `datasets`."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.data.digest import hex_digest, of_file
from experiments.data.sources.base import OfSplits, cell_text, check_sides
from experiments.errors import UserError, reason

_BY_LANGUAGE = 'translation'  # the column of sets whose cells are texts by language


@dataclasses.dataclass(frozen=True)
class Huggingface(OfSplits):
    """`huggingface(path="wmt14", name="de-en", source="en", target="de")`.

    Texts are cells of the columns `source` and `target`, or of a column `translation`
    by these languages. Null is a blank text. A set is downloaded where there is a
    network, or found in the package's cache, and read from its files.

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
      ValueError: both languages are one.
    """

    path: str
    source: str
    target: str
    name: str = ''
    split: str = 'train'
    dev: str = 'validation'
    revision: str = ''

    def __post_init__(self):
        check_sides(self.source, self.target)

    def splits(self):
        return self._ask(self._package.get_dataset_split_names)

    def overlap(self, split, other):
        parts = itertools.product(self._parts(split), self._parts(other))
        return any(
            a.splitname == b.splitname and a.from_ < b.to and b.from_ < a.to
            for a, b in parts
        )

    def _parts(self, split: str) -> list[Any]:
        """The ranges of rows that a split, or a sum of parts, consists of."""
        text = '+'.join(self._sizes) if split == 'all' else split
        try:
            return self._package.ReadInstruction.from_spec(text).to_absolute(
                self._sizes
            )
        except ValueError as error:
            raise self._refusal(error) from None

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        """The number of rows of every split."""
        splits = self._load(self.split).info.splits
        return {name: part.num_examples for name, part in splits.items()}

    def digest(self):
        """Of the files that are read, and of what is read of them."""
        rows = self._load(self.split)
        content = (self.source, self.target, self.split, len(rows))
        files = [Path(file['filename']) for file in rows.cache_files]
        return hex_digest(repr(content), *map(of_file, files))

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

    def _load(self, split: str) -> Any:
        rows = self._ask(self._package.load_dataset, split=split)
        if not len(rows):
            raise UserError(f'data: split {split!r} of {self.path} has no rows')
        return rows

    def _ask(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """What the package answers about the set; its errors are of many kinds."""
        path = str(Path(self.path).expanduser())
        revision = self.revision or None
        try:
            return function(path, self.name or None, revision=revision, **arguments)
        except Exception as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> UserError:
        return UserError(f'data: huggingface(path={self.path!r}): {reason(error)}')

    def pairs(self, split):
        rows = self._load(split)
        languages = self._languages(rows.features.get(_BY_LANGUAGE))
        there = languages or list(rows.features)
        for language in (self.source, self.target):
            if language not in there:
                raise UserError(
                    f'data: {self.path} has no {language!r}; it has {", ".join(there)}'
                )
        for number, row in enumerate(rows, 1):
            texts = (row[_BY_LANGUAGE] or {}) if languages else row
            where = f'{self.path}, split {split!r}, row {number}'
            source, target = [
                cell_text(texts.get(name), f'{where}: {name}')
                for name in (self.source, self.target)
            ]
            yield source, target

    def _languages(self, feature: Any) -> list[str]:
        """The languages of a column of texts by language; none for another column."""
        if isinstance(feature, self._package.TranslationVariableLanguages):
            raise UserError(
                f'data: {self.path}: the column {_BY_LANGUAGE!r} has any number of '
                'texts of each language; write a table with a column for each'
            )
        if isinstance(feature, self._package.Translation):
            return list(feature.languages)
        return list(feature) if isinstance(feature, dict) else []
