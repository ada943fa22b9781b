"""Published tokenizers, opened by Transformers."""

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import os
import re
import types
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from experiments import storage
from experiments.data.digest import hex_digest
from experiments.data.tokenizers.base import Tokenizer, until
from experiments.errors import UserError, check_list, reason
from flaxformer_checkpoints.tokens import published_tokens
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.validation import Range

Affixes = tuple[list[int], list[int]]  # the tokens before and after a text
CONFIG, GENERATION = 'config.json', 'generation_config.json'
# Files that a tokenizer may consist of. Weights and documents are not copied.
_FILES = ('*.json', '*.model', '*.spm', '*.txt')
_WEIGHTS_INDEX = '.index.json'
# Folder of the copies in a run, next to `tokenizer.model`, which has their checksums.
_FOLDER = 'published'
# Until 0.4, these special tokens had other names.
_RENAMED = {'start': 'bos', 'end': 'eos'}
_MAX_LANGUAGES = 3  # languages to list in an error
# Begins a source whose languages differ from the default ones. A space before it makes
# it text.
_TAG = re.compile('<([A-Za-z_]*)2([A-Za-z_]+)> ?')
_COPY_HINT = 'Copy all of its files from where the checkpoint was published.'
_RESTORE_HINT = 'Restore it from a copy, or convert the checkpoint again.'


class _Fields(msgspec.Struct):
    sums: dict[str, str]
    vocab_size: Annotated[int, msgspec.Meta(ge=1)]
    config_tokens: dict[str, int]
    languages: tuple[str, str]
    new: dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class HuggingfaceTokenizer(Tokenizer):
    """A published tokenizer: `huggingface(path="opus-mt-en-de")`.

    A run from `flaxformer_checkpoints.convert` keeps the files, and needs no path. If
    the tokenizer writes languages as tokens, a source may begin with a tag for its
    pair, `<eng_Latn2swh_Latn>`, or `<2swh_Latn>` for the default source language.

    Attributes:
      path: A folder saved by Transformers; `~` is the home directory.
      source, target: The default languages as the tokenizer writes them, such as
        `'en_XX'`.
      languages: New languages, each with the language whose embedding initializes its
        token: `{"gsw_Latn": "deu_Latn"}`.
      vocab_size: Size of the model's embedding, which may exceed the number of pieces.
        0 uses the smallest possible size.
      model: JSON with these settings and checksums of the files. A run stores it as
        `tokenizer.model`, so changed files are detected.
    """

    path: str = ''
    source: str = ''
    target: str = ''
    languages: dict = dataclasses.field(default_factory=dict, hash=False)
    vocab_size: Annotated[int, Range(at_least=0)] = 0
    model: bytes = dataclasses.field(default=b'', repr=False)

    def train(self, texts):
        if not self.path:
            raise UserError(
                'tokenizer=huggingface without a path works only in runs that '
                'flaxformer_checkpoints.convert made. To train from one, set init_from '
                'to its directory; otherwise, give a path.'
            )
        if not os.path.isdir(self._folder):
            raise UserError(
                f'tokenizer: {self.path} is not a folder. Give a folder with tokenizer '
                'files, for example from `hf download NAME --local-dir FOLDER`.'
            )
        theirs = _open(self._folder)
        padding, eos = theirs.pad_token_id, theirs.eos_token_id
        if padding is None or eos is None or padding == eos:
            raise UserError(
                f'tokenizer: {self._folder} has pad_token_id={padding} and '
                f'eos_token_id={eos}. Both are required and must differ.'
            )
        bos = padding if theirs.bos_token_id is None else theirs.bos_token_id
        special = published_tokens(padding, bos, eos)
        vocab_size = self.vocab_size or max(len(theirs), bos + 1)
        sides = (self.source, self.target)
        tokenizer = from_checkpoint(
            self._folder, vocab_size, special, *sides, new=self.languages
        )
        return tokenizer.model

    def derived(self, other):
        if self.path or not isinstance(other, HuggingfaceTokenizer):
            return None
        if self.vocab_size != other.vocab_size:
            return None
        source, target = other.default_languages
        return from_checkpoint(
            other._folder,
            other.vocab_size,
            other.config_tokens,
            self.source or source,
            self.target or target,
            {**other.like, **self.languages},
        )

    def largest_vocab_size(self):
        if self.vocab_size:
            return self.vocab_size + len(self.languages)
        return self.opened(self.train(())).vocab_size

    def opened(self, model):
        fields = msgspec.json.decode(model, type=_Fields)
        _special_tokens(fields.config_tokens)
        return dataclasses.replace(self, model=model, vocab_size=fields.vocab_size)

    @property
    def _folder(self) -> Path:
        return Path(os.path.expanduser(self.path))

    @functools.cached_property
    def _fields(self) -> dict[str, Any]:
        return json.loads(self.model)

    @property
    def files(self) -> dict[str, Path]:
        return {name: self._folder / name for name in self._fields['sums']}

    @property
    def default_languages(self) -> list[str]:
        return self._fields['languages']

    @property
    def base_languages(self) -> list[str]:
        """`source` and `target`, or the languages that initialize them."""
        return [self.languages.get(code, code) for code in (self.source, self.target)]

    @property
    def like(self) -> dict[str, str]:
        return self._fields.get('new', {})

    @property
    def like_pieces(self):
        return self.like

    @property
    def config_tokens(self) -> SpecialTokens:
        """The special tokens in the checkpoint's config."""
        return _special_tokens(self._fields['config_tokens'])

    @property
    def digest(self):
        if not self.model:
            return self.opened(self.train(())).digest
        sums = dict(self._fields['sums'])
        for name in (CONFIG, GENERATION):
            sums.pop(name, None)
        return hex_digest(storage.json_text(self._fields | {'sums': sums}))

    @functools.cached_property
    def theirs(self) -> Any:
        known = [self.like.get(code, code) for code in self.default_languages]
        theirs = _open(self._folder, *known)
        if self.like:
            tokens = {'additional_special_tokens': list(self.like)}
            theirs.add_special_tokens(tokens, replace_extra_special_tokens=False)
        return theirs

    @functools.cached_property
    def _language_ids(self) -> dict[str, int]:
        tokens = _language_tokens(self.theirs)
        ids = self.theirs.convert_tokens_to_ids(list(tokens.values()))
        return dict(zip(tokens, ids, strict=True))

    @functools.cached_property
    def around_source(self) -> Affixes:
        return self._with_default_languages(_around(self.theirs, 'text'), 0)

    @functools.cached_property
    def around_target(self) -> Affixes:
        return self._with_default_languages(_around(self.theirs, 'text_target'), 1)

    def _with_default_languages(self, affixes: Affixes, side: int) -> Affixes:
        code = self.default_languages[side]
        return self._with_language(affixes, self.like.get(code, code), code)

    def _with_language(self, affixes: Affixes, code: str, by: str) -> Affixes:
        if code == by:
            return affixes
        old, new = self._language_ids[code], self._language_ids[by]
        prefix, suffix = affixes
        swap = {old: new}
        return [swap.get(i, i) for i in prefix], [swap.get(i, i) for i in suffix]

    @property
    def special_tokens(self) -> SpecialTokens:
        """The start token is the language token if targets end with one."""
        _, suffix = self.around_target
        if suffix and suffix[-1] != self.config_tokens.eos:
            config = self.config_tokens
            return published_tokens(config.padding, suffix[-1], config.eos)
        return self.config_tokens

    @property
    def source_eos(self) -> int | None:
        _, suffix = self.around_source
        return suffix[-1] if suffix else None

    @property
    def forced_first(self) -> int | None:
        prefix, _ = self.around_target
        first = prefix[-1] if prefix else None
        return None if first == self.special_tokens.bos else first

    def first_tokens(self, texts):
        if self.forced_first is None:
            return super().first_tokens(texts)
        directions = [direction for direction, _ in map(self._split, texts)]
        return [self._language_ids[target] for _, target in directions]

    def direction(self, text):
        if not all(self.default_languages):
            return None
        direction, _ = self._split(text)
        return direction

    def check_directions(self, directions, tags):
        source, target = self.default_languages
        if not target:
            return
        if tags == 'both':
            self._check_direction('data: ', itertools.chain(*directions))
            return
        shown = ', '.join('-'.join(x) for x in directions[:_MAX_LANGUAGES])
        if len(directions) > 1:
            raise UserError(
                f'data: the tokenizer must know the languages of {shown}. Add '
                'tags="both" to mix.'
            )
        known = all(code in self._language_ids for code in directions[0])
        if known and directions[0] != (source, target):
            raise UserError(
                f'data: {shown} differs from the tokenizer, {source}-{target}. Set its '
                'source and target.'
            )

    def _split(self, text: str) -> tuple[tuple[str, str], str]:
        source, target = self.default_languages
        tag = _TAG.match(text) if target else None
        if not tag:
            return (source, target), text
        direction = tag[1] or source, tag[2]
        try:
            self._check_direction(f'{tag[0].strip()}: ', direction)
        except UserError as error:
            raise UserError(
                f'{error} If the line does not begin with a tag, put a space before it.'
            ) from None
        return direction, text[tag.end() :]

    def _check_direction(self, where: str, codes: Iterable[str]) -> None:
        for code in codes:
            _check_language(where, code, self._language_ids, self._folder)
        if self.forced_first is None:
            raise UserError(
                f'{where}{self._folder} writes languages after texts, which allows one '
                'direction per run. Use mBART-50, M2M100 or NLLB for several.'
            )

    def encode(self, texts):
        check_list('texts', texts)
        default, _ = self.default_languages
        split = list(map(self._split, texts))
        rows = self._rows([text for _, text in split])
        found = []
        for ((source, _), _), row in zip(split, rows, strict=True):
            prefix, suffix = self._with_language(self.around_source, default, source)
            found.append(prefix + row + suffix[:-1] if row else [])
        return found

    def encode_target(self, texts):
        return self._targets(texts, [self.forced_first] * len(texts))

    def encode_pairs(self, pairs):
        sources = [source for source, _ in pairs]
        targets = [target for _, target in pairs]
        first = self.first_tokens(sources)
        return self.encode(sources), self._targets(targets, first)

    def _targets(self, texts: list[str], first: Iterable[int | None]) -> Any:
        found = []
        for token, row in zip(first, self._rows(texts, 'text_target'), strict=True):
            prefix = [] if token is None else [token]
            found.append(prefix + row if row else [])
        return found

    def _rows(self, texts: list[str], side: str = 'text') -> list[list[int]]:
        check_list('texts', texts)
        if not texts:
            return []
        # Otherwise it warns of texts that are longer than its own model's positions.
        options = {'add_special_tokens': False, 'verbose': False}
        rows = self.theirs(**{side: texts}, **options).input_ids
        both = zip(texts, rows, strict=True)
        return [row if text.strip() else [] for text, row in both]

    def decode(self, ids):
        end = self.special_tokens.eos
        most = len(self.theirs)
        pieces = [[i for i in until(end, row) if i < most] for row in ids]
        return self.theirs.batch_decode(pieces, skip_special_tokens=True)

    def pieces(self, ids):
        pieces = self.theirs.convert_ids_to_tokens(list(map(int, ids)))
        return [piece or f'<{i}>' for i, piece in zip(ids, pieces, strict=True)]

    def save(self, path):
        folder = path.with_name(_FOLDER)
        if folder != self._folder:
            for name, file in self.files.items():
                storage.write(folder / name, file.read_bytes())
        super().save(path)

    def open(self, path):
        folder = path.with_name(_FOLDER)
        found = dataclasses.replace(super().open(path), path=str(folder))
        for name, sha256 in found._fields['sums'].items():
            file = folder / name
            # Other names could make `save` write outside the run's directory.
            if not storage.is_file_name(name):
                raise UserError(
                    f'{folder} is damaged ({name!r} is not a file name). '
                    f'{_RESTORE_HINT}'
                )
            if not storage.exists(file) or storage.sha256(file) != sha256:
                raise UserError(
                    f'{folder} is damaged ({name} does not match its checksum). '
                    f'{_RESTORE_HINT}'
                )
        return found


def from_checkpoint(
    folder: Path,
    vocab_size: int,
    special_tokens: SpecialTokens,
    source: str = '',
    target: str = '',
    new: Mapping[str, str] = types.MappingProxyType({}),
) -> HuggingfaceTokenizer:
    """Makes the tokenizer of a checkpoint.

    `source`, `target` and `new` are for checkpoints that write languages as tokens.
    """
    theirs = _open(folder)
    known = _language_tokens(theirs)
    _check_new(new, known, theirs.get_vocab(), folder)
    for flag, code in {'source': source, 'target': target}.items():
        _check_language(f'{flag}=', code, [*known, *new], folder)
    sums = {}
    for pattern in _FILES:
        for path in folder.glob(pattern):
            if not path.name.endswith(_WEIGHTS_INDEX):
                sums[path.name] = storage.sha256(path)
    fields = {
        'sums': sums,
        'vocab_size': vocab_size,
        'config_tokens': dataclasses.asdict(special_tokens),
        'languages': [source, target],
    }
    if new:
        rows = max(vocab_size, len(theirs) + len(new))
        fields |= {'vocab_size': rows, 'new': dict(new)}
    model = storage.json_text(fields).encode()
    found = HuggingfaceTokenizer(path=str(folder)).opened(model)
    _check_tokens(found, folder)
    return found


def _special_tokens(stored: Mapping[str, int]) -> SpecialTokens:
    tokens = {_RENAMED.get(name, name): token for name, token in stored.items()}
    if tokens.keys() != {'padding', 'bos', 'eos'}:
        raise ValueError('config_tokens must have padding, bos and eos')
    return published_tokens(**tokens)


def _open(folder: Path, source: str = '', target: str = '') -> Any:
    languages = {'src_lang': source, 'tgt_lang': target}
    given = {name: code for name, code in languages.items() if code}
    with _without_warnings():
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
        except Exception as error:  # different file formats raise different errors
            raise UserError(
                f'{folder}: Transformers cannot open its tokenizer ({reason(error)}). '
                f'{_COPY_HINT}'
            ) from None


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(disabled)


def _around(theirs: Any, side: str) -> Affixes:
    text = {side: 'a'}
    whole = theirs(**text).input_ids
    plain = theirs(**text, add_special_tokens=False).input_ids
    size = len(plain)
    start = next(i for i in range(len(whole)) if whole[i : i + size] == plain)
    return whole[:start], whole[start + size :]


def _language_tokens(theirs: Any) -> dict[str, str]:
    """Returns the token of each language; `{'': ''}` if it writes none."""
    if not hasattr(theirs, 'src_lang'):
        return {'': ''}
    tokens = [x for x in theirs.all_special_tokens if not x.startswith('<')]
    return {token.strip('_'): token for token in tokens}  # M2M100's are like __en__


def _check_language(
    where: str, code: str, known: Collection[str], folder: Path
) -> None:
    if code in known:
        return
    near = [x for x in known if x[:2].lower() == code[:2].lower()]
    shown = ', '.join((near or list(known))[:_MAX_LANGUAGES])
    fix = (
        f'Give one of its {len(known)}, such as {shown}.' if shown else 'Leave it out.'
    )
    raise UserError(f'{where}{code} is not a language token of {folder}. {fix}')


def _check_new(
    new: Mapping[str, str],
    known: Mapping[str, str],
    pieces: Collection[str],
    folder: Path,
) -> None:
    for code, like in new.items():
        where = f'tokenizer: languages={dict(new)}: '
        if not (isinstance(code, str) and isinstance(like, str)):
            raise UserError(f'{where}codes must be texts, as in {{"new": "like"}}.')
        _check_language(where, like, known, folder)
        if known[like] != like:
            raise UserError(
                f'{where}Transformers fixes the languages of {folder}. Use the code of '
                'a language that you do not need.'
            )
        if code in known:
            raise UserError(f'{where}{folder} has {code!r}. Leave it out.')
        if not re.fullmatch('[A-Za-z]+(_[A-Za-z]+)*', code):
            raise UserError(
                f'{where}{code!r} must consist of letters and single underscores.'
            )
        if code in pieces:
            raise UserError(
                f'{where}{code!r} is a piece of the vocabulary of {folder}. Choose '
                'another code.'
            )


def _check_tokens(found: HuggingfaceTokenizer, folder: Path) -> None:
    theirs, special = found.theirs, found.config_tokens
    pieces = set(theirs.get_vocab().values()) - set(theirs.all_special_ids)
    # If a file is missing, Transformers uses a vocabulary of one space, or none.
    if len(pieces) < 2:
        raise UserError(f'{folder} has no vocabulary. {_COPY_HINT}')
    for piece in pieces:
        if not isinstance(piece, int):
            raise UserError(
                f'{folder}: {piece!r:.60} in the vocabulary is not an integer id. '
                f'{_COPY_HINT}'
            )
    if (theirs.pad_token_id, theirs.eos_token_id) != (special.padding, special.eos):
        raise UserError(
            f'{folder}: the tokenizer has pad_token_id={theirs.pad_token_id} and '
            f'eos_token_id={theirs.eos_token_id}, but the config has {special.padding} '
            f'and {special.eos}. They come from different checkpoints.'
        )
    last = max(pieces.union(*found.around_source, *found.around_target))
    if last >= found.vocab_size:
        raise UserError(
            f'{folder}: the tokenizer has token {last}, but the model has only '
            f'{found.vocab_size} embedding rows. They come from different checkpoints.'
        )
