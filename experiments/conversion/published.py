"""A run with a published tokenizer → a folder as its checkpoint was published."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.command_line import packages
from experiments.conversion import huggingface
from experiments.conversion.trained import Trained
from experiments.data.published import CONFIG, GENERATION, PublishedTokenizer
from experiments.errors import UserError
from flaxformer_lite.families.base import Described
from flaxformer_lite.pretrained import load

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
    packages.check('--to=huggingface', ['safetensors'], 'export')
    tokenizer = trained.tokenizer
    assert isinstance(tokenizer, PublishedTokenizer)
    documents = {}
    for name in (CONFIG, GENERATION, _TOKENIZER):
        is_there = name in dict(tokenizer.sums)
        documents[name] = storage.read_json(tokenizer.folder / name) if is_there else {}
    model = trained.model
    described = Described(trained.config.model, model.vocab_size, model.special_tokens)
    theirs = documents[CONFIG]
    try:
        config, arrays = load.to_pretrained(
            described, trained.variables, theirs['model_type']
        )
    except ValueError as error:
        raise UserError(f'--to=huggingface: {error}') from None
    config |= {'bos_token_id': theirs.get('bos_token_id'), 'dtype': 'float32'}
    documents[CONFIG] = config
    documents[GENERATION] |= _tokens(tokenizer)
    if any(tokenizer.languages):
        source, target = tokenizer.languages
        documents[_TOKENIZER] |= {'src_lang': source, 'tgt_lang': target}

    def write(folder: Path) -> None:
        for name, _ in tokenizer.sums:
            shutil.copyfile(tokenizer.folder / name, folder / name)
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
