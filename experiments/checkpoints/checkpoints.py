"""Checkpoints: a training state with its metadata, verified when it is read."""

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.checkpoints import averaging, folder, manifest
from experiments.checkpoints.averaging import Mean
from experiments.checkpoints.folder import CheckpointFolder
from experiments.checkpoints.manifest import Damaged
from experiments.checkpoints.reader import CheckpointReader, Restored
from experiments.checkpoints.state_files import StateFiles
from experiments.checkpoints.writer import CheckpointWriter
from experiments.errors import UserError
from experiments.runtime import processes


class Checkpoints:
    """The checkpoints of a run, written in the background.

    A kill at any time leaves them good: a checkpoint is a folder that gets its name,
    the step, only when all of it is on disk. It holds `state`, which Orbax writes, and
    a manifest. Orbax restores a flipped byte without an error; the manifest detects it.
    What is being read is locked, so that the training process does not remove it.

    Args:
      directory: gets a folder for each step.
      keep: how many of the last checkpoints stay, at least one.
      keep_best: how many of those with the highest scores stay as well.
      read_only: for another process than the one that trains: nothing is changed.
    """

    def __init__(
        self,
        directory: Path,
        keep: int = 1,
        keep_best: int = 0,
        read_only: bool = False,
    ):
        self._folder = CheckpointFolder(directory)
        self._read_only = read_only
        self._files = StateFiles()
        self._writer = CheckpointWriter(self._folder, self._files, keep, keep_best)
        self._reader = CheckpointReader(self._folder, self._files)
        if not read_only:
            self._folder.remove_nameless()

    def save(
        self,
        step: int,
        state: Any,
        metadata: dict[str, Any],
        score: float | None = None,
        due: bool = True,
    ) -> None:
        """Begins to save a state with its metadata, at a step later than all others.

        It returns when the state may be donated; as a rule the writing goes on then.

        Args:
          state: a tree of arrays.
          metadata: what JSON can hold.
          score: the higher the better; without one the checkpoint is never among the
            best.
          due: False for a checkpoint that is saved only because the run was stopped. It
            is removed when the next one is there, and is never among the last, which
            are therefore those of a run that never stopped.

        Raises:
          UserError: this checkpoint, or the one before it, cannot be written.
        """
        if score is not None and not math.isfinite(score):
            score = None
        content = {
            'metadata': metadata,
            'score': score,
            'due': due,
            'leaves': manifest.kinds(state),
        }
        self._writer.save(step, state, content)

    def set_score(self, step: int, score: float) -> None:
        """Gives a score to a checkpoint that was saved without one.

        Raises:
          UserError: its manifest cannot be read or written.
        """
        if not math.isfinite(score):
            return
        path = self._folder.path(step)
        try:
            if processes.is_first():
                manifest.amend(path, score=score)
        except Damaged as error:
            raise UserError(f'checkpoint {path}: {error}') from error
        processes.barrier('score')

    def wait(self) -> None:
        """Returns when the checkpoint that was begun is complete.

        Raises:
          UserError: it cannot be written.
        """
        self._writer.wait()

    def close(self) -> None:
        """Waits, as `wait`, and ends the threads."""
        try:
            self._writer.close()
        finally:
            self._files.close()
            if not self._read_only:
                self._folder.remove_nameless()

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, in order."""
        return self._folder.steps()

    def last_steps(self, number: int) -> list[int]:
        """The latest steps that were due, in order.

        Where none was due yet, it is the latest of all.
        """
        manifests = self._folder.manifests()
        due = folder.last(manifests, number)
        return due if due else list(manifests)[-1:]

    def best_steps(self, number: int) -> list[int]:
        """The steps of the highest scores, best first; of equal scores the latest."""
        return folder.best(self._folder.manifests(), number)

    def unknown_steps(self) -> list[int]:
        """The steps of those so damaged that not even their scores are known."""
        manifests = self._folder.manifests()
        return [step for step, content in manifests.items() if not content]

    def restore(
        self, abstract_state: Any, warn: Callable[[str], None] = print
    ) -> Restored | None:
        """The latest undamaged checkpoint, or None where there is none yet.

        Later ones, which are damaged, are renamed.

        Args:
          abstract_state: a tree of shapes and dtypes, whose shardings say where the
            leaves go.
          warn: is told of each damaged checkpoint.

        Raises:
          UserError: all are damaged, or they are of another model; or one cannot be
            read now, and may be good.
        """
        self.wait()
        damaged: dict[int, str] = {}
        for step in reversed(processes.from_first(self.steps)):
            try:
                content = self._reader.check(step, abstract_state)
                restored = self._reader.read(step, content, abstract_state)
            except Damaged as error:
                # Not the error: it would keep the damaged state in memory.
                damaged[step] = str(error)
                continue
            if processes.is_first():
                self._set_aside(damaged, warn)
            return restored
        if not damaged:
            return None
        for step, reason in damaged.items():
            if processes.is_first():
                warn(f'the checkpoint of step {step} is damaged: {reason}')
        raise UserError(
            f'all checkpoints in {self._folder.directory} are damaged; '
            'move that folder away to begin the run again'
        )

    def _set_aside(self, damaged: dict[int, str], warn: Callable[[str], None]) -> None:
        for step, reason in damaged.items():
            name = self._folder.set_aside(step)
            warn(
                f'the checkpoint of step {step} is damaged: {reason}; '
                f'it is kept as {name}'
            )

    def average(
        self,
        steps: Sequence[int],
        abstract: Any,
        warn: Callable[[str], None] = print,
    ) -> Mean:
        """The mean of the variables that were saved at some steps.

        Nothing else of the checkpoints is read, such as an optimizer's moments, so
        damage to that goes unnoticed here.

        Args:
          abstract: a nested dict of shapes, dtypes and shardings: where the mean goes.
          warn: is told of each damaged checkpoint, which is left out.

        Raises:
          UserError: none is good, one is of another model, or one cannot be read now.
          hold.Gone: one was removed before it could be read.
        """
        damaged: dict[int, str] = {}
        with self._folder.reading(steps):
            manifests = self._check(steps, abstract, damaged)
            variables = self._average(manifests, abstract, damaged)
        left_out = [step for step in steps if step in damaged]
        for step in left_out:
            reason = damaged[step]
            warn(f'the checkpoint of step {step} is damaged and left out: {reason}')
        good = [step for step in steps if step not in damaged]
        return Mean(variables, good, left_out)

    def _check(
        self, steps: Sequence[int], abstract: Any, damaged: dict[int, str]
    ) -> dict[int, dict[str, Any]]:
        """The manifests of those that are whole; of others, `damaged` gets why."""
        manifests = {}
        for step in steps:
            try:
                manifests[step] = self._reader.check(step, abstract)
            except Damaged as error:
                damaged[step] = str(error)
        return manifests

    def _average(
        self,
        manifests: dict[int, dict[str, Any]],
        abstract: Any,
        damaged: dict[int, str],
    ) -> Any:
        """The mean of those in `manifests` whose arrays are what was saved."""

        def read(step: int, part: Any) -> Any:
            try:
                return self._reader.read(step, manifests[step], part).state
            except Damaged as error:
                damaged[step] = str(error)
                raise

        while good := [step for step in manifests if step not in damaged]:
            # One that is found damaged late is in the means of parts before.
            with contextlib.suppress(Damaged):
                return averaging.join(
                    averaging.average(read(step, part) for step in good)
                    for part in averaging.parts(abstract)
                )
        reasons = '; '.join(f'{step}: {reason}' for step, reason in damaged.items())
        raise UserError(
            f'all checkpoints that are to be used, in {self._folder.directory}, '
            f'are damaged ({reasons}): restore one from a copy, or train again in '
            'another --workdir'
        )
