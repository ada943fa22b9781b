"""Tokenizers of texts without a language: T5, Marian, Pegasus, T5Gemma."""

import dataclasses

from experiments.data.published.opened import Opened
from experiments.data.published.tokenizer import PublishedTokenizer
from experiments.errors import UserError

T5_MODEL = 'spiece.model'
GEMMA_MODEL = 'tokenizer.model'
# Of Pegasus: so many tokens stand behind padding and end, to train with.
_PEGASUS_OFFSET = 103
_PEGASUS_FIRST = 2


def read_t5(opened: Opened) -> PublishedTokenizer:
    """T5's, mT5's and umT5's: one model, whose pieces have their own numbers."""
    model = opened.model(T5_MODEL)
    model.check_end(opened.request.special_tokens.end)
    unknown = model.processor.unk_id()
    vocabulary = opened.vocabulary(model.path, model.pieces(), unknown)
    return PublishedTokenizer(model.data, model.data, vocabulary)


def read_pegasus(opened: Opened) -> PublishedTokenizer:
    """Pegasus': padding, end, tokens that only masked texts have, then the pieces."""
    model = opened.model(T5_MODEL)
    model.check_end(opened.request.special_tokens.end)
    offset = opened.settings.get('offset', _PEGASUS_OFFSET)
    if type(offset) is not int or offset < 0:
        raise UserError(
            f'{opened.request.folder}/tokenizer_config.json has offset={offset!r}, '
            'which is no number of tokens'
        )
    first: list[str | None] = [None] * (_PEGASUS_FIRST + offset)
    pieces = first + model.pieces()[_PEGASUS_FIRST:]
    unknown = model.processor.unk_id() + offset
    vocabulary = opened.vocabulary(model.path, pieces, unknown)
    return PublishedTokenizer(model.data, model.data, vocabulary)


def read_gemma(opened: Opened) -> PublishedTokenizer:
    """T5Gemma's: sources have a start token, and no end token, if files say so."""
    model = opened.model(GEMMA_MODEL)
    special = opened.request.special_tokens
    model.check_end(special.end)
    unknown = model.processor.unk_id()
    vocabulary = opened.vocabulary(model.path, model.pieces(), unknown)
    has_start = opened.settings.get('add_bos_token', True)
    has_end = opened.settings.get('add_eos_token', False)
    vocabulary = dataclasses.replace(
        vocabulary,
        source_first=model.processor.bos_id() if has_start else None,
        source_last=(special.end,) if has_end else (),
    )
    return PublishedTokenizer(model.data, model.data, vocabulary)


def read_marian(opened: Opened) -> PublishedTokenizer:
    """Marian's: a model each for source and target, and numbers in vocab.json."""
    source = opened.model('source.spm')
    target = opened.model('target.spm')
    numbers = opened.numbers('vocab.json')
    pieces: list[str | None] = [None] * opened.request.rows
    for piece, number in numbers.items():
        pieces[number] = piece
    path = opened.request.folder / 'vocab.json'
    vocabulary = opened.vocabulary(path, pieces, numbers['<unk>'])
    return PublishedTokenizer(source.data, target.data, vocabulary)
