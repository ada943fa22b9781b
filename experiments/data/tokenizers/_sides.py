"""Two tokenizers as one: the first of sources, the second of targets."""

import dataclasses
import hashlib

from experiments.data.tokenizers.base import Tokenizer

_SIZE = 8  # bytes of the number that says how long the first model is


@dataclasses.dataclass(frozen=True)
class Sides(Tokenizer):
    """`[sentencepiece(vocab_size=8000), characters]`: each reads its side alone.

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
        both = f'{self.source.digest} {self.target.digest}'
        return hashlib.sha256(both.encode()).hexdigest()

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
