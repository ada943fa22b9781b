"""The run that another run learns from (`train.teacher`)."""

import functools
from pathlib import Path
from typing import Any

from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from flaxformer_lite.models.base import Model


@functools.lru_cache(maxsize=1)  # all programs of a run share it
def read(path: str) -> tuple[Model | None, Any, str]:
    """A teacher's model, its variables and the digest of its tokenizer.

    Without a path they are nothing.

    Raises:
      UserError: the run cannot be read.
    """
    if not path:
        return None, None, ''
    run = OpenedRun(Path(path).expanduser())
    return run.model, run.variables, run.tokenizer.digest


def check_tokenizer(path: str, vocabulary: Tokenizer) -> None:
    """Refuses a teacher that means other pieces by its ids.

    Raises:
      UserError: as `read`; or names the field.
    """
    *_, digest = read(path)
    if path and digest != vocabulary.digest:
        raise UserError(
            f'train.teacher={path}: its tokenizer is another than that of this run: '
            'train both on one text with the same tokenizer'
        )
