"""Writes checkpoints in the background, and removes those that are not to be kept."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.checkpoints import digest, manifest
from experiments.checkpoints.folder import CheckpointFolder
from experiments.checkpoints.state_files import Failed, StateFiles
from experiments.errors import UserError
from experiments.runs import space
from experiments.runtime import processes


class CheckpointWriter:
    """Writes one checkpoint at a time into a folder of them.

    Args:
      folder: where they are.
      state_files: writes the arrays.
      keep: how many of the last checkpoints stay.
      keep_best: how many of those with the highest scores stay as well.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        state_files: StateFiles,
        keep: int,
        keep_best: int,
    ):
        self._folder = folder
        self._files = state_files
        self._keep = keep
        self._keep_best = keep_best
        self._background = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def save(self, step: int, state: Any, content: dict[str, Any]) -> None:
        """Begins to write a state, and a manifest with this content.

        Raises:
          UserError: this checkpoint, or the one before it, cannot be written.
        """
        self.wait()
        self._check_can_save(step)
        nameless = self._folder.nameless(step)
        # Of the state itself, before Orbax makes anything of it.
        content = content | {'digests': digest.of(state)}
        try:
            self._files.save(nameless / 'state', state)
        except Failed as error:
            if processes.is_first():
                storage.remove(nameless)
            raise self._failure(error) from error
        self._pending = self._background.submit(self._finish, nameless, step, content)

    def wait(self) -> None:
        """Returns when the checkpoint that was begun is complete.

        Raises:
          UserError: it cannot be written.
        """
        pending = self._pending
        self._pending = None
        try:
            if pending is not None:
                pending.result()
        except Exception as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Waits, as `wait`, and ends the thread."""
        try:
            self.wait()
        finally:
            self._background.shutdown()

    def _finish(self, nameless: Path, step: int, content: dict[str, Any]) -> None:
        """Names a checkpoint when it is complete, and removes those not to be kept."""
        # Orbax returns in the first process when all have written their parts.
        if not processes.is_first():
            self._files.wait()
        else:
            try:
                self._files.wait()
                manifest.write(nameless, content)
                storage.commit(nameless, self._folder.path(step))
            finally:
                storage.remove(nameless)
            self._folder.remove_old(self._keep, self._keep_best)
        processes.barrier('checkpoint')

    def _check_can_save(self, step: int) -> None:
        """Refuses a step that is not the latest, and a disk without space."""
        steps = self._folder.steps()
        if steps and step <= steps[-1]:
            raise self._failure(f'step {step} is not later than those there')
        directory = self._folder.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(directory).free
        except OSError as error:
            raise self._failure(error) from error
        if not steps:
            return  # how much space the first one needs is not known
        # What is on disk, of all processes, and not what this one has in memory.
        needed = space.taken(self._folder.path(steps[-1]))
        if free < needed:
            raise self._failure(
                f'it takes about {space.text(needed)}, '
                f'{space.text(needed - free)} more than are free'
            )

    def _failure(self, reason: Exception | str) -> UserError:
        steps = self._folder.steps()
        good = 'there is none yet'
        if steps:
            good = f'the one of step {steps[-1]} stays good'
        return UserError(
            f'cannot write a checkpoint to {self._folder.directory} ({good}): {reason}'
        )
