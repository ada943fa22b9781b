"""SentencePiece models that normalize text as a run does."""

import io
import itertools
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from experiments.data.tokenizers.base import normalize


def self_normalizing(model: bytes) -> bytes:
    """Returns a run's serialized model with the run's normalization inside.

    SentencePiece doesn't sort combining marks. A few that no character combines with
    their letter can keep an order that isn't NFC.
    """
    found = _parse(model)
    found.normalizer_spec.name = 'nfc'
    found.normalizer_spec.precompiled_charsmap = _compile(_rules())
    # Strips, and collapses runs of spaces.
    found.normalizer_spec.remove_extra_whitespaces = True
    return found.SerializeToString()


def _parse(model: bytes) -> Any:
    # The stub of the generated module doesn't list its messages.
    return sentencepiece_model_pb2.ModelProto.FromString(model)  # pyright: ignore


def _rules() -> dict[str, str]:
    rules = {'▁': '_'}
    for character in map(chr, range(sys.maxunicode + 1)):
        if character.isspace() and character != ' ':
            rules[character] = ' '
        elif unicodedata.normalize('NFD', character) != character:
            composed = normalize(character)
            for spelling in _spellings(character):
                if spelling != composed:
                    rules[spelling] = composed
    return rules


def _spellings(character: str) -> set[str]:
    """Returns the sequences that are canonically equivalent to a character.

    Marks may have any order that NFC sorts; the first may already be composed.
    """
    letter, *marks = unicodedata.normalize('NFD', character)
    found = {character}
    for order in itertools.permutations(marks):
        if normalize(letter + ''.join(order)) == normalize(character):
            for cut in range(len(marks) + 1):
                start = normalize(letter + ''.join(order[:cut]))
                found.add(start + ''.join(order[cut:]))
    return found


def _compile(rules: dict[str, str]) -> bytes:
    trained = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'rules.tsv'
        lines = [f'{_hex(old)}\t{_hex(new)}\n' for old, new in rules.items()]
        file.write_text(''.join(lines), 'utf-8')
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(['a']),
            model_writer=trained,
            model_type='char',
            vocab_size=5,
            normalization_rule_tsv=str(file),
            minloglevel=2,
        )
    return _parse(trained.getvalue()).normalizer_spec.precompiled_charsmap


def _hex(text: str) -> str:
    return ' '.join(f'{ord(character):X}' for character in text)
