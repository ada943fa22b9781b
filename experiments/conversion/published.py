"""A run with a published tokenizer → a folder as its checkpoint was published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.command_line import flags
from experiments.conversion import huggingface
from experiments.conversion.trained import Trained
from experiments.data.published.tokenizer import PublishedTokenizer
from experiments.errors import UserError
from flaxformer_lite.families.base import Described
from flaxformer_lite.pretrained import load

_CONFIG = 'config.json'
_GENERATION = 'generation_config.json'
_TOKENIZER = 'tokenizer_config.json'


def preparer(to: str) -> Callable[..., Callable[[Path], None]]:
    """`prepare`, of the one format that such a run is written in.

    Raises:
      UserError: another format was asked for.
    """
    if to != 'huggingface':
        raise UserError(
            f'--to={to} does not write a tokenizer of tokenizer.kind=published: write '
            'it with --to=huggingface, and convert that with a program of its own'
        )
    return prepare


def prepare(trained: Trained) -> Callable[[Path], None]:
    """What writes a folder of the checkpoint's family, with its tokenizer's files.

    Raises:
      UserError: a package is missing, or the family cannot have this model; names the
        field.
    """
    flags.require_packages('--to=huggingface', ['safetensors'], 'export')
    assert isinstance(trained.tokenizer, PublishedTokenizer)
    kept = dict(trained.tokenizer.files)
    if _CONFIG not in kept:
        raise UserError(
            f'--to=huggingface: the run has no published/{_CONFIG} any more: restore '
            'that folder from a copy'
        )
    theirs = storage.parse_json(kept.pop(_CONFIG))
    generation = storage.parse_json(kept.pop(_GENERATION, b'{}'))
    model = trained.model
    described = Described(trained.config.model, model.vocab_size, model.special_tokens)
    try:
        config, arrays = load.to_pretrained(
            described, trained.variables, theirs['model_type']
        )
    except ValueError as error:
        raise UserError(f'--to=huggingface: {error}') from None
    config |= {'bos_token_id': theirs.get('bos_token_id'), 'dtype': 'float32'}
    documents = {
        _CONFIG: config,
        _GENERATION: generation | _tokens(trained.tokenizer),
        _TOKENIZER: _settings(trained.tokenizer, kept.pop(_TOKENIZER, b'{}')),
    }

    def write(folder: Path) -> None:
        for name, content in kept.items():
            (folder / name).write_bytes(content)
        huggingface.save(folder, documents, arrays)

    return write


def _tokens(tokenizer: PublishedTokenizer) -> dict[str, Any]:
    """What a translation begins and ends with."""
    special = tokenizer.special_tokens
    tokens = {
        'pad_token_id': special.padding,
        'eos_token_id': special.end,
        'decoder_start_token_id': special.start,
    }
    if tokenizer.forced_first is not None:
        tokens['forced_bos_token_id'] = tokenizer.forced_first
    return tokens


def _settings(tokenizer: PublishedTokenizer, published: bytes) -> dict[str, Any]:
    """Those of the tokenizer, with the languages that the run has."""
    settings = storage.parse_json(published)
    source, target = tokenizer.vocabulary.languages
    return settings | ({'src_lang': source, 'tgt_lang': target} if source else {})
