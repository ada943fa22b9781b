"""The folder of a run's checkpoints: which are there, which are the last and the best."""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.checkpoints import manifest
from experiments.checkpoints.manifest import Damaged
from experiments.command_line.errors import UserError
from experiments.storage import files, hold

# Only what we write is a step: no `007`, and none of the other digits that int() understands.
_STEP = re.compile('0|[1-9][0-9]*')

Records = Mapping[
    int, Mapping[str, Any]
]  # step → what was written about its checkpoint


class CheckpointFolder:
    """Names of checkpoints: a step's own, `.<step>` while it is made or removed, `damaged-<step>`.

    All methods raise UserError where the folder or a record cannot be read now.
    """

    def __init__(self, directory: Path):
        self.directory = (
            directory.absolute()
        )  # with a relative path Orbax saves nothing

    def path(self, step: int) -> Path:
        return self.directory / str(step)

    def nameless(self, step: int) -> Path:
        """Where a checkpoint is while it is written and while it is removed."""
        return self.directory / f'.{step}'

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, in order."""
        return sorted(int(name) for name in self._names() if _STEP.fullmatch(name))

    def records(self) -> dict[int, dict[str, Any]]:
        """What was written about each checkpoint, in order; of a damaged one, nothing."""
        records = {}
        for step in self.steps():
            records[step] = {}
            with contextlib.suppress(Damaged):
                records[step] = manifest.read(self.path(step))
        return records

    def reading(self, step: int) -> contextlib.AbstractContextManager[None]:
        """As `hold.reading`."""
        return hold.reading(self.path(step) / manifest.NAME)

    def remove_nameless(self) -> None:
        """Removes what a process that was killed had begun to write or to remove."""
        for name in self._names():
            if name.startswith('.') and _STEP.fullmatch(name[1:]):
                files.remove(self.directory / name)

    def remove_old(self, keep: int, keep_best: int) -> None:
        """Leaves the newest, the last and the best; and what is damaged or is being read."""
        records = {}
        for step in self.steps():
            with contextlib.suppress(Damaged, UserError):
                records[step] = manifest.read(self.path(step))
        kept = {*last(records, keep), *best(records, keep_best)}
        for step in list(records)[:-1]:
            if step not in kept:
                self._remove(step)

    def set_aside(self, step: int) -> str:
        """Gives a damaged checkpoint a name that is no step's, and returns it."""
        name, number = f'damaged-{step}', 1
        while os.path.lexists(self.directory / name):
            number += 1
            name = f'damaged-{step}-{number}'
        try:
            os.replace(self.path(step), self.directory / name)
        except OSError as error:
            raise UserError(
                f'cannot rename {self.path(step)} to {name}: {error.strerror}'
            ) from error
        return name

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(
                f'cannot read {self.directory}: {error.strerror}'
            ) from error

    def _remove(self, step: int) -> None:
        with hold.removing(self.path(step) / manifest.NAME) as is_free:
            if not is_free:
                return
            # At once without a name, lest a kill leave half a checkpoint.
            os.replace(self.path(step), self.nameless(step))
        files.remove(self.nameless(step))


def last(records: Records, number: int) -> list[int]:
    """The latest steps that were due, in order."""
    due = [step for step, content in records.items() if content.get('due', True)]
    return due[-number:]


def best(records: Records, number: int) -> list[int]:
    """The steps of the highest scores, the best first; of equal scores the latest."""
    scores = [(content.get('score'), step) for step, content in records.items()]
    scored = sorted([pair for pair in scores if pair[0] is not None], reverse=True)
    return [step for _, step in scored][:number]
