"""Published checkpoints as runs."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

import flaxformer_lite
from experiments import storage
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.config import components, load
from experiments.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    ExperimentConfig,
)
from experiments.data.tokenizers.huggingface import (
    HuggingfaceTokenizer,
    from_checkpoint,
)
from experiments.errors import UserError, user_errors
from experiments.runs import directory, environment, trained_run
from flaxformer_lite.pretrained import folder

STEP = 0  # of its checkpoint, which has no training steps here


class Conversion(NamedTuple):
    """A published checkpoint, read but for its arrays."""

    folder: Path
    model_type: str
    config: ExperimentConfig
    tokenizer: HuggingfaceTokenizer


def read_checkpoint(
    path: Path, data: str, source: str = '', target: str = ''
) -> Conversion:
    """Reads a checkpoint's config and tokenizer, but no arrays.

    Args:
      source, target: For families that write languages as tokens.
    """
    with user_errors():
        theirs = folder.read_config(path)
        model, vocab_size, special_tokens = flaxformer_lite.describe_pretrained(path)
    specs: Any = {
        'data': data,
        'tokenizer': f'huggingface(vocab_size={vocab_size})',
    }
    config = ExperimentConfig(
        **specs,
        model=model,
        evaluation=EvaluationConfig(average=1),
        checkpoint=CheckpointConfig(keep=1),
    )
    components.build(config, vocab_size, special_tokens)
    tokenizer = from_checkpoint(path, vocab_size, special_tokens, source, target)
    return Conversion(path, str(theirs['model_type']), config, tokenizer)


def write_run(conversion: Conversion, path: Path) -> Any:
    """Writes the directory of the run, atomically, and returns its variables."""
    if storage.exists(path):
        raise UserError(f'{path} already exists. Choose another --workdir.')
    stored = conversion.config.to_dict()
    with user_errors():
        _, variables = flaxformer_lite.from_pretrained(conversion.folder)
    with storage.replacing(path) as draft:
        draft.mkdir()
        conversion.tokenizer.save(draft / trained_run.TOKENIZER)
        environment.save(draft, [device.device_kind for device in jax.devices()])
        checkpoints = Checkpoints(draft / trained_run.CHECKPOINTS)
        checkpoints.save(STEP, variables, {'converted': conversion.model_type})
        checkpoints.close()
        storage.write_json(draft / directory.CONFIG, load.to_store(stored))
    return variables
