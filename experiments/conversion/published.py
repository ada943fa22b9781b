"""A run with a published tokenizer → a folder as its checkpoint was published."""

import shutil
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.conversion import huggingface
from experiments.conversion.trained import Trained
from experiments.data.published import CONFIG, GENERATION, PublishedTokenizer
from experiments.errors import user_errors
from flaxformer_lite.families.base import Described
from flaxformer_lite.pretrained import load

_TOKENIZER = 'tokenizer_config.json'


def write(trained: Trained, folder: Path) -> None:
    """Writes a folder of the checkpoint's family, with its tokenizer's files.

    Raises:
      UserError: the family cannot have this model; names the field.
    """
    tokenizer: Any = trained.tokenizer
    assert isinstance(tokenizer, PublishedTokenizer)
    documents = {}
    for name in (CONFIG, GENERATION, _TOKENIZER):
        is_there = name in dict(tokenizer.sums)
        documents[name] = storage.read_json(tokenizer.folder / name) if is_there else {}
    model = trained.model
    described = Described(trained.config.model, model.vocab_size, model.special_tokens)
    theirs = documents[CONFIG]
    with user_errors('--to=huggingface: '):
        config, arrays = load.to_pretrained(
            described, trained.variables, theirs['model_type']
        )
    config |= {'bos_token_id': theirs.get('bos_token_id'), 'dtype': 'float32'}
    documents[CONFIG] = config
    special = tokenizer.special_tokens
    documents[GENERATION] |= {
        'pad_token_id': special.padding,
        'eos_token_id': special.end,
        'decoder_start_token_id': special.start,
    }
    if tokenizer.forced_first is not None:
        documents[GENERATION]['forced_bos_token_id'] = tokenizer.forced_first
    if any(tokenizer.languages):
        source, target = tokenizer.languages
        documents[_TOKENIZER] |= {'src_lang': source, 'tgt_lang': target}
    for name, _ in tokenizer.sums:
        shutil.copyfile(tokenizer.folder / name, folder / name)
    huggingface.save(folder, documents, arrays)
