"""The teacher run of distillation (`train.teacher`)."""

import functools
from pathlib import Path

from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun


@functools.lru_cache(maxsize=1)  # shared by all programs of a run
def open_teacher(path: str) -> OpenedRun | None:
    """Opens the teacher run with averaged parameters; returns None for an empty path.

    Raises:
      UserError: The run cannot be read.
    """
    return OpenedRun(Path(path).expanduser()) if path else None


def check_teacher(path: str, vocabulary: Tokenizer) -> None:
    """Checks that the teacher has the same tokenizer.

    Raises:
      UserError: The tokenizers differ, or as `open_teacher`.
    """
    taught = open_teacher(path)
    if taught and taught.tokenizer.digest != vocabulary.digest:
        raise UserError(
            f'train.teacher={path}: its tokenizer is another than that of this run: '
            'train both on one text with the same tokenizer'
        )
