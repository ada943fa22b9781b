"""Text to pieces and back, in each way that published tokenizers have."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import regex
import sentencepiece

SENTENCEPIECE, BYTE_LEVEL, BYTES = 'sentencepiece', 'byte_level', 'bytes'
_SPACE = '▁'
# GPT-2's: ends of English words, letters, digits, signs, each with a space before it,
# and white space.
_WORDS = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_REMEMBERED = 100_000  # words, whose merges take the time


class Segmenter(Protocol):
    """Cuts a text into pieces, and puts them together again."""

    def encode(self, text: str) -> list[str]:
        """The pieces of a text."""
        ...

    def decode(self, pieces: Sequence[str]) -> str:
        """The text of pieces."""
        ...


class SentencePiece:
    """A serialized SentencePiece model. Raises RuntimeError where it is none."""

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def encode(self, text: str) -> list[str]:
        """Normalised as the model says."""
        return self._processor.encode(text, out_type=str)

    def decode(self, pieces: Sequence[str]) -> str:
        """Without blanks at its ends."""
        text = self._processor.decode_pieces(list(pieces))
        # A piece that this model does not have comes back as it is, with its sign.
        return text.replace(_SPACE, ' ').strip()


class ByteLevel:
    """Byte-pair encoding of UTF-8 within words, as GPT-2 has it (Radford et al. 2019).

    A byte is written as one visible character. The pair of pieces that comes first in
    the list of merges is merged wherever it stands, until no pair is in the list.
    """

    def __init__(self, merges: bytes):
        """Of a line `left right` for each merge; another line raises ValueError."""
        self._ranks: dict[tuple[str, str], int] = {}
        for rank, line in enumerate(merges.decode().splitlines()):
            left, right = line.split(' ')
            self._ranks.setdefault((left, right), rank)
        self._remembered: dict[str, list[str]] = {}

    def encode(self, text: str) -> list[str]:
        """Any text has pieces, spaces and all."""
        return [piece for word in _WORDS.findall(text) for piece in self._cut(word)]

    def _cut(self, word: str) -> list[str]:
        pieces = self._remembered.get(word)
        if pieces is None:
            letters = byte_letters()
            pieces = self._merged([letters[byte] for byte in word.encode()])
            if len(self._remembered) < _REMEMBERED:
                self._remembered[word] = pieces
        return pieces

    def _merged(self, pieces: list[str]) -> list[str]:
        while len(pieces) > 1:
            first = min(itertools.pairwise(pieces), key=self._rank)
            if first not in self._ranks:
                break
            pieces = _merge(pieces, first)
        return pieces

    def _rank(self, pair: tuple[str, str]) -> float:
        return self._ranks.get(pair, math.inf)

    def decode(self, pieces: Sequence[str]) -> str:
        """As it is; what is no UTF-8 is U+FFFD."""
        bytes_of = _bytes_of_letters()
        found = bytearray()
        for piece in pieces:
            if all(letter in bytes_of for letter in piece):
                found += bytes(bytes_of[letter] for letter in piece)
            else:  # a token that somebody has added
                found += piece.encode()
        return found.decode(errors='replace')


def _merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """The pieces with a pair merged wherever it stands, from the left."""
    merged = []
    i = 0
    while i < len(pieces):
        width = 2 if tuple(pieces[i : i + 2]) == pair else 1
        merged.append(''.join(pieces[i : i + width]))
        i += width
    return merged


@functools.cache
def byte_letters() -> list[str]:
    """How GPT-2 writes each byte: as Latin-1 where that shows it, else from U+0100."""
    shown = {*range(ord('!'), ord('~') + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


@functools.cache
def _bytes_of_letters() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(byte_letters())}


class Bytes:
    """A piece for each byte of UTF-8, written as in Latin-1 (ByT5, Xue et al. 2022)."""

    def __init__(self, model: bytes):
        """Of nothing."""

    def encode(self, text: str) -> list[str]:
        """Any text has pieces, spaces and all."""
        return list(text.encode().decode('latin-1'))

    def decode(self, pieces: Sequence[str]) -> str:
        """As it is; what is no UTF-8 is left out."""
        return ''.join(pieces).encode('latin-1').decode(errors='ignore')


# What reads the file of a tokenizer's model, by the word in its vocabulary.
KINDS: dict[str, Callable[[bytes], Segmenter]] = {
    SENTENCEPIECE: SentencePiece,
    BYTE_LEVEL: ByteLevel,
    BYTES: Bytes,
}
