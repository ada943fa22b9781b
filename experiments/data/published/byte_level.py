"""Tokenizers of UTF-8's bytes: BART's byte-level BPE, and ByT5's bytes themselves."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from experiments.data.published import segmenters
from experiments.data.published.opened import Opened
from experiments.data.published.tokenizer import PublishedTokenizer
from experiments.errors import UserError

NUMBERS, MERGES, TOGETHER = 'vocab.json', 'merges.txt', 'tokenizer.json'
_BYT5_FIRST, _BYT5_UNKNOWN = 3, 2
_BYTES = 256


class _Bpe(NamedTuple):
    """What byte-level BPE is made of.

    Attributes:
      path: of the file with the numbers.
      numbers: of pieces.
      merges: pairs of pieces, the first to be merged first.
    """

    path: Path
    numbers: dict[str, int]
    merges: list[tuple[str, str]]


def read_bart(opened: Opened) -> PublishedTokenizer:
    """BART's: a start token before each text, spaces and all as they are.

    Published folders have vocab.json and merges.txt, and those that Transformers 5 has
    written tokenizer.json.
    """
    _check_no_prefix(opened)
    bpe = _read_bpe(opened)
    numbers = opened.check_numbers(bpe.path, bpe.numbers)
    _check_pieces(bpe)
    if '<s>' not in numbers:
        raise UserError(f'{bpe.path} has no piece <s>, with which texts begin')
    first = numbers['<s>']
    pieces: list[str | None] = [None] * opened.request.rows
    for piece, number in numbers.items():
        pieces[number] = None if piece == '<s>' else piece
    vocabulary = dataclasses.replace(
        opened.vocabulary(bpe.path, pieces, numbers['<unk>']),
        source_first=first,
        target_first=first,
        segmenter=segmenters.BYTE_LEVEL,
    )
    model = ''.join(f'{left} {right}\n' for left, right in bpe.merges).encode()
    return PublishedTokenizer(model, model, vocabulary)


def _check_no_prefix(opened: Opened) -> None:
    if opened.settings.get('add_prefix_space'):
        raise UserError(
            f'{opened.request.folder}/tokenizer_config.json has add_prefix_space=true, '
            'by which texts begin with a space, and BART was not trained so: remove it'
        )


def _read_bpe(opened: Opened) -> _Bpe:
    folder = opened.request.folder
    if opened.holds(NUMBERS) and opened.holds(MERGES):
        numbers = opened.read_json(NUMBERS)
        lines = opened.read_lines(MERGES)
        given: Any = [
            line for line in lines if line and not line.startswith('#version')
        ]
        path, of_merges = folder / NUMBERS, folder / MERGES
    else:
        numbers, given = _read_together(opened)
        path = of_merges = folder / TOGETHER
    # What masked texts have; the row is one more than some checkpoints have.
    numbers = {piece: i for piece, i in numbers.items() if piece != '<mask>'}
    return _Bpe(path, numbers, [_pair(merge, of_merges) for merge in given])


def _read_together(opened: Opened) -> tuple[dict[str, Any], list[Any]]:
    """Numbers and merges of tokenizer.json.

    Raises:
      UserError: it is none of byte-level BPE, or cuts texts otherwise than BART does.
    """
    path = opened.request.folder / TOGETHER
    content = opened.read_json(TOGETHER)
    parts = {name: content.get(name) or {} for name in ('model', 'pre_tokenizer')}
    kinds = [part.get('type') for part in parts.values() if isinstance(part, dict)]
    model = parts['model']
    if kinds != ['BPE', 'ByteLevel'] or content.get('normalizer'):
        raise UserError(
            f'{path} is no byte-level BPE, which the tokenizer of '
            f'model_type={opened.request.model_type} is'
        )
    if parts['pre_tokenizer'].get('add_prefix_space'):
        raise UserError(
            f'{path} has pre_tokenizer.add_prefix_space=true, by which texts begin '
            'with a space, and BART was not trained so: set it to false'
        )
    numbers, merges = model.get('vocab'), model.get('merges')
    if not isinstance(numbers, dict) or not isinstance(merges, list):
        raise UserError(f'{path} has no model.vocab and model.merges')
    return numbers, merges


def _pair(merge: Any, path: Path) -> tuple[str, str]:
    """Two pieces, which files have as one text or as two."""
    pair = merge.split(' ') if isinstance(merge, str) else merge
    if not isinstance(pair, list) or [type(piece) for piece in pair] != [str, str]:
        raise UserError(f'{path} has the merge {merge!r}, which is not of two pieces')
    return pair[0], pair[1]


def _check_pieces(bpe: _Bpe) -> None:
    """Refuses numbers that lack a piece that a text may have."""
    needed = [*segmenters.byte_letters(), *map(''.join, bpe.merges)]
    for piece in needed:
        if piece not in bpe.numbers:
            raise UserError(
                f'{bpe.path} has no number for the piece {piece}, which texts may '
                'have: it is cut short, or the merges are of another checkpoint'
            )


def read_byt5(opened: Opened) -> PublishedTokenizer:
    """ByT5's: its pieces are all bytes, so that no file has to say them."""
    special = opened.request.special_tokens
    first: list[str | None] = [None] * _BYT5_FIRST
    pieces = first + [chr(byte) for byte in range(_BYTES)]
    config = opened.request.folder / 'config.json'
    if max(special.padding, special.end) >= _BYT5_FIRST:
        raise UserError(
            f'{config} has pad_token_id={special.padding} and '
            f'eos_token_id={special.end}, and ByT5 has 0 and 1: config and tokenizer '
            'are of two checkpoints'
        )
    vocabulary = opened.vocabulary(config, pieces, _BYT5_UNKNOWN)
    vocabulary = dataclasses.replace(vocabulary, segmenter=segmenters.BYTES)
    return PublishedTokenizer(b'', b'', vocabulary)
