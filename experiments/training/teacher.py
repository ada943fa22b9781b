"""The run that another run learns from (`train.teacher`)."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from experiments import storage
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runs import trained_run
from flaxformer_lite.models.base import Model

NAME = 'teacher.json'


class Teacher(NamedTuple):
    """What a loss is given of the other run; nothing, where there is none.

    Attributes:
      model, variables: its model, and the mean of the checkpoints that it is scored
        with.
      record: the digests of its parameters and of its tokenizer.
    """

    model: Model | None = None
    variables: Any = None
    record: dict[str, str] | None = None


@functools.lru_cache(maxsize=1)  # all programs of a run share it
def read(path: str) -> Teacher:
    """The teacher of a directory; without a path it is nothing.

    Raises:
      UserError: the run cannot be read.
    """
    if not path:
        return Teacher()
    run = OpenedRun(Path(path).expanduser())
    record = {
        'parameters_sha256': trained_run.sha256(run.variables['params']),
        'tokenizer': run.tokenizer.digest,
    }
    return Teacher(run.model, run.variables, record)


def check(path: str, vocabulary: Tokenizer, workdir: Path) -> None:
    """Refuses a teacher that means other pieces by its ids, or that has changed.

    Args:
      path: the teacher's directory; '' for none.
      vocabulary: of the run.
      workdir: the run's, which may have been begun with the teacher.

    Raises:
      UserError: as `read`; or names the field.
    """
    record = read(path).record
    if record is None:
        return
    if record['tokenizer'] != vocabulary.digest:
        raise UserError(
            f'train.teacher={path}: its tokenizer is another than that of this run: '
            'train both on one text with the same tokenizer'
        )
    file = workdir / NAME
    if storage.exists(file) and storage.read_json(file) != record:
        raise UserError(
            f'train.teacher={path}: its parameters are no longer those that {workdir} '
            'was begun with: restore them, or begin a new run with another --workdir'
        )


def save(path: str, workdir: Path) -> None:
    """Writes which parameters a run learns from, by their digest."""
    record = read(path).record
    if record is not None:
        storage.write_json(workdir / NAME, record)
