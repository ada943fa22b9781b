"""Data sets of the Hugging Face Hub."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.data.digest import hex_digest
from experiments.data.sources.base import SplitSource, cell_text, check_sides
from experiments.errors import UserError, reason

_BY_LANGUAGE = 'translation'  # column whose cells map languages to texts


@dataclasses.dataclass(frozen=True)
class HuggingfaceSource(SplitSource):
    """`huggingface(path="wmt14", name="de-en", source="en", target="de")`.

    Reads the columns `source` and `target`, or these languages of a column
    `translation`, with the package `datasets`. Null is blank text.

    Attributes:
      path: Name of the set on the Hub, or a folder.
      name: Configuration of the set. `''` if there is only one.
      split: Training split, such as `'train[:99%]'`.
      dev: Split of the dev set.
      revision: Revision on the Hub, such as a commit. `''` for the newest.

    Raises:
      UserError: On reading, if the set, a split, language or column is missing.
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
        return self._call_package(self._package.get_dataset_split_names)

    def overlap(self, split, other):
        parts = itertools.product(self._parts(split), self._parts(other))
        return any(
            a.splitname == b.splitname and a.from_ < b.to and b.from_ < a.to
            for a, b in parts
        )

    def _parts(self, split: str) -> list[Any]:
        text = '+'.join(self._sizes) if split == 'all' else split
        try:
            return self._package.ReadInstruction.from_spec(text).to_absolute(
                self._sizes
            )
        except ValueError as error:
            raise self._as_user_error(error) from None

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        splits = self._load(self.split).info.splits
        return {name: part.num_examples for name, part in splits.items()}

    def digest(self):
        rows = self._load(self.split)
        content = (self.source, self.target, self.split, len(rows))
        files = [Path(file['filename']) for file in rows.cache_files]
        return hex_digest(repr(content), *map(storage.sha256, files))

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
        rows = self._call_package(self._package.load_dataset, split=split)
        if not len(rows):
            raise UserError(f'data: split {split!r} of {self.path} has no rows')
        return rows

    def _call_package(self, function: Callable[..., Any], **arguments: Any) -> Any:
        path = str(Path(self.path).expanduser())
        revision = self.revision or None
        if self._package.__version__.startswith('3.'):
            # Version 3 asks whether to run a set's script; later ones never run it.
            arguments['trust_remote_code'] = False
        try:
            return function(path, self.name or None, revision=revision, **arguments)
        except Exception as error:
            raise self._as_user_error(error) from error

    def _as_user_error(self, error: Exception) -> UserError:
        message = reason(error)
        if 'script' in message:
            message = (
                'the dataset needs a loading script, which is not run. Pass '
                'revision="refs/convert/parquet", or use plain data files.'
            )
        return UserError(f'data: huggingface(path={self.path!r}): {message}')

    def pairs(self, split):
        rows = self._load(split)
        languages = self._languages(rows.features.get(_BY_LANGUAGE))
        there = languages or list(rows.features)
        for language in (self.source, self.target):
            if language not in there:
                raise UserError(
                    f'data: {self.path} has no {language!r}. It has {", ".join(there)}.'
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
        if isinstance(feature, self._package.TranslationVariableLanguages):
            raise UserError(
                f'data: {self.path}: column {_BY_LANGUAGE!r} has a variable number of '
                'texts per language. Write a table with one column per language.'
            )
        if isinstance(feature, self._package.Translation):
            return list(feature.languages)
        return list(feature) if isinstance(feature, dict) else []
