"""Text to ids and back: one file a tokenizer, chosen by a spec string."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import storage
from experiments.data.digest import hex_digest
from experiments.data.tokenizers.base import Progress, Tokenizer, sums_file
from experiments.errors import UserError, user_errors, warn
from experiments.kinds import TOKENIZERS
from flaxformer_lite.config import spec as specs
from flaxformer_lite.config.spec import Spec

if TYPE_CHECKING:  # to translate takes no source
    from experiments.data.sources.base import Pair, Source

_SAMPLE = 1_000_000  # pairs; more text moves the merges little and costs memory
_COUNTED = 8192  # pairs read between two reports of progress
_MODEL = 'tokenizer.model'
_SIZE = 8  # bytes of the number that says how long the first of two models is


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
    data: 'Source',
    cache: Path,
    progress: Progress = lambda done: None,
) -> Tokenizer:
    """A tokenizer trained on text, made once for each text and kept in `cache`.

    Of more than a million pairs, pairs spaced evenly over all of them are used.

    Args:
      progress: is told how many pairs are read so far, now and then; what takes time
        after that, the merging of pieces, does not say how far it is.

    Raises:
      UserError: as the tokenizer's own `train`.
    """
    key = hex_digest(f'{data.digest()} {tokenizer.digest} {_SAMPLE}')
    folder = cache / f'tokenizer-{key[:32]}'

    def texts():
        for pair in _sample(data.train(), _SAMPLE, progress):
            yield from pair

    def write(draft):
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


def damage(path: Path) -> str:
    """What is wrong with a saved tokenizer; '' for nothing, or without a sum."""
    sums = sums_file(path)
    return storage.damage(sums) if storage.exists(sums) else ''


def check_same(model: bytes, path: Path) -> None:
    """Refuses a tokenizer of other text than the one that was saved, if one was.

    To save it again mends a damaged file.

    Raises:
      UserError: the tokenizer is another one.
    """
    saved = storage.read_sums(sums_file(path)).get(path.name)
    if saved not in (None, hex_digest(model)):
        raise UserError(
            f'the training text is not what {path.parent} was begun with: its '
            'tokenizer differs. Restore the text, or begin a new run with another '
            '--workdir'
        )
    if damage(path):
        warn(f'{path} is damaged ({damage(path)}): it is written anew')


def _sample(
    pairs: Iterable['Pair'],
    limit: int,
    progress: Progress = lambda done: None,
) -> 'list[Pair]':
    """Every pair, or every second, fourth, …, so that at most `limit` remain."""
    sample = []
    stride = 1
    for i, pair in enumerate(pairs):
        if i % _COUNTED == 0:
            progress(i)
        if i % stride == 0:
            sample.append(pair)
            if len(sample) > limit:
                sample = sample[::2]
                stride *= 2
    return sample


@dataclasses.dataclass(frozen=True)
class Sides(Tokenizer):
    """Two as one, `[sentencepiece(vocab_size=8000), characters]`: each of its side.

    Its own ids, in `vocab_size`, `decode` and `pieces`, are those of targets.
    """

    source: Tokenizer
    target: Tokenizer

    def __post_init__(self):
        super().__post_init__()
        for part in self.sides:
            if type(part).save is not Tokenizer.save:
                name = type(part).__name__.lower()
                raise ValueError(f'{name} cannot be of one side: give it alone')
        if self.source.special_tokens != self.target.special_tokens:
            raise ValueError(
                f'{self.source} and {self.target} have other special tokens: give two '
                'with the same'
            )

    @property
    def sides(self):
        return self.source, self.target

    @property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.target.vocab_size

    @property
    def source_vocab_size(self):
        return self.source.vocab_size

    @property
    def model(self) -> bytes:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _joined(self.source.model, self.target.model)

    @property
    def special_tokens(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.target.special_tokens

    @property
    def source_end(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.source.source_end

    @property
    def reads_vectors(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.source.reads_vectors

    @property
    def forced_first(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.target.forced_first

    @property
    def digest(self):
        return hex_digest(f'{self.source.digest} {self.target.digest}')

    def train(self, texts):
        """Of a source, its target, the next source, …"""
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

    def encode(self, texts):
        return self.source.encode(texts)

    def encode_target(self, texts):
        return self.target.encode_target(texts)

    def decode(self, ids):
        return self.target.decode(ids)

    def pieces(self, ids):
        return self.target.pieces(ids)


def _joined(source: bytes, target: bytes) -> bytes:
    return len(source).to_bytes(_SIZE, 'little') + source + target
