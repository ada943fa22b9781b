"""Vectors instead of a source's text."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from experiments import storage
from experiments.data.digest import hex_digest
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, check_list, reason
from flaxformer_lite import validation


class _About(msgspec.Struct):
    features: Annotated[int, msgspec.Meta(ge=1)]
    sha256: str


@dataclasses.dataclass(frozen=True)
class Arrays(Tokenizer):
    """A tokenizer whose sources name arrays: `[arrays(path="frames.npz"), characters]`.

    `numpy.savez(path, **{name: array, …})` writes the file. Arrays are numeric (length,
    features), with the same number of features. The model multiplies them by its
    embedding matrix. Vectors whose squares sum to about 1 have the scale of a token.

    Attributes:
      path: The `.npz` file; `~` is the home directory.
      model: JSON with the number of features and the checksum of the file.
    """

    path: str
    model: bytes = dataclasses.field(default=b'', repr=False)
    source_eos = None
    reads_vectors = True

    @functools.cached_property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.model:
            return json.loads(self.model)['features']
        with self._archive() as archive:
            return self._array(archive, min(archive)).shape[1]

    def opened(self, model):
        msgspec.json.decode(model, type=_About)
        return super().opened(model)

    @property
    def dtype(self):
        return f'({self.vocab_size},)float32'

    @property
    def digest(self):
        return hex_digest(f'{super().digest} {self._sum}')

    @property
    def _file(self) -> Path:
        return Path(self.path).expanduser()

    @functools.cached_property
    def _sum(self) -> str:
        return storage.sha256(self._file)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            with self._damage():
                # Opened here, because NumPy does not close files that it cannot read.
                file = stack.enter_context(self._file.open('rb'))
                found = np.load(file)
                if not isinstance(found, np.lib.npyio.NpzFile) or not found.files:
                    raise ValueError('it is not an .npz file of arrays')
                stack.enter_context(found)
            yield found

    @contextlib.contextmanager
    def _damage(self, part: str = '') -> Iterator[None]:
        try:
            yield
        except Exception as error:
            cause = getattr(error, 'strerror', None) or reason(error)
            raise self._error(f'{part} cannot be read: {cause}') from None

    def _error(self, problem: str) -> UserError:
        return UserError(f'tokenizer: arrays: {self.path}{problem}')

    def _array(self, archive: Any, name: str, features: int | None = None) -> Any:
        with self._damage(f', array {name!r}:'):
            found = archive[name]
        is_array = isinstance(found, np.ndarray)
        is_matrix = is_array and found.ndim == 2 and features in (None, found.shape[1])
        if not is_matrix or not np.issubdtype(found.dtype, np.number):
            kind = f'{found.dtype} {found.shape}' if is_array else 'not an array'
            raise self._error(
                f', array {name!r}: it is {kind}. Give numbers of shape (length, '
                f'{features or "features"}).'
            )
        return found

    def train(self, texts):
        about = {'features': self.vocab_size, 'sha256': self._sum}
        return json.dumps(about).encode()

    def encode(self, texts):
        check_list('texts', texts)
        if json.loads(self.model)['sha256'] != self._sum:
            raise self._error(' has changed since the run was trained. Restore it.')
        with self._archive() as archive:
            return [self._vectors(archive, text.strip()) for text in texts]

    def _vectors(self, archive: Any, name: str) -> np.ndarray:
        if not name:
            return np.zeros((0, self.vocab_size), np.float32)
        if name not in archive:
            hint = validation.did_you_mean(name, archive.files)
            raise self._error(f' has no array {validation.quote(name)}{hint}')
        found = self._array(archive, name, self.vocab_size)
        vectors = found.astype(np.float32)
        if not (np.isfinite(vectors).all() and vectors.any(1).all()):
            raise self._error(
                f', array {name!r}: a vector is not finite or all zeros, which means '
                'padding. To keep zeros, add a feature that is always 1.'
            )
        return vectors

    def pieces(self, ids):
        return [str(i) for i in range(len(ids))]
