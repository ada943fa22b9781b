"""The checkpoints of goldens/, each with a tokenizer, as they are published."""

import json
import shutil
from pathlib import Path
from typing import Any

from flaxformer_checkpoints import converted
from flaxformer_checkpoints.converted import Conversion

EXTRA_LENGTH = 3  # tokens that a translation may have more than its source
GOLDENS = Path(__file__).parent / 'goldens'
TOKENIZERS = GOLDENS / 'tokenizers'
NAMES = sorted(path.name for path in TOKENIZERS.iterdir())


def golden_of(name: str) -> dict[str, Any]:
    """Returns the texts and tokens that Transformers 5 computed."""
    return json.loads((TOKENIZERS / name / 'golden.json').read_text('utf-8'))


def checkpoint(name: str, path: Path) -> Path:
    shutil.copytree(GOLDENS / 'families' / golden_of(name)['family'], path)
    shutil.copytree(TOKENIZERS / name, path, dirs_exist_ok=True)
    return path


def read(name: str, path: Path) -> Conversion:
    languages = golden_of(name)['languages']
    return converted.read_checkpoint(
        checkpoint(name, path), 'grammar(pairs=100)', *languages
    )


def translated(model: Any, tokenizer: Any, name: str, text: str) -> str:
    """Returns Transformers' greedy translation of a text; '' for a blank text."""
    if not text.strip():
        return ''
    source = tokenizer(text, return_tensors='pt')
    start = model.config.decoder_start_token_id
    first = 0 if name == 'bart' else tokenizer(text_target='').input_ids[0]
    if name == 'mbart':
        start, first = tokenizer(text_target='').input_ids[-1], None
    never = {model.config.pad_token_id, start} - {model.config.eos_token_id}
    out = model.generate(
        **source,
        # The limit excludes the end token, which is forced there.
        max_new_tokens=source.input_ids.shape[1] + EXTRA_LENGTH - 2,
        do_sample=False,
        num_beams=1,
        decoder_start_token_id=start,
        forced_bos_token_id=first,
        forced_eos_token_id=None,
        bad_words_ids=[[token] for token in sorted(never)],
    )
    return tokenizer.decode(out[0], skip_special_tokens=True)
