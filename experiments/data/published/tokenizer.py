"""A published checkpoint's tokenizer: pieces, with token numbers of its own."""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.data import checksums
from experiments.data.published import segmenters
from experiments.data.published.segmenters import Segmenter
from experiments.data.tokenizer import Tokenizer
from experiments.errors import UserError
from flaxformer_lite.special_tokens import SpecialTokens

# Beside the model of the source, which is where any run has its tokenizer.
_TARGET = 'tokenizer.target.model'
_VOCABULARY = 'vocabulary.json'
# A folder beside it: the small files of the checkpoint, as they were.
_FILES = 'published'


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What the numbers of tokens mean.

    Attributes:
      pieces: how each token is written; None for one that is no text, such as special
        tokens and rows of the embedding that no piece has.
      special_tokens: the model's.
      unknown: what stands for a piece that has no number.
      source_last: the tokens behind each source, of which the last ends it.
      source_first, target_first: the token before each source and before each target,
        such as its language; None for none.
      languages: the words for those of sources and of targets; '' for none.
      segmenter: what cuts texts into pieces, a key of `segmenters.KINDS`.
    """

    pieces: tuple[str | None, ...]
    special_tokens: SpecialTokens
    unknown: int
    source_last: tuple[int, ...]
    source_first: int | None = None
    target_first: int | None = None
    languages: tuple[str, str] = ('', '')
    segmenter: str = segmenters.SENTENCEPIECE

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The token of each piece."""
        return {piece: i for i, piece in enumerate(self.pieces) if piece is not None}

    def shown(self, token: int) -> str:
        """How a token is written; one that is no text by its name, or its number."""
        piece = self.pieces[token]
        if piece is None:
            return self._names.get(token, f'<{token}>')
        return piece

    @functools.cached_property
    def _names(self) -> dict[int | None, str]:
        """Of tokens that are no text and stand before or behind one."""
        special = self.special_tokens
        source, target = self.source_first, self.target_first
        names: dict[int | None, str] = dict.fromkeys(
            (source, target, special.start), '<s>'
        )
        names |= {special.padding: '<pad>', self.unknown: '<unk>', special.end: '</s>'}
        if any(self.languages):
            # mBART's stand behind sources, and in the place of the start token.
            source = self.source_last[-1] if source is None else source
            target = special.start if target is None else target
            names |= zip((source, target), self.languages, strict=True)
        return names

    def to_json(self) -> dict[str, Any]:
        """What `of_json` makes it of again."""
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, value: Any) -> 'Vocabulary':
        """Raises TypeError, KeyError or ValueError where it is none."""
        return cls(
            **value
            | {
                'pieces': tuple(value['pieces']),
                'source_last': tuple(value['source_last']),
                'languages': tuple(value['languages']),
                'special_tokens': SpecialTokens(**value['special_tokens']),
            }
        )


@dataclasses.dataclass(frozen=True)
class PublishedTokenizer(Tokenizer):
    """Text to the tokens that a published model was trained with, and back.

    What writes a special token in a text is text, but for a language that a text begins
    with, such as `>>fra<<`, where that is a piece.

    Attributes:
      model: what the vocabulary's segmenter cuts sources by, such as a serialized
        SentencePiece model.
      target_model: that of targets.
      vocabulary: the numbers of their pieces.
      files: the checkpoint's config and its tokenizer's files, name and content, with
        which Transformers opens what is trained on from it.
    """

    target_model: bytes
    vocabulary: Vocabulary
    files: tuple[tuple[str, bytes], ...] = ()

    @functools.cached_property
    def _of_sources(self) -> Segmenter:
        return segmenters.KINDS[self.vocabulary.segmenter](self.model)

    @functools.cached_property
    def _of_targets(self) -> Segmenter:
        return segmenters.KINDS[self.vocabulary.segmenter](self.target_model)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, of which some may be no piece."""
        return len(self.vocabulary.pieces)

    @property
    def special_tokens(self) -> SpecialTokens:
        """The model's."""
        return self.vocabulary.special_tokens

    @property
    def source_end(self) -> int | None:
        """The token that each source ends with; None for none."""
        last = self.vocabulary.source_last
        return last[-1] if last else None

    @property
    def forced_first(self) -> int | None:
        """The token that each target begins with; None for any."""
        return self.vocabulary.target_first

    @functools.cached_property
    def digest(self) -> str:
        """Of all that it is made of."""
        vocabulary = json.dumps(self.vocabulary.to_json()).encode()
        parts = (self.model, self.target_model, vocabulary)
        sums = ''.join(hashlib.sha256(part).hexdigest() for part in parts)
        return hashlib.sha256(sums.encode()).hexdigest()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each source, without `source_end`; a blank text has none."""
        rows = self._encode(self._of_sources, texts, self.vocabulary.source_first)
        last = list(self.vocabulary.source_last[:-1])
        return [row + last if row else row for row in rows]

    def encode_target(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each target, without start and end token."""
        return self._encode(self._of_targets, texts, self.vocabulary.target_first)

    def _encode(
        self,
        segmenter: Segmenter,
        texts: list[str],
        first: int | None,
    ) -> list[list[int]]:
        before = [] if first is None else [first]
        rows = []
        for text in texts:
            code, text = self._split_code(text)
            pieces = code + segmenter.encode(text if text.strip() else '')
            row = [self._number(piece) for piece in pieces]
            rows.append(before + row if row else row)
        return rows

    def _split_code(self, text: str) -> tuple[list[str], str]:
        """`>>fra<< A text.` → the piece that is a language, and what is after it."""
        code, end, rest = text.partition('<<')
        if code.startswith('>>') and end and code + end in self.vocabulary.numbers:
            return [code + end], rest
        return [], text

    def _number(self, piece: str) -> int:
        return self.vocabulary.numbers.get(piece, self.vocabulary.unknown)

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each row up to its end token; what is no piece is left out."""
        return [self._text(row) for row in ids]

    def _text(self, row: list[int]) -> str:
        pieces = []
        for i in map(int, row):
            if i == self.special_tokens.end:
                break
            piece = self.vocabulary.pieces[i]
            if piece is not None:
                pieces.append(piece)
        return self._of_targets.decode(pieces)

    def pieces(self, ids: list[int]) -> list[str]:
        """How each token is written; one that is no text by its name, or its number."""
        return [self.vocabulary.shown(token) for token in ids]

    def save(self, path: Path) -> None:
        """Writes its files beside each other, and their checksums for `load`."""
        paths = _paths(path)
        storage.write(paths[0], self.model)
        storage.write(paths[1], self.target_model)
        storage.write_json(paths[2], self.vocabulary.to_json())
        checksums.write(_sums(path), paths)
        folder = path.with_name(_FILES)
        folder.mkdir(exist_ok=True)
        for name, content in self.files:
            storage.write(folder / name, content)
        kept = [folder / name for name, _ in self.files]
        checksums.write(folder / checksums.SUMS, kept)


def load(path: Path) -> PublishedTokenizer:
    """The tokenizer that was saved.

    Raises:
      UserError: it is not there, or is not what was saved.
    """
    paths = _paths(path)
    wrong = checksums.damage(_sums(path), [file.name for file in paths])
    if wrong:
        raise UserError(
            f'{path} is damaged ({wrong}): restore it from a copy, or convert the '
            'checkpoint again'
        )
    try:
        vocabulary = Vocabulary.of_json(storage.read_json(paths[2]))
        source, target = [file.read_bytes() for file in paths[:2]]
        tokenizer = PublishedTokenizer(source, target, vocabulary, _read_files(path))
        tokenizer.encode_target(tokenizer.decode([]))
        tokenizer.encode([])
    except (OSError, RuntimeError, TypeError, KeyError, ValueError) as error:
        raise UserError(f'{path} cannot be read as a tokenizer: {error}') from None
    return tokenizer


def _read_files(path: Path) -> tuple[tuple[str, bytes], ...]:
    folder = path.with_name(_FILES)
    names = list(checksums.read(folder / checksums.SUMS))
    wrong = checksums.damage(folder / checksums.SUMS, names)
    if wrong:
        raise UserError(
            f'{folder} is damaged ({wrong}): restore it from a copy, or convert the '
            'checkpoint again'
        )
    return tuple((name, (folder / name).read_bytes()) for name in names)


def _paths(path: Path) -> list[Path]:
    return [path, path.with_name(_TARGET), path.with_name(_VOCABULARY)]


def _sums(path: Path) -> Path:
    return path.with_name(f'{path.name}.sha256')
