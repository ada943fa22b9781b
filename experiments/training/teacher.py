"""The run that another run learns from (`train.teacher`)."""

import functools
from pathlib import Path

from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun


@functools.lru_cache(maxsize=1)  # all programs of a run share it
def open_teacher(path: str) -> OpenedRun | None:
    """The run in a directory, averaged as it is scored; without a path there is none.

    Raises:
      UserError: the run cannot be read.
    """
    return OpenedRun(Path(path).expanduser()) if path else None


def check_teacher(path: str, vocabulary: Tokenizer) -> None:
    """Refuses a teacher that means other pieces by its ids.

    Raises:
      UserError: as `open_teacher`; or names the field.
    """
    taught = open_teacher(path)
    if taught and taught.tokenizer.digest != vocabulary.digest:
        raise UserError(
            f'train.teacher={path}: its tokenizer is another than that of this run: '
            'train both on one text with the same tokenizer'
        )
