"""The tokenizer in the folder of a checkpoint, by what its family writes there."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from experiments.command_line.errors import UserError
from experiments.data.published.tokenizer import PublishedTokenizer, Vocabulary
from experiments.storage import files
from flaxformer_lite.special_tokens import SpecialTokens


class Request(NamedTuple):
    """What of a checkpoint its tokenizer has to fit.

    Attributes:
      folder: where its files are.
      model_type: the word of its config.json.
      rows: of the embedding.
      special_tokens: of its config.json.
      source, target: the languages, for families that write them as tokens; '' for
        none.
    """

    folder: Path
    model_type: str
    rows: int
    special_tokens: SpecialTokens
    source: str = ''
    target: str = ''


def read(request: Request) -> PublishedTokenizer:
    """The tokenizer of a checkpoint.

    Raises:
      UserError: a file is not there, damaged or of another kind, or it does not fit
        the model.
    """
    if request.model_type not in _READERS:
        names = ', '.join(_READERS)
        raise UserError(
            f'{request.folder}: the tokenizer of model_type={request.model_type} '
            f'cannot be converted, only those of {names}'
        )
    reader = _READERS[request.model_type]
    if not reader.takes_languages and (request.source or request.target):
        raise UserError(
            f'--source and --target are for checkpoints that write languages as '
            f'tokens, and model_type={request.model_type} has none: leave them out'
        )
    return reader.read(request)


def _read_plain(request: Request) -> PublishedTokenizer:
    """T5's: one model, whose pieces have their own numbers."""
    path = request.folder / 'spiece.model'
    model, processor = _model(request, path)
    pieces = _pieces(processor)
    _check_end(path, processor, request)
    vocabulary = _vocabulary(request, path, pieces, processor.unk_id())
    return PublishedTokenizer(model, model, vocabulary)


def _check_end(
    path: Path, processor: sentencepiece.SentencePieceProcessor, request: Request
) -> None:
    end = request.special_tokens.end
    if processor.eos_id() != end:
        raise UserError(
            f'{path} has the end token {processor.eos_id()}, and config.json has '
            f'eos_token_id={end}: they are of two checkpoints'
        )


def _read_marian(request: Request) -> PublishedTokenizer:
    """Marian's: a model each for source and target, and numbers in vocab.json."""
    source, _ = _model(request, request.folder / 'source.spm')
    target, _ = _model(request, request.folder / 'target.spm')
    path = request.folder / 'vocab.json'
    numbers = _numbers(request, path)
    unknown = numbers.pop('<unk>', None)
    if unknown is None:
        raise UserError(f'{path} has no piece <unk>, which stands for unknown ones')
    if numbers.get('</s>') != request.special_tokens.end:
        raise UserError(
            f'{path} has the end token {numbers.get("</s>")}, and config.json has '
            f'eos_token_id={request.special_tokens.end}: they are of two checkpoints'
        )
    pieces: list[str | None] = [None] * request.rows
    for piece, number in numbers.items():
        pieces[number] = piece
    return PublishedTokenizer(
        source, target, _vocabulary(request, path, pieces, unknown)
    )


def _numbers(request: Request, path: Path) -> dict[str, int]:
    """A file that has a number for each piece."""
    _check_there(request, path)
    numbers = files.read_json(path)
    if not isinstance(numbers, dict):
        raise UserError(f'{path} holds no JSON object')
    for piece, number in numbers.items():
        if type(number) is not int or not 0 <= number < request.rows:
            raise UserError(
                f'{path} has the number {files.shown(number)} for '
                f'{files.shown(piece)}, which is none of the {request.rows} rows of '
                'the model'
            )
    if len(set(numbers.values())) < len(numbers):
        raise UserError(f'{path} has one number for two pieces')
    return numbers


def _model(
    request: Request, path: Path
) -> tuple[bytes, sentencepiece.SentencePieceProcessor]:
    """A SentencePiece model, as bytes and parsed."""
    _check_there(request, path)
    try:
        model = path.read_bytes()
        return model, sentencepiece.SentencePieceProcessor(model_proto=model)
    except (OSError, RuntimeError) as error:
        raise UserError(f'{path} is no whole SentencePiece model: {error}') from None


def _check_there(request: Request, path: Path) -> None:
    if files.exists(path):
        return
    reader = _READERS[request.model_type]
    found = sorted({*request.folder.glob('*token*'), *request.folder.glob('*.txt')})
    others = ', '.join(file.name for file in found if file.suffix != '.safetensors')
    there = f'; {others} cannot stand in its place' if others else ''
    raise UserError(
        f'{request.folder} holds no {path.name}, and the tokenizer of '
        f'model_type={request.model_type} is {" and ".join(reader.files)}{there}: '
        'copy it from where the checkpoint was published'
    )


def _pieces(
    processor: sentencepiece.SentencePieceProcessor,
) -> list[str | None]:
    """How the tokens of a model are written; None for those that are no text."""
    return [
        None
        if processor.is_control(i) or processor.is_unknown(i)
        else processor.id_to_piece(i)
        for i in range(processor.vocab_size())
    ]


def _vocabulary(
    request: Request,
    path: Path,
    pieces: list[str | None],
    unknown: int,
) -> Vocabulary:
    """The vocabulary of these pieces, with the rows that are none."""
    if len(pieces) > request.rows:
        raise UserError(
            f'{path} has {len(pieces)} pieces, and the model {request.rows} rows: they '
            'are of two checkpoints'
        )
    special = request.special_tokens
    special.check_within(request.rows)
    pieces = pieces + [None] * (request.rows - len(pieces))
    for token in (special.padding, special.start, special.end, unknown):
        pieces[token] = None
    return Vocabulary(tuple(pieces), special, unknown)


class _Reader(NamedTuple):
    """How a family's tokenizer is read.

    Attributes:
      read: what reads it.
      files: of which it is.
      takes_languages: whether languages are tokens before source and target.
    """

    read: Callable[[Request], PublishedTokenizer]
    files: tuple[str, ...]
    takes_languages: bool = False


_READERS = {
    't5': _Reader(_read_plain, ('spiece.model',)),
    'mt5': _Reader(_read_plain, ('spiece.model',)),
    'marian': _Reader(_read_marian, ('source.spm', 'target.spm', 'vocab.json')),
}
