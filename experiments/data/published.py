"""Tokenizers of published checkpoints, opened by Transformers."""

import dataclasses
import difflib
import functools
import hashlib
import itertools
import os
import textwrap
import warnings
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.data import tokenizer
from experiments.errors import UserError
from flaxformer_lite.special_tokens import SpecialTokens

CONFIG, GENERATION = 'config.json', 'generation_config.json'
# What a tokenizer may be made of; weights and documents are not copied.
_FILES = ('*.json', '*.model', '*.spm', '*.txt')
_WEIGHTS_INDEX = '.index.json'
# Where a run keeps them, beside the list of their sums.
_FOLDER = 'published'
_POINTER = b'version https://git-lfs'
# Files that a tokenizer of Transformers names, and can do without.
_OPTIONAL = ('tokenizer_file', 'tokenizer_config_file', 'target_vocab_file')
_SHOWN = 3  # languages that an error names
_COPY = 'copy its files from where the checkpoint was published'


@dataclasses.dataclass(frozen=True)
class PublishedTokenizer:
    """Text to the tokens that a published model was trained with, and back.

    Attributes:
      folder: where the checkpoint's files are.
      sums: name and SHA-256 of the files that the tokenizer is made of.
      vocab_size: rows of the embedding, of which some may be no piece.
      config_tokens: the special tokens that the checkpoint's config names.
      languages: the words for those of sources and of targets; '' for none.
    """

    folder: Path = dataclasses.field(compare=False)
    sums: tuple[tuple[str, str], ...]
    vocab_size: int
    config_tokens: SpecialTokens
    languages: tuple[str, str] = ('', '')

    @property
    def model(self) -> bytes:
        """What tells all of it but the content of its files: JSON."""
        fields = {
            'sums': dict(self.sums),
            'vocab_size': self.vocab_size,
            'special_tokens': dataclasses.asdict(self.config_tokens),
            'languages': self.languages,
        }
        return storage.json_text(fields).encode()

    @property
    def digest(self) -> str:
        """Tells it from any other; a checkpoint's other settings do not count."""
        sums = [entry for entry in self.sums if entry[0] not in (CONFIG, GENERATION)]
        plain = dataclasses.replace(self, sums=tuple(sums))
        return hashlib.sha256(plain.model).hexdigest()

    @functools.cached_property
    def theirs(self) -> Any:
        return _open(self.folder, self.languages)

    @functools.cached_property
    def _around_source(self) -> tuple[list[int], list[int]]:
        return _around(self.theirs, 'text')

    @functools.cached_property
    def _around_target(self) -> tuple[list[int], list[int]]:
        return _around(self.theirs, 'text_target')

    @property
    def special_tokens(self) -> SpecialTokens:
        """The model's. Where a language stands behind targets, they start with it."""
        _, behind = self._around_target
        if behind and behind[-1] != self.config_tokens.end:
            return dataclasses.replace(self.config_tokens, start=behind[-1])
        return self.config_tokens

    @property
    def source_end(self) -> int | None:
        """The token that each source ends with; None for none."""
        _, behind = self._around_source
        return behind[-1] if behind else None

    @property
    def forced_first(self) -> int | None:
        """The token that each target begins with; None for any."""
        before, _ = self._around_target
        if not before or before[-1] == self.special_tokens.start:
            return None
        return before[-1]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each source, without `source_end`; a blank text has none."""
        before, behind = self._around_source
        return self._encode('text', texts, before, behind[:-1])

    def encode_target(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each target, without start and end token."""
        before = [] if self.forced_first is None else [self.forced_first]
        return self._encode('text_target', texts, before, [])

    def _encode(
        self, side: str, texts: list[str], before: list[int], behind: list[int]
    ) -> list[list[int]]:
        if not texts:
            return []
        rows = self.theirs(**{side: texts}, add_special_tokens=False).input_ids
        return [
            [*before, *row, *behind] if text.strip() else []
            for text, row in zip(texts, rows, strict=True)
        ]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each row up to its end token; what is no piece is left out."""
        end = self.special_tokens.end
        rows = []
        for row in ids:
            text = list(itertools.takewhile(lambda i: i != end, map(int, row)))
            rows.append([i for i in text if i < len(self.theirs)])
        return self.theirs.batch_decode(rows, skip_special_tokens=True)

    def pieces(self, ids: list[int]) -> list[str]:
        """How each token is written; one that is no piece by its number."""
        pieces = self.theirs.convert_ids_to_tokens([int(i) for i in ids])
        shown = zip(ids, pieces, strict=True)
        return [f'<{i}>' if piece is None else piece for i, piece in shown]

    def save(self, path: Path) -> None:
        """Writes the list of its files, and copies them to a folder beside it."""
        folder = path.with_name(_FOLDER)
        for name, _ in self.sums:
            if folder != self.folder:
                storage.write(folder / name, (self.folder / name).read_bytes())
        tokenizer.write_model(path, self.model)


def load(
    folder: Path,
    vocab_size: int,
    special_tokens: SpecialTokens,
    source: str = '',
    target: str = '',
) -> PublishedTokenizer:
    """The tokenizer of a checkpoint.

    Args:
      folder: of the checkpoint.
      vocab_size: rows of its embedding.
      special_tokens: of its config.
      source, target: the languages, for checkpoints that write them as tokens.

    Raises:
      UserError: a package or a file is missing, a file is damaged, or it does not fit
        the model; a language is not given, or is not one of the checkpoint's.
    """
    paths = {path for kind in _FILES for path in folder.glob(kind)}
    sums = []
    for path in sorted(paths):
        if not path.name.endswith(_WEIGHTS_INDEX):
            _check_content(path)
            sums.append((path.name, storage.sha256(path)))
    languages = (source, target)
    _check_languages(folder, languages)
    found = PublishedTokenizer(
        folder, tuple(sums), vocab_size, special_tokens, languages
    )
    _check_fits(found)
    return found


def load_saved(path: Path) -> PublishedTokenizer:
    """The tokenizer of a run, which `save` has written.

    Raises:
      UserError: it is not there, or is not what was saved.
    """
    mend = 'restore it from a copy, or convert the checkpoint again'
    wrong = tokenizer.damage(path)
    if wrong:
        raise UserError(f'{path} is damaged ({wrong}): {mend}')
    fields = storage.read_json(path)
    try:
        found = PublishedTokenizer(
            path.with_name(_FOLDER),
            tuple(fields['sums'].items()),
            fields['vocab_size'],
            SpecialTokens(**fields['special_tokens']),
            tuple(fields['languages']),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f'{path} is no list of a tokenizer’s files: {mend}') from None
    for name, sha256 in found.sums:
        file = found.folder / name
        if not storage.exists(file) or storage.sha256(file) != sha256:
            raise UserError(
                f'{found.folder} is damaged ({name} is not what was written): {mend}'
            )
    return found


def _open(folder: Path, languages: tuple[str, str] = ('', '')) -> Any:
    """Transformers' tokenizer, without a look at the network or a word of advice."""
    os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
    settings = zip(('src_lang', 'tgt_lang'), languages, strict=True)
    given = {name: code for name, code in settings if code}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            import google.protobuf  # noqa: F401
            from transformers import AutoTokenizer
        except ImportError as error:
            raise UserError(
                f'a published tokenizer needs {error.name}: '
                'pip install -e ".[pretrained]"'
            ) from None
        try:
            return AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **given
            )
        except Exception as error:  # each kind of file has errors of its own
            reason = textwrap.shorten(str(error) or repr(error), 200, placeholder=' …')
            raise UserError(
                f'{folder}: Transformers cannot open its tokenizer ({reason}): {_COPY}'
            ) from None


def _around(theirs: Any, side: str) -> tuple[list[int], list[int]]:
    """The tokens that are put before and behind each text of a side."""
    whole = theirs(**{side: 'a'}).input_ids
    plain = theirs(**{side: 'a'}, add_special_tokens=False).input_ids
    start = 0
    while whole[start : start + len(plain)] != plain:
        start += 1
    return whole[:start], whole[start + len(plain) :]


def _check_content(path: Path) -> None:
    with path.open('rb') as file:
        begin = file.read(len(_POINTER))
    if begin == _POINTER:
        raise UserError(
            f'{path} is a pointer of Git LFS in place of the file: run git lfs pull '
            f'in {path.parent}'
        )


def _check_languages(folder: Path, languages: tuple[str, str]) -> None:
    """Refuses languages that a checkpoint does not have, or none where it has some."""
    theirs = _open(folder)
    if not hasattr(theirs, 'src_lang'):
        if any(languages):
            raise UserError(
                '--source and --target are for checkpoints that write languages as '
                f'tokens, and {folder} has none: leave them out'
            )
        return
    tokens = [token for token in theirs.all_special_tokens if not token.startswith('<')]
    codes = [token.strip('_') for token in tokens]
    many = f'the {len(codes)} languages of {folder}'
    for flag, code in zip(('source', 'target'), languages, strict=True):
        if not code:
            raise UserError(
                f'{folder} writes languages as tokens: give --source and --target, of '
                f'{many}, such as {", ".join(codes[:_SHOWN])}'
            )
        if code not in codes:
            near = difflib.get_close_matches(code, codes, _SHOWN, cutoff=0.0)
            raise UserError(
                f'--{flag}={code} is none of {many}; the nearest are {", ".join(near)}'
            )


def _check_fits(found: PublishedTokenizer) -> None:
    """Refuses a tokenizer that lacks a file, or has other tokens than the model."""
    theirs, folder, rows = found.theirs, found.folder, found.vocab_size
    for name in _needed(theirs, folder):
        if not storage.exists(folder / name):
            raise UserError(f'{folder} holds no {name}: {_COPY}')
    of_config = {
        'pad_token_id': found.config_tokens.padding,
        'eos_token_id': found.config_tokens.end,
    }
    for name, token in of_config.items():
        own = getattr(theirs, name)
        if own != token:
            raise UserError(
                f'{folder} has a tokenizer with {name}={own}, and its config.json has '
                f'{token}: they are of two checkpoints'
            )
    pieces = set(theirs.get_vocab().values()) - set(theirs.all_special_ids)
    around = [*found._around_source, *found._around_target]
    last = max(pieces.union(*around))
    if last >= rows:
        raise UserError(
            f'{folder} has a tokenizer with token {last}, and the model {rows} rows: '
            'they are of two checkpoints'
        )


def _needed(theirs: Any, folder: Path) -> list[str]:
    """The files without which Transformers makes up an empty vocabulary."""
    names = theirs.vocab_files_names
    needed = [name for key, name in names.items() if key not in _OPTIONAL]
    if 'tokenizer_file' not in names:
        return needed
    if storage.exists(folder / names['tokenizer_file']):
        return []
    return needed or ['tokenizer.model']
