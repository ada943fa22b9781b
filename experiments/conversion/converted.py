"""A published checkpoint as the directory of a run, which is whole or not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import storage
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.config import check, load
from experiments.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    ExperimentConfig,
    TokenizerConfig,
)
from experiments.data.published import folder as tokenizers
from experiments.data.published.opened import Request
from experiments.data.published.tokenizer import PublishedTokenizer
from experiments.errors import UserError
from experiments.runs import directory, environment, trained_run
from flaxformer_lite.pretrained import folder

STEP = 0  # of its checkpoint: it has made no step here


class Conversion(NamedTuple):
    """What is to be converted, once it is known that it can be.

    Attributes:
      folder: of the checkpoint.
      model_type: its family.
      config: of the run.
      tokenizer: of the run.
    """

    folder: Path
    model_type: str
    config: ExperimentConfig
    tokenizer: PublishedTokenizer


def read(path: Path, data: str, source: str = '', target: str = '') -> Conversion:
    """A checkpoint's config and tokenizer; no array is read.

    Args:
      path: a folder as Transformers saves it.
      data: of the run's config: what `evaluate` scores it on.
      source, target: the languages, where the family writes them as tokens.

    Raises:
      UserError: it cannot be converted; names the file or the field.
    """
    with _naming():
        theirs = folder.read_config(path)
        described = load.describe_pretrained(path)
    model_type = str(theirs['model_type'])
    request = Request(
        path,
        model_type,
        described.vocab_size,
        described.special_tokens,
        source,
        target,
    )
    config = ExperimentConfig(
        data=data,
        tokenizer=TokenizerConfig(described.vocab_size, kind='published'),
        model=described.config,
        evaluation=EvaluationConfig(average=1),
        checkpoint=CheckpointConfig(keep=1),
    )
    check.check_config(config)
    check.build_model(config, described.vocab_size, described.special_tokens)
    return Conversion(path, model_type, config, tokenizers.read(request))


def write(conversion: Conversion, path: Path) -> Any:
    """Writes the directory of the run, and returns its variables.

    Raises:
      UserError: something is there; the arrays are damaged or not those of the config;
        it cannot be written. Then nothing is there that was not before.
    """
    config = conversion.config
    _check_empty(path)
    stored = config.to_dict()
    directory.check(path, stored)
    storage.sweep(path.absolute().parent, held=False)
    with _naming():
        _, variables = load.from_pretrained(conversion.folder)
    with storage.replacing(path) as draft:
        draft.mkdir()
        conversion.tokenizer.save(draft / trained_run.TOKENIZER)
        environment.save(draft, [device.device_kind for device in jax.devices()])
        checkpoints = Checkpoints(draft / trained_run.CHECKPOINTS)
        metadata = {'converted': conversion.model_type}
        checkpoints.save(STEP, variables, metadata)
        checkpoints.close()
        storage.write_json(draft / directory.CONFIG, load.to_store(stored))
    return variables


def _check_empty(path: Path) -> None:
    if not storage.exists(path):
        return
    if not path.is_dir() or any(path.iterdir()):
        raise UserError(
            f'{path} is there and no empty directory: name another with --workdir'
        )


@contextmanager
def _naming() -> Iterator[None]:
    """What the library refuses, as the user's error."""
    try:
        yield
    except (ValueError, ModuleNotFoundError) as error:
        raise UserError(str(error)) from None
