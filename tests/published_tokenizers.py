"""Checkpoints as they are published: those of goldens/ with a tokenizer each."""

import json
import shutil
from pathlib import Path
from typing import Any

from experiments.conversion import converted
from experiments.conversion.converted import Conversion

GOLDENS = Path(__file__).parent / 'goldens'
TOKENIZERS = GOLDENS / 'tokenizers'
NAMES = sorted(path.name for path in TOKENIZERS.iterdir())


def golden_of(name: str) -> dict[str, Any]:
    """What Transformers makes of a tokenizer: goldens/make_tokenizers.py."""
    return json.loads((TOKENIZERS / name / 'golden.json').read_text('utf-8'))


def checkpoint(name: str, path: Path) -> Path:
    """A folder with config, weights and tokenizer."""
    shutil.copytree(GOLDENS / 'families' / golden_of(name)['family'], path)
    shutil.copytree(TOKENIZERS / name, path, dirs_exist_ok=True)
    return path


def read(name: str, path: Path) -> Conversion:
    """Such a folder, ready to be converted."""
    languages = golden_of(name)['languages']
    return converted.read_checkpoint(
        checkpoint(name, path), 'grammar(pairs=100)', *languages
    )
