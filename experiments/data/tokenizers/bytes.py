"""UTF-8 bytes (Xue et al., ByT5, 2022)."""

import dataclasses
from typing import ClassVar

from experiments.data.tokenizers._counted import SPECIAL
from experiments.data.tokenizers.base import UNK, Tokenizer, normalize, text_ids
from experiments.errors import check_list

_FIRST = UNK + 1  # the id of byte 0
_PIECES = [*SPECIAL, *(f'<0x{byte:02x}>' for byte in range(256))]
_PIECES[_FIRST + ord(' ') : _FIRST + 127] = ['▁', *map(chr, range(ord('!'), 127))]


@dataclasses.dataclass(frozen=True)
class Bytes(Tokenizer):
    """Byte b of the NFC text in UTF-8 has the id b + 4. Needs no training."""

    vocab_size: ClassVar[int] = _FIRST + 256
    model: bytes = dataclasses.field(default=b'', repr=False)

    def train(self, texts):
        return b''

    def encode(self, texts):
        check_list('texts', texts)
        rows = [normalize(text).encode() for text in texts]
        return [[_FIRST + byte for byte in row] for row in rows]

    def decode(self, ids):
        """Returns the text of each row; invalid UTF-8 becomes `'\\ufffd'`."""
        texts = []
        for row in ids:
            text = bytes(i - _FIRST for i in text_ids(row) if i != UNK)
            texts.append(text.decode(errors='replace'))
        return texts

    def pieces(self, ids):
        return [_PIECES[int(i)] for i in ids]
