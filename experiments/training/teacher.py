"""The teacher run of distillation (`train.teacher`)."""

from pathlib import Path

from experiments.config.user_modules import without_trust_flag
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun


def open_teacher(path: str, vocabulary: Tokenizer | None = None) -> OpenedRun | None:
    """Opens the teacher run in a directory, unless the path is empty.

    Raises UserError if its tokenizer differs from `vocabulary`.
    """
    if not path:
        return None
    with without_trust_flag():
        teacher = OpenedRun(Path(path).expanduser())
    if vocabulary and teacher.tokenizer.digest != vocabulary.digest:
        raise UserError(
            f'train.teacher={path}: the teacher has a different tokenizer. Train both '
            'runs on the same text with the same tokenizer.'
        )
    return teacher
