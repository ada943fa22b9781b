"""Text to ids and back: one file a tokenizer, chosen by a spec string."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from experiments import storage
from experiments.data.sources.base import Source
from experiments.data.tokenizers._saved import check_same, damage
from experiments.data.tokenizers._sides import Sides
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, user_errors
from experiments.kinds import TOKENIZERS
from flaxformer_lite.config import spec as specs
from flaxformer_lite.config.spec import Spec

__all__ = ['check_same', 'damage', 'make', 'open_saved', 'train']

_SAMPLE = 1_000_000  # pairs; more text moves the merges little and costs memory
_COUNTED = 8192  # pairs read between two reports of progress
_MODEL = 'tokenizer.model'


def make(spec: Spec) -> Tokenizer:
    """What the config field `tokenizer` names, untrained: one, or one of each side.

    Raises:
      UserError: the spec, its name or one of its arguments is wrong.
    """
    with user_errors('tokenizer: '):
        made = [TOKENIZERS.make(x, model=b'') for x in specs.entries(spec)]
        if len(made) > 2:
            raise ValueError(f'{spec} are {len(made)}: give one, or one of each side')
        if made[-1].reads_vectors:
            raise ValueError(f'{spec} is of sources: write [{spec}, characters]')
        return Sides(*made) if len(made) == 2 else made[0]


def train(
    tokenizer: Tokenizer,
    data: Source,
    cache: Path,
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """A tokenizer trained on text, made once for each text and kept in `cache`.

    Of more than a million pairs, pairs spaced evenly over all of them are used.

    Args:
      progress: is told how many pairs are read so far, now and then; what takes time
        after that, the merging of pieces, does not say how far it is.

    Raises:
      UserError: as the tokenizer's own `train`.
    """
    key = f'{data.digest()} {tokenizer.digest} {_SAMPLE}'
    folder = cache / f'tokenizer-{hashlib.sha256(key.encode()).hexdigest()[:32]}'

    def texts() -> Iterator[str]:
        for pair in _sample(data.train(), _SAMPLE, progress):
            yield from pair

    def write(draft: Path) -> None:
        (draft / _MODEL).write_bytes(tokenizer.train(texts()))

    storage.cache_folder(folder, write)
    return tokenizer.opened((folder / _MODEL).read_bytes())


def open_saved(spec: Spec, path: Path) -> Tokenizer:
    """The trained tokenizer of a run.

    Args:
      spec: of the run's config.
      path: its file in the run's directory.

    Raises:
      UserError: it is not there, or it is not what was saved.
    """
    wrong = damage(path)
    if wrong:
        raise UserError(
            f'{path} is damaged ({wrong}): restore it from a copy; or start its run '
            'again with the same command and training text, or convert its checkpoint '
            'again'
        )
    try:
        return make(spec).open(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f'{path} cannot be read as a tokenizer: {error}') from None


def _sample(
    pairs: Iterable[tuple[str, str]],
    limit: int,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[str, str]]:
    """Every pair, or every second, fourth, …, so that at most `limit` remain."""
    sample = []
    stride = 1
    for i, pair in enumerate(pairs):
        if progress is not None and i % _COUNTED == 0:
            progress(i)
        if i % stride == 0:
            sample.append(pair)
            if len(sample) > limit:
                sample = sample[::2]
                stride *= 2
    return sample
