"""The tokenizer in the folder of a checkpoint, by what its family writes there."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from experiments.data.published import byte_level, multilingual, plain
from experiments.data.published.opened import Opened, Request
from experiments.data.published.tokenizer import PublishedTokenizer
from experiments.errors import UserError


def read(request: Request) -> PublishedTokenizer:
    """The tokenizer of a checkpoint.

    Raises:
      UserError: a file is not there, damaged or of another kind, or it does not fit
        the model; a language is not given, or is not one of the checkpoint's.
    """
    opened = Opened(request)
    reader = _reader(opened)
    if not reader.takes_languages and (request.source or request.target):
        raise UserError(
            f'--source and --target are for checkpoints that write languages as '
            f'tokens, and model_type={request.model_type} has none: leave them out'
        )
    if not reader.instead or not opened.holds(reader.instead):
        for name in reader.files:
            _check_there(opened, name, reader)
    tokenizer = reader.read(opened)
    languages = (request.source, request.target)
    return dataclasses.replace(
        tokenizer,
        vocabulary=dataclasses.replace(tokenizer.vocabulary, languages=languages),
        files=opened.contents((*_KEPT, *reader.files)),
    )


# Of a folder, where they are there, beside the tokenizer's own.
_KEPT = (
    'config.json',
    'generation_config.json',
    'tokenizer_config.json',
    'special_tokens_map.json',
    'added_tokens.json',
    'tokenizer.json',
    'vocab.json',
)


class _Reader(NamedTuple):
    """How a family's tokenizer is read.

    Attributes:
      read: what reads it.
      files: of which it is.
      takes_languages: whether languages are tokens before source and target.
      instead: one file that may stand in their place.
    """

    read: Callable[[Opened], PublishedTokenizer]
    files: tuple[str, ...]
    takes_languages: bool = False
    instead: str = ''


_READERS = {
    'bart': _Reader(
        byte_level.read_bart,
        (byte_level.NUMBERS, byte_level.MERGES),
        instead=byte_level.TOGETHER,
    ),
    't5': _Reader(plain.read_t5, (plain.T5_MODEL,)),
    'mt5': _Reader(plain.read_t5, (plain.T5_MODEL,)),
    'umt5': _Reader(plain.read_t5, (plain.T5_MODEL,)),
    'pegasus': _Reader(plain.read_pegasus, (plain.T5_MODEL,)),
    't5gemma': _Reader(plain.read_gemma, (plain.GEMMA_MODEL,)),
    't5gemma2': _Reader(plain.read_gemma, (plain.GEMMA_MODEL,)),
    'marian': _Reader(plain.read_marian, ('source.spm', 'target.spm', 'vocab.json')),
    'mbart': _Reader(multilingual.read_mbart, (multilingual.FAIRSEQ_MODEL,), True),
    'm2m_100': _Reader(multilingual.read_m2m100, (multilingual.FAIRSEQ_MODEL,), True),
}
MODEL_TYPES = tuple(_READERS)
# Of a class that another family than its own has, too.
_OF_CLASS = {'ByT5Tokenizer': _Reader(byte_level.read_byt5, ())}


def _reader(opened: Opened) -> _Reader:
    model_type = opened.request.model_type
    if model_type not in _READERS:
        raise UserError(
            f'{opened.request.folder}: the tokenizer of model_type={model_type} '
            f'cannot be converted, only those of {", ".join(MODEL_TYPES)}'
        )
    return _OF_CLASS.get(opened.tokenizer_class, _READERS[model_type])


def _check_there(opened: Opened, name: str, reader: _Reader) -> None:
    if opened.holds(name):
        return
    request = opened.request
    found = sorted({*request.folder.glob('*token*'), *request.folder.glob('*.txt')})
    others = ', '.join(file.name for file in found if file.suffix != '.safetensors')
    there = f'; {others} cannot stand in its place' if others else ''
    raise UserError(
        f'{request.folder} holds no {name}, and the tokenizer of '
        f'model_type={request.model_type} is {" and ".join(reader.files)}{there}: '
        'copy it from where the checkpoint was published'
    )
