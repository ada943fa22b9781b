"""Checkpoints: a training state and what belongs to it, saved as one and checked when read."""

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from experiments import files, record
from experiments.averaging import average
from experiments.errors import UserError
from experiments.record import Damaged

# Each thread of Orbax that fails prints a traceback; what matters is raised, and reported here.
logging.getLogger('absl').addFilter(lambda message: 'orbax' not in message.pathname)


class Restored(NamedTuple):
    step: int
    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, written in the background; a kill at any time leaves them good.

    Each is a folder, which gets its name, the step, when all in it is on disk: `state`, by Orbax,
    and a record of what it holds. Orbax restores a flipped byte without a word; the record tells.

    Args:
      directory: gets a folder for each step.
      keep: how many of the last checkpoints stay, at least one.
      keep_best: how many of those with the highest scores stay as well.
      read_only: for another process than the one that trains: changes nothing there.
    """

    def __init__(
        self,
        directory: Path,
        keep: int = 1,
        keep_best: int = 0,
        read_only: bool = False,
    ):
        self._directory = (
            directory.absolute()
        )  # with a relative path Orbax saves nothing
        self._keep, self._keep_best = keep, keep_best
        self._orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        self._background = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        if not read_only:
            for nameless in self._directory.glob('.[0-9]*'):
                shutil.rmtree(nameless)

    def save(
        self,
        step: int,
        state: Any,
        metadata: dict[str, Any],
        score: float | None = None,
        due: bool = True,
    ) -> None:
        """Begins to save a state, and JSON about it, at a step later than all others.

        Returns when the state is copied, and may be donated; the writing goes on.

        Args:
          state: a tree of arrays.
          score: the higher the better; without one the checkpoint is never among the best.
          due: False for one that only a stop asks for: it goes when the next is there, and does not
            count among the last, which so are the same in a run that never stopped.

        Raises:
          UserError: this checkpoint, or the one before it, cannot be written.
        """
        self.wait()
        self._refuse(step, state)
        if score is not None and not math.isfinite(score):
            score = None
        kinds = record.kinds(state)
        content = {'metadata': metadata, 'score': score, 'due': due, 'leaves': kinds}
        nameless = self._nameless(step)
        try:
            self._orbax.save(nameless / 'state', args=ocp.args.PyTreeSave(state))
        except Exception as error:
            raise self._failure(error) from error
        self._pending = self._background.submit(self._finish, nameless, step, content)

    def set_score(self, step: int, score: float) -> None:
        """Gives a score to a checkpoint that was saved without one.

        Raises:
          UserError: its record cannot be read or written.
        """
        if not math.isfinite(score):
            return
        try:
            record.amend(self._path(step), score=score)
        except Damaged as error:
            raise UserError(f'checkpoint {self._path(step)}: {error}') from error

    def wait(self) -> None:
        """Returns when the checkpoint that was begun is whole.

        Raises:
          UserError: it cannot be written.
        """
        pending, self._pending = self._pending, None
        try:
            if pending:
                pending.result()
        except Exception as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Waits, as `wait`, and ends the threads."""
        self.wait()
        self._background.shutdown()
        self._orbax.close()

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, in order."""
        there = self._directory.iterdir() if self._directory.is_dir() else ()
        return sorted(int(path.name) for path in there if path.name.isdigit())

    def last_steps(self, number: int) -> list[int]:
        """The latest steps that were due, in order; the latest of all where none was yet."""
        due = [step for step in self.steps() if self._recorded(step, 'due', True)]
        return due[-number:] or self.steps()[-1:]

    def best_steps(self, number: int) -> list[int]:
        """The steps of the highest scores, the best first; of equal scores the latest."""
        scores = [(self._recorded(step, 'score', None), step) for step in self.steps()]
        scored = [(score, step) for score, step in scores if score is not None]
        return [step for _, step in sorted(scored, reverse=True)][:number]

    def restore(
        self, abstract_state: Any, warn: Callable[[str], None] = print
    ) -> Restored | None:
        """The latest checkpoint that is what was written, or None where there is none yet.

        Those after it, which are damaged, are removed.

        Args:
          abstract_state: a tree of shapes and dtypes, whose shardings say where the leaves go.
          warn: is told of each damaged checkpoint.

        Raises:
          UserError: all are damaged, or they are of another model.
        """
        self.wait()
        damaged = []
        for step in reversed(self.steps()):
            try:
                restored = self._load(step, abstract_state)
            except Damaged as error:
                damaged.append(step)
                warn(f'the checkpoint of step {step} is damaged: {error}')
                continue
            for late in damaged:
                self._remove(late)
            return restored
        if damaged:
            raise UserError(
                f'all checkpoints in {self._directory} are damaged; '
                'remove that folder to begin the run again'
            )
        return None

    def load_variables(self, step: int, abstract: Any) -> Any:
        """What a model needs of the state that was saved at a step: its params, and statistics.

        Raises:
          UserError: there is no such checkpoint, it is damaged, or it is of another model.
        """
        try:
            return self._load(step, abstract).state
        except Damaged as error:
            raise UserError(f'checkpoint {self._path(step)}: {error}') from error

    def average(self, steps: Iterable[int], abstract: Any) -> Any:
        """The mean of the variables that were saved at some steps.

        Raises:
          UserError: as `load_variables`.
        """
        mean = average(self.load_variables(step, abstract) for step in steps)
        return jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), mean, abstract)

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _nameless(self, step: int) -> Path:
        """Where a checkpoint is while it is written and while it is removed."""
        return self._directory / f'.{step}'

    def _refuse(self, step: int, state: Any) -> None:
        if (steps := self.steps()) and step <= steps[-1]:
            raise self._failure(f'step {step} is not later than those there')
        # Found out here it takes one line; in the midst of writing, Orbax's threads have their say.
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        self._directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise self._failure(
                f'it takes {needed / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free'
            )

    def _finish(self, nameless: Path, step: int, content: dict[str, Any]) -> None:
        """Names a checkpoint when it is whole, and removes those that need not stay."""
        try:
            self._orbax.wait_until_finished()
            record.write(nameless, content)
            files.commit(nameless, self._path(step))
        finally:
            shutil.rmtree(nameless, ignore_errors=True)
        kept = {*self.last_steps(self._keep), *self.best_steps(self._keep_best), step}
        for old in set(self.steps()) - kept:
            self._remove(old)

    def _remove(self, step: int) -> None:
        # At once without a name, lest a kill leave half a checkpoint.
        os.replace(self._path(step), self._nameless(step))
        shutil.rmtree(self._nameless(step))

    def _load(self, step: int, abstract: Any) -> Restored:
        """Reads `abstract`, the state or part of it, at a step."""
        path = self._path(step)
        content = record.read(path)
        for name, here in record.kinds(abstract).items():
            there = content['leaves'].get(name, 'missing')
            if there != here:
                raise UserError(
                    f'checkpoint {path} is of another model: {name} is {there}, not {here}'
                )
        record.compare_files(path, content)
        state = self._orbax.restore(path / 'state', args=_restore_args(abstract))
        return Restored(step, state, content['metadata'])

    def _recorded(self, step: int, name: str, otherwise: Any) -> Any:
        try:
            return record.read(self._path(step)).get(name, otherwise)
        except Damaged:
            return otherwise

    def _failure(self, reason: Exception | str) -> UserError:
        steps = self.steps()
        good = (
            f'the one of step {steps[-1]} stays good' if steps else 'there is none yet'
        )
        # Of a long reason the end, where Orbax has the system's own words.
        text = ' '.join(str(reason).split())
        text = text if len(text) <= 200 else f'…{text[-200:]}'
        return UserError(
            f'cannot write a checkpoint to {self._directory} ({good}): {text}'
        )


def _restore_args(abstract: Any) -> ocp.args.PyTreeRestore:
    # Without a sharding Orbax takes the one that was saved, whose devices need not be here.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here),
        abstract,
    )
    return ocp.args.PyTreeRestore(
        abstract,
        restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
        partial_restore=True,
    )
