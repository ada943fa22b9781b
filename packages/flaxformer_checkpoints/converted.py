"""Published checkpoints as runs."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

import flaxformer_checkpoints
from experiments import storage
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.config import components, load
from experiments.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    ExperimentConfig,
)
from experiments.errors import UserError, user_errors
from experiments.runs import directory, environment, trained_run
from flaxformer_checkpoints.loading import adaptation, folder
from flaxformer_checkpoints.tokenizer import (
    HuggingfaceTokenizer,
    from_checkpoint,
)

STEP = 0  # step of the converted checkpoint, which was not trained here


class Conversion(NamedTuple):
    """A published checkpoint, read but for its arrays.

    Attributes:
      is_adapted: Whether both stacks get its layers.
    """

    folder: Path
    model_type: str
    config: ExperimentConfig
    tokenizer: HuggingfaceTokenizer
    is_adapted: bool = False


def read_checkpoint(
    path: Path,
    data: str,
    source: str = '',
    target: str = '',
    to_encoder_decoder: str | None = None,
) -> Conversion:
    """Reads a checkpoint's config and tokenizer, but no arrays.

    Args:
      source, target: For families that write languages as tokens.
      to_encoder_decoder: The cross-attention for `adaptation`.
    """
    with user_errors():
        theirs = folder.read_config(path)
        if 'model_type' not in theirs and 'model' in theirs:
            raise UserError(f'{path}: is a run. To export it, pass --to and --out.')
        model, vocab_size, special_tokens = flaxformer_checkpoints.describe_pretrained(
            path
        )
        if to_encoder_decoder:
            model = adaptation.to_encoder_decoder(model, to_encoder_decoder)
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
    model_type = str(theirs['model_type'])
    return Conversion(path, model_type, config, tokenizer, bool(to_encoder_decoder))


def write_run(conversion: Conversion, path: Path) -> Any:
    """Writes the directory of the run, atomically, and returns its variables."""
    if storage.exists(path):
        raise UserError(f'{path} already exists. Choose another --workdir.')
    stored = conversion.config.to_dict()
    with user_errors():
        _, variables = flaxformer_checkpoints.from_pretrained(conversion.folder)
    if conversion.is_adapted:
        variables = adaptation.adapt_variables(conversion.config.model, variables)
    with storage.replacing(path) as draft:
        draft.mkdir()
        conversion.tokenizer.save(draft / trained_run.TOKENIZER)
        environment.save(draft, [device.device_kind for device in jax.devices()])
        checkpoints = Checkpoints(draft / trained_run.CHECKPOINTS)
        metadata = {
            'converted': conversion.model_type,
            'tokenizer': conversion.tokenizer.model_digest,
        }
        checkpoints.save(STEP, variables, metadata)
        checkpoints.close()
        storage.write_json(draft / directory.CONFIG, load.to_store(stored))
    return variables
