"""Tokenizers of published checkpoints, opened by Transformers."""

import dataclasses
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
# Files that a tokenizer of Transformers names, and can do without.
_OPTIONAL = ('tokenizer_file', 'tokenizer_config_file', 'target_vocab_file')
_SHOWN = 3  # languages that an error names
_COPY = 'copy its files, whole, from where the checkpoint was published'
_MEND = 'restore it from a copy, or convert the checkpoint again'


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
        """All fields but the folder, as JSON."""
        fields = dataclasses.asdict(self) | {'sums': dict(self.sums)}
        del fields['folder']
        return storage.json_text(fields).encode()

    @property
    def digest(self) -> str:
        """Tells it from any other; a checkpoint's other settings do not count."""
        sums = [entry for entry in self.sums if entry[0] not in (CONFIG, GENERATION)]
        plain = dataclasses.replace(self, sums=tuple(sums))
        return hashlib.sha256(plain.model).hexdigest()

    @functools.cached_property
    def theirs(self) -> Any:
        """Transformers' tokenizer."""
        return _open(self.folder, self.languages)

    @functools.cached_property
    def around_source(self) -> tuple[list[int], list[int]]:
        """The tokens before and behind each source."""
        return _around(self.theirs, 'text')

    @functools.cached_property
    def around_target(self) -> tuple[list[int], list[int]]:
        """The tokens before and behind each target, as Transformers has it."""
        return _around(self.theirs, 'text_target')

    @property
    def special_tokens(self) -> SpecialTokens:
        """The model's. Where a language stands behind targets, they start with it."""
        _, behind = self.around_target
        if behind and behind[-1] != self.config_tokens.end:
            return dataclasses.replace(self.config_tokens, start=behind[-1])
        return self.config_tokens

    @property
    def source_end(self) -> int | None:
        """The token that each source ends with; None for none."""
        _, behind = self.around_source
        return behind[-1] if behind else None

    @property
    def forced_first(self) -> int | None:
        """The token that each target begins with; None for any."""
        before, _ = self.around_target
        first = before[-1] if before else None
        return None if first == self.special_tokens.start else first

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each source, without `source_end`; a blank text has none."""
        before, behind = self.around_source
        return [before + row + behind[:-1] if row else [] for row in self._rows(texts)]

    def encode_target(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each target, without start and end token."""
        before = [] if self.forced_first is None else [self.forced_first]
        rows = self._rows(texts, 'text_target')
        return [before + row if row else [] for row in rows]

    def _rows(self, texts: list[str], side: str = 'text') -> list[list[int]]:
        if not texts:
            return []
        rows = self.theirs(**{side: texts}, add_special_tokens=False).input_ids
        both = zip(texts, rows, strict=True)
        return [row if text.strip() else [] for text, row in both]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each row up to its end token; what is no piece is left out."""
        end, most = self.special_tokens.end, len(self.theirs)
        rows = [itertools.takewhile(lambda i: i != end, map(int, row)) for row in ids]
        pieces = [[i for i in row if i < most] for row in rows]
        return self.theirs.batch_decode(pieces, skip_special_tokens=True)

    def pieces(self, ids: list[int]) -> list[str]:
        """How each token is written; one that is no piece by its number."""
        pieces = self.theirs.convert_ids_to_tokens([int(i) for i in ids])
        return [piece or f'<{i}>' for i, piece in zip(ids, pieces, strict=True)]

    def save(self, path: Path) -> None:
        """Copies its files to a folder beside the path, which gets their sums."""
        folder = path.with_name(_FOLDER)
        if folder != self.folder:
            for name, _ in self.sums:
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
    paths = itertools.chain.from_iterable(map(folder.glob, _FILES))
    sums = sorted(
        (path.name, storage.sha256(path))
        for path in paths
        if not path.name.endswith(_WEIGHTS_INDEX)
    )
    languages = (source, target)
    for name, _ in sums:
        if (folder / name).read_bytes().startswith(b'version https://git-lfs'):
            raise UserError(f'{folder / name} is a pointer of Git LFS: {_COPY}')
    _check_languages(folder, languages)
    found = PublishedTokenizer(
        folder, tuple(sums), vocab_size, special_tokens, languages
    )
    _check_files(found)
    _check_tokens(found)
    return found


def load_saved(path: Path) -> PublishedTokenizer:
    """The tokenizer of a run, which `save` has written.

    Raises:
      UserError: it is not there, or is not what was saved.
    """
    wrong = tokenizer.damage(path)
    if wrong:
        raise UserError(f'{path} is damaged ({wrong}): {_MEND}')
    fields = storage.read_json(path)
    found = PublishedTokenizer(
        path.with_name(_FOLDER),
        tuple(fields['sums'].items()),
        fields['vocab_size'],
        SpecialTokens(**fields['config_tokens']),
        tuple(fields['languages']),
    )
    for name, sha256 in found.sums:
        file = found.folder / name
        if not storage.exists(file) or storage.sha256(file) != sha256:
            raise UserError(
                f'{found.folder} is damaged ({name} is not what was written): {_MEND}'
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


def _check_languages(folder: Path, languages: tuple[str, str]) -> None:
    """Refuses languages that a checkpoint does not have, or none where it has some."""
    theirs = _open(folder)
    codes = ['']
    if hasattr(theirs, 'src_lang'):
        tokens = [x for x in theirs.all_special_tokens if not x.startswith('<')]
        codes = [token.strip('_') for token in tokens]  # M2M100's are like __en__
    for flag, code in zip(('source', 'target'), languages, strict=True):
        if code not in codes:
            shown = ', '.join(codes[:_SHOWN]) or 'none: leave the flag out'
            raise UserError(
                f'--{flag}={code} is not one of the languages that {folder} writes as '
                f'tokens: {shown}'
            )


def _check_files(found: PublishedTokenizer) -> None:
    """Refuses a missing file, in whose place Transformers has an empty vocabulary."""
    names = found.theirs.vocab_files_names
    needed = [name for key, name in names.items() if key not in _OPTIONAL]
    there = dict(found.sums)
    if 'tokenizer_file' in names:
        whole = names['tokenizer_file'] in there
        needed = [] if whole else needed or ['tokenizer.model']
    for name in needed:
        if name not in there:
            raise UserError(f'{found.folder} holds no {name}: {_COPY}')


def _check_tokens(found: PublishedTokenizer) -> None:
    """Refuses a tokenizer whose tokens are not the model's."""
    theirs, special = found.theirs, found.config_tokens
    if (theirs.pad_token_id, theirs.eos_token_id) != (special.padding, special.end):
        raise UserError(
            f'{found.folder} has a tokenizer with pad_token_id={theirs.pad_token_id} '
            f'and eos_token_id={theirs.eos_token_id}, and its config has '
            f'{special.padding} and {special.end}: they are of two checkpoints'
        )
    pieces = set(theirs.get_vocab().values()) - set(theirs.all_special_ids)
    last = max(pieces.union(*found.around_source, *found.around_target))
    if last >= found.vocab_size:
        raise UserError(
            f'{found.folder} has a tokenizer with token {last}, and the model '
            f'{found.vocab_size} rows: they are of two checkpoints'
        )
