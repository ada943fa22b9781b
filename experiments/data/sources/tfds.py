"""TensorFlow Datasets, without TensorFlow."""

import contextlib
import dataclasses
import functools
import itertools
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from experiments.data.digest import hex_digest
from experiments.data.sources.base import SplitSource, check_sides, plain_text
from experiments.errors import UserError, reason
from flaxformer_lite.validation import quote

_HOSTS = 3  # number of hosts to try
_TIMEOUT = 5  # seconds to wait for a host
# `huggingface:wmt14`, unlike the version of `wmt14_translate:1.0.0`.
_NAMESPACE = re.compile(r'[\w-]+:(?![\d*]|experimental_latest$)')
_CHUNK = 1024  # examples read at once; twice as fast as one by one


@dataclasses.dataclass(frozen=True)
class Tfds(SplitSource):
    """`tfds(name="wmt14_translate/de-en", source="en", target="de")`.

    Downloads and prepares a set as ArrayRecord, or reads a prepared folder of
    ArrayRecord or TFRecord. Needs no TensorFlow.

    Attributes:
      name: The data set and its configuration, as in TFDS.
      split, dev: Splits of both sets: `'train[:99%]'` and `'train[99%:]'`.
      data_dir: TFDS's folder. Defaults to `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.

    Raises:
      UserError: On reading, if a set, language or split does not exist, or the set
        cannot be prepared.
      ValueError: The name has a namespace.
    """

    name: str
    source: str
    target: str
    split: str = 'train'
    dev: str = 'validation'
    data_dir: str | None = None

    def __post_init__(self):
        check_sides(self.source, self.target)
        if _NAMESPACE.match(self.name):
            raise ValueError(
                f'name={self.name!r}: a namespace has code from elsewhere. Name a '
                'set of TFDS, or use huggingface(path=…).'
            )

    def splits(self):
        return list(self._builder.info.splits)

    def digest(self):
        info = self._builder.info
        sizes = [
            (name, split.num_bytes, split.shard_lengths)
            for name, split in info.splits.items()
        ]
        content = (info.full_name, sizes, self.split, self.source, self.target)
        return hex_digest(repr(content))

    @functools.cached_property
    def _builder(self) -> Any:
        builder = self._find()
        languages = builder.info.features or {}
        for language in (self.source, self.target):
            if language not in languages:
                known = ', '.join(languages)
                raise UserError(
                    f'data: {self.name} has no {language!r}. It has {known}.'
                )
        if not builder.is_prepared():
            self._prepare(builder)
        splits = builder.info.splits
        try:
            for split in (self.split, self.dev):
                splits[split].file_instructions  # noqa: B018 - raises on a bad split
        except ValueError as error:
            raise UserError(
                f'data: {self.name}: {_line(error)} The splits are '
                f'{", ".join(splits)}. To divide one, give split="train[:99%]" and '
                'dev="train[99%:]".'
            ) from None
        return builder

    def overlap(self, split, other):
        splits = self._builder.info.splits
        parts = (splits[x].file_instructions for x in (split, other))
        return any(_overlap(a, b) for a, b in itertools.product(*parts))

    def _find(self) -> Any:
        import absl.logging
        import importlib_resources  # noqa: F401 (TFDS needs it to prepare WMT)
        from google.protobuf.runtime_version import VersionError

        try:
            import tensorflow_datasets as tfds

            # Registers the translation sets.
            import tensorflow_datasets.translate  # noqa: F401
        except VersionError as error:  # as on Colab's CPU and GPU runtimes
            raise UserError(
                'data: tfds cannot be imported: protobuf is too old for '
                'tensorflow-metadata. Upgrade it and restart: pip install -U protobuf'
            ) from error

        # Hide warnings that the error below repeats in one line.
        verbosity = absl.logging.get_verbosity()
        absl.logging.set_verbosity(absl.logging.ERROR)
        try:
            with _own_features(tfds):
                builder = tfds.builder(self.name, data_dir=self.data_dir)
                if builder.is_prepared():
                    return builder
                # Not passed above, because TFDS rejects the argument for sets prepared
                # in another format.
                return tfds.builder(
                    self.name, data_dir=self.data_dir, file_format='array_record'
                )
        except Exception as error:  # invalid names and versions raise different errors
            raise UserError(
                f'data: tfds(name={self.name!r}): {_line(error)}'
            ) from error
        finally:
            absl.logging.set_verbosity(verbosity)

    def _prepare(self, builder: Any) -> None:
        try:
            _check_network(builder)
            builder.download_and_prepare()
        except Exception as error:  # the network, the archive, the disk
            command = (
                'import tensorflow_datasets as t, tensorflow_datasets.translate; '
                f"t.builder('{self.name}', file_format='array_record')"
                '.download_and_prepare()'
            )
            raise UserError(
                f'data: {self.name} is not in {builder.data_dir_root} and cannot be '
                f'prepared here: {_line(error)}. Many archives need: pip install '
                f'tensorflow. Or run python -c "{command}" on a machine with network '
                f'access, and copy the folder {builder.name} here.'
            ) from error

    def pairs(self, split):
        builder = self._builder
        is_tfrecord = builder.info.file_format.value == 'tfrecord'
        examples = _tfrecords if is_tfrecord else _array_records
        try:
            for example in examples(builder, split):
                yield _text(example[self.source]), _text(example[self.target])
        except Exception as error:  # different file formats raise different errors
            raise UserError(
                f'data: {builder.data_path}, split {split!r}, cannot be read: '
                f'{_line(error)}. If it is damaged, delete that folder to prepare it '
                'again.'
            ) from error


@contextlib.contextmanager
def _own_features(tfds: Any) -> Iterator[None]:
    """Makes TFDS reject feature classes of others.

    TFDS would import the module of each class that `features.json` names.
    """

    def cls_from_name(cls: Any, name: str) -> Any:
        if not name.startswith('tensorflow_datasets.'):
            raise ValueError(
                f'features.json names the feature class {quote(name)}, which is not '
                'part of TFDS, and whose module would be imported. Prepare the set '
                "with TFDS's own features"
            )
        return original(cls, name)

    base = tfds.features.FeatureConnector
    descriptor = vars(base)['cls_from_name']
    original = descriptor.__func__
    base.cls_from_name = classmethod(cls_from_name)
    try:
        yield
    finally:
        base.cls_from_name = descriptor


def _check_network(builder: Any) -> None:
    """Raises OSError if none of the set's hosts responds; TFDS would retry for minutes.

    Skips the check if there are downloads, which may suffice.
    """
    downloads = Path(builder.data_dir_root) / 'downloads'
    if any(path.is_file() for path in downloads.rglob('*')):
        return
    urls = {urlsplit(url).netloc: url for url in builder.url_infos or ()}
    failure = None
    for url in itertools.islice(urls.values(), _HOSTS):
        try:
            request = urllib.request.Request(url, method='HEAD')
            urllib.request.urlopen(request, timeout=_TIMEOUT).close()
            return
        except urllib.error.HTTPError:
            return  # the host responds
        except OSError as error:
            failure = error
    if failure:
        raise failure


def _array_records(builder: Any, split: str) -> Iterator[dict[str, bytes]]:
    records = builder.as_data_source(split)
    numbers = range(len(records))
    for start in numbers[::_CHUNK]:
        yield from records.__getitems__(numbers[start : start + _CHUNK])


def _tfrecords(builder: Any, split: str) -> Iterator[dict[str, bytes]]:
    import grain

    for part in builder.info.splits[split].file_instructions:
        records = iter(grain.experimental.TFRecordIterDataset(part.filename))
        for record in itertools.islice(records, part.skip, part.skip + part.take):
            yield builder.info.features.deserialize_example_np(record)


def _text(value: bytes) -> str:
    return plain_text(value.decode('utf-8'))


def _overlap(a: Any, b: Any) -> bool:
    a_end = a.skip + a.take
    b_end = b.skip + b.take
    return a.filename == b.filename and a.skip < b_end and b.skip < a_end


def _line(error: Exception) -> str:
    message = str(error) or repr(error)
    message = re.sub(r'^Failed to construct dataset .*?}": ', '', message)
    # TFDS suggests a similar name after listing hundreds of sets.
    message = re.sub(r'(?s)Available datasets:.*?(Did you mean|$)', r'\1', message)
    return reason(message)
