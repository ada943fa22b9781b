"""Tokenizers, one per module."""

import dataclasses
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import registries, storage
from experiments.data.digest import hex_digest
from experiments.data.tokenizers.base import Progress, Tokenizer
from experiments.errors import UserError, user_errors
from flaxformer_lite.config.spec import Spec

if TYPE_CHECKING:  # translation needs no data source
    from experiments.data.sources.base import Pair, Source

_SAMPLE = 1_000_000  # pairs; more text hardly changes the merges and costs memory
_PROGRESS_INTERVAL = 8192  # pairs between progress reports
_MODEL = 'tokenizer.model'
_SIZE = 8  # bytes of the integer that stores the length of the first of two models


def make(spec: Spec) -> Tokenizer:
    """Makes the untrained tokenizer of a spec, or one per side."""
    entries = registries.entries('tokenizer', spec)
    with user_errors('tokenizer: '):
        sides = [entry.make(model=b'') for entry in entries]
        if len(sides) > 2:
            raise ValueError(
                f'{spec} lists {len(sides)} tokenizers. Give one, or one per side.'
            )
        if sides[-1].reads_vectors:
            raise ValueError(
                f'{spec} tokenizes sources only. Write [{spec}, characters].'
            )
        if len(sides) == 1:
            return sides[0]
        for entry, part in zip(entries, sides, strict=True):
            if type(part).save is not Tokenizer.save:
                raise ValueError(
                    f'{entry} cannot tokenize only one side. Give it alone.'
                )
        return Sides(*sides)


def train(
    tokenizer: Tokenizer,
    data: 'Source',
    cache: Path,
    progress: Progress = lambda done: None,
) -> Tokenizer:
    """Trains a tokenizer, or opens the same one from `cache`.

    If there are more than a million pairs, training uses evenly spaced ones. `progress`
    gets the number of pairs read so far.
    """
    key = hex_digest(f'{data.digest()} {tokenizer.digest} {_SAMPLE}')
    folder = cache / f'tokenizer-{key[:32]}'

    def texts():
        for pair in _sample(data.train(), _SAMPLE, progress):
            yield from pair

    def write(draft):
        (draft / _MODEL).write_bytes(tokenizer.train(texts()))

    storage.cache_folder(folder, write)
    with storage.as_user_error('read', folder):
        model = (folder / _MODEL).read_bytes()
    return tokenizer.opened(model)


def open_saved(spec: Spec, path: Path) -> Tokenizer:
    try:
        return make(spec).open(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f'{path} cannot be read as a tokenizer: {error}') from None


def _sample(
    pairs: Iterable['Pair'], limit: int, progress: Progress = lambda done: None
) -> 'list[Pair]':
    """Returns every pair, or every 2nd, 4th, …: at most `limit`."""
    sample = []
    stride = 1
    for i, pair in enumerate(pairs):
        if i % _PROGRESS_INTERVAL == 0:
            progress(i)
        if i % stride == 0:
            sample.append(pair)
            if len(sample) > limit:
                sample = sample[::2]
                stride *= 2
    return sample


def _attribute(path: str) -> Any:
    return property(attrgetter(path))


@dataclasses.dataclass(frozen=True)
class Sides(Tokenizer):
    """A tokenizer for each side: `[sentencepiece(vocab_size=8000), characters]`."""

    source: Tokenizer
    target: Tokenizer

    vocab_size = _attribute('target.vocab_size')
    special_tokens = _attribute('target.special_tokens')
    forced_first = _attribute('target.forced_first')
    source_vocab_size = _attribute('source.vocab_size')
    source_eos = _attribute('source.source_eos')
    reads_vectors = _attribute('source.reads_vectors')
    encode = _attribute('source.encode')
    encode_target = _attribute('target.encode_target')
    decode = _attribute('target.decode')
    pieces = _attribute('target.pieces')

    def __post_init__(self):
        super().__post_init__()
        if self.source.special_tokens != self.target.special_tokens:
            raise ValueError(
                f'{self.source} and {self.target} have different special tokens. '
                'Choose two with the same ones.'
            )

    @property
    def sides(self):
        return self.source, self.target

    @property
    def model(self) -> bytes:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _joined(self.source.model, self.target.model)

    @property
    def digest(self):
        return hex_digest(f'{self.source.digest} {self.target.digest}')

    def train(self, texts):
        every = list(texts)
        source = self.source.train(every[::2])
        target = self.target.train(every[1::2])
        return _joined(source, target)

    def opened(self, model):
        end = _SIZE + int.from_bytes(model[:_SIZE], 'little')
        source = self.source.opened(model[_SIZE:end])
        target = self.target.opened(model[end:])
        return dataclasses.replace(self, source=source, target=target)

    @property
    def samples(self):
        return self.source.samples or self.target.samples


def _joined(source: bytes, target: bytes) -> bytes:
    return len(source).to_bytes(_SIZE, 'little') + source + target
