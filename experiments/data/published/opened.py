"""The folder of a checkpoint, opened for its tokenizer; what is in it is checked."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from experiments import storage
from experiments.data.published.tokenizer import Vocabulary
from experiments.errors import UserError
from flaxformer_lite.special_tokens import SpecialTokens

_CONFIG = 'tokenizer_config.json'


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


class Model(NamedTuple):
    """A SentencePiece model.

    Attributes:
      path: its file.
      data: what is in it.
      processor: the same, parsed.
    """

    path: Path
    data: bytes
    processor: sentencepiece.SentencePieceProcessor

    def pieces(self) -> list[str | None]:
        """How its tokens are written; None for those that are no text."""
        processor = self.processor
        return [
            None
            if processor.is_control(i) or processor.is_unknown(i)
            else processor.id_to_piece(i)
            for i in range(processor.vocab_size())
        ]

    def check_end(self, end: int) -> None:
        """Refuses a model whose end token is another than the checkpoint's.

        Raises:
          UserError: it is.
        """
        if self.processor.eos_id() != end:
            raise UserError(
                f'{self.path} has the end token {self.processor.eos_id()}, and '
                f'config.json has eos_token_id={end}: they are of two checkpoints'
            )


class Opened:
    """A checkpoint's folder and what its tokenizer has to fit.

    Attributes:
      request: what was asked for.
    """

    def __init__(self, request: Request):
        self.request = request

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """What is in tokenizer_config.json; nothing if there is none."""
        return self.read_json(_CONFIG)

    @property
    def tokenizer_class(self) -> str:
        """The name of its class in Transformers, without `Fast`; '' if none is given.

        As there, config.json may have it in place of tokenizer_config.json.
        """
        for settings in (self.settings, self.read_json('config.json')):
            name = settings.get('tokenizer_class')
            if isinstance(name, str):
                return name.removesuffix('Fast')
        return ''

    def holds(self, name: str) -> bool:
        """Whether the folder has such a file."""
        return storage.exists(self.request.folder / name)

    def contents(self, names: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
        """The files of these names that are there, by name, as they are."""
        folder = self.request.folder
        there = sorted({name for name in names if self.holds(name)})
        return tuple((name, (folder / name).read_bytes()) for name in there)

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON object; an empty one if the file is not there.

        Raises:
          UserError: it is something else.
        """
        path = self.request.folder / name
        if not storage.exists(path):
            return {}
        content = storage.read_json(path)
        if not isinstance(content, dict):
            raise UserError(f'{path} holds no JSON object')
        return content

    def model(self, name: str) -> Model:
        """A SentencePiece model.

        Raises:
          UserError: it is damaged, or something else.
        """
        path = self.request.folder / name
        try:
            data = path.read_bytes()
            processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f'{path} is no whole SentencePiece model: {error}'
            ) from None
        return Model(path, data, processor)

    def read_lines(self, name: str) -> list[str]:
        """The lines of a text.

        Raises:
          UserError: it cannot be read, or is not UTF-8.
        """
        path = self.request.folder / name
        try:
            return path.read_text(encoding='utf-8').split('\n')
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f'{path} cannot be read: {error}') from None

    def numbers(self, name: str) -> dict[str, int]:
        """A file that has a number for each piece.

        Raises:
          UserError: it has not, or as `check_numbers`.
        """
        if not self.holds(name):
            raise UserError(
                f'{self.request.folder} holds no {name}: copy it from where the '
                'checkpoint was published'
            )
        return self.check_numbers(self.request.folder / name, self.read_json(name))

    def check_numbers(self, path: Path, numbers: dict[str, Any]) -> dict[str, int]:
        """The numbers of a file's pieces, with <unk> and the end token.

        Raises:
          UserError: it lacks one of these, or has numbers that the checkpoint has not.
        """
        for piece, number in numbers.items():
            if type(number) is not int or not 0 <= number < self.request.rows:
                raise UserError(
                    f'{path} has the number {storage.shown(number)} for '
                    f'{storage.shown(piece)}, which is none of the {self.request.rows} '
                    'rows of the model'
                )
        if len(set(numbers.values())) < len(numbers):
            raise UserError(f'{path} has one number for two pieces')
        if '<unk>' not in numbers:
            raise UserError(f'{path} has no piece <unk>, which stands for unknown ones')
        end = self.request.special_tokens.end
        if numbers.get('</s>') != end:
            raise UserError(
                f'{path} has the end token {numbers.get("</s>")}, and config.json has '
                f'eos_token_id={end}: they are of two checkpoints'
            )
        return numbers

    def vocabulary(
        self,
        path: Path,
        pieces: Sequence[str | None],
        unknown: int,
        special_tokens: SpecialTokens | None = None,
    ) -> Vocabulary:
        """The vocabulary of these pieces, with the rows that are none.

        Args:
          path: of the file that has them.
          pieces: by their numbers.
          unknown: the token for a piece that has none.
          special_tokens: if they are others than those of config.json.

        Raises:
          UserError: there are more pieces than rows.
        """
        rows = self.request.rows
        if len(pieces) > rows:
            raise UserError(
                f'{path} has {len(pieces)} pieces, and the model {rows} rows: they '
                'are of two checkpoints'
            )
        special = special_tokens or self.request.special_tokens
        special.check_within(rows)
        texts = [*pieces, *[None] * (rows - len(pieces))]
        for token in (special.padding, special.start, special.end, unknown):
            texts[token] = None
        return Vocabulary(tuple(texts), special, unknown, source_last=(special.end,))
