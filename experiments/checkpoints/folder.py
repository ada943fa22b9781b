"""The folder of a run's checkpoints: which there are, which are the last and best.

Not Orbax's `CheckpointManager` (0.12): with it we would lose what holds here.

- It removes an old step under the step's own name, file by file. A kill meanwhile
  leaves a folder that counts as a checkpoint. Here it loses its name first.
- It counts steps by their names when it keeps the last and the best. Damaged ones take
  the places of good ones, which are removed. Here none counts whose manifest is damaged
  or cannot be read, and none of those is removed.
- It does not know of readers in other processes; here they lock what they read.
- A score is given with the save or never; here an evaluation that was interrupted is
  made up for, and its score is added (`Checkpoints.set_score`).
- An error or an older step makes `save` return False, or writes a line to the log.

So retention and names are here, and Orbax writes and reads one folder of arrays at a
time (`state_files`). They need a disk: a folder that gets its name by one renaming,
names that are synced, and locks. A bucket (gs://…) has none of them, so a run's
directory there is refused (`command_line.flags.directory`).
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.checkpoints import hold, manifest
from experiments.checkpoints.manifest import Damaged
from experiments.errors import UserError
from experiments.runtime import processes

# No `007`, and none of the other scripts' digits that int() understands.
_STEP = re.compile('0|[1-9][0-9]*')

Manifests = Mapping[int, Mapping[str, Any]]  # by step


class CheckpointFolder:
    """The checkpoints by their folders' names.

    A checkpoint's folder is named `<step>`; `.<step>` while it is written or removed;
    `damaged-<step>` once it was found damaged. All methods raise UserError where the
    folder or a manifest cannot be read now.
    """

    def __init__(self, directory: Path):
        # Orbax saves nothing where the path is relative.
        self.directory = directory.absolute()

    def path(self, step: int) -> Path:
        return self.directory / str(step)

    def nameless(self, step: int) -> Path:
        """Where a checkpoint is while it is written and while it is removed."""
        return self.directory / f'.{step}'

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, in order."""
        return sorted(int(name) for name in self._names() if _STEP.fullmatch(name))

    def manifests(self) -> dict[int, dict[str, Any]]:
        """The manifest of each checkpoint, in order; of a damaged one, nothing."""
        manifests = {}
        for step in self.steps():
            manifests[step] = {}
            with contextlib.suppress(Damaged):
                manifests[step] = manifest.read(self.path(step))
        return manifests

    @contextlib.contextmanager
    def reading(self, steps: Sequence[int]) -> Iterator[None]:
        """Keeps checkpoints from being removed, as `hold.reading` does.

        Of several processes the first keeps them for all. What the block raises, it is
        to raise in all of them.

        Raises:
          hold.Gone: one was not there, or was removed; in each process.
        """
        held = contextlib.ExitStack()
        if not processes.from_first(lambda: self._hold(held, steps)):
            raise hold.Gone
        failure: Exception | None = None
        try:
            with held:
                yield
        except (UserError, hold.Gone) as error:
            failure = error
        if processes.from_first(lambda: isinstance(failure, hold.Gone)):
            raise hold.Gone from failure
        if failure is not None:
            raise failure

    def _hold(self, held: contextlib.ExitStack, steps: Sequence[int]) -> bool:
        """Whether all of the checkpoints were there."""
        try:
            for step in steps:
                held.enter_context(hold.reading(self.path(step) / manifest.NAME))
        except hold.Gone:
            with contextlib.suppress(hold.Gone):
                held.close()
            return False
        return True

    def remove_nameless(self) -> None:
        """Removes what a killed process had begun to write or to remove."""
        if not processes.is_first():
            return
        for name in self._names():
            if name.startswith('.') and _STEP.fullmatch(name[1:]):
                storage.remove(self.directory / name)

    def remove_old(self, keep: int, keep_best: int) -> None:
        """Removes all but the newest, the last `keep` and the best `keep_best`.

        Those that are damaged or are being read stay, too.
        """
        manifests = {}
        for step in self.steps():
            with contextlib.suppress(Damaged, UserError):
                manifests[step] = manifest.read(self.path(step))
        kept = {*last(manifests, keep), *best(manifests, keep_best)}
        for step in list(manifests)[:-1]:
            if step not in kept:
                self._remove(step)

    def set_aside(self, step: int) -> str:
        """Renames a damaged checkpoint, so that it is no step's → its new name."""
        name = f'damaged-{step}'
        number = 1
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
            # First it loses its name, so that a kill leaves no half checkpoint.
            os.replace(self.path(step), self.nameless(step))
        storage.remove(self.nameless(step))


def last(manifests: Manifests, number: int) -> list[int]:
    """The latest steps that were due, in order."""
    due = [step for step, content in manifests.items() if content.get('due', True)]
    return due[-number:]


def best(manifests: Manifests, number: int) -> list[int]:
    """The steps of the highest scores, the best first; of equal scores the latest."""
    scored = []
    for step, content in manifests.items():
        score = content.get('score')
        if score is not None:
            scored.append((score, step))
    scored.sort(reverse=True)
    return [step for _, step in scored[:number]]
