"""A run's checkpoints, by Orbax's manager: whole or not there, verified when read.

A checkpoint is a folder that gets its name, the step, only when all of it is on disk.
It holds `state`, the arrays, and `metadata`, JSON with a digest of each array: Orbax
alone restores a flipped byte without an error.
"""

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath

from experiments import storage
from experiments.checkpoints import averaging, digest
from experiments.errors import UserError
from experiments.runtime import processes

_STEP = re.compile('0|[1-9][0-9]*')
_REMOVED = 'removed'  # the folder of those that are being removed
_EARLIER_FORM = 'record.json'  # the file that a checkpoint of version 0.1 has
_LONGEST = 200  # characters of a failure's text
_SYSTEM_ERROR = re.compile(r"os_error_code='(\d+)'")  # in a text of TensorStore's
# What a message of the devices has in it, and none of damaged data has.
_OF_DEVICES = ('RESOURCE_EXHAUSTED', 'DEADLINE_EXCEEDED', 'UNAVAILABLE')


class Damaged(Exception):
    """A checkpoint is not what was written."""


class Gone(Exception):
    """A checkpoint was removed by its run before it was read to its end."""


class Restored(NamedTuple):
    step: int
    state: Any
    metadata: dict[str, Any]


class Mean(NamedTuple):
    """The mean of some checkpoints' variables, and the steps it is of."""

    variables: Any
    steps: list[int]
    left_out: list[int]  # steps of damaged checkpoints


class _Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        return False  # the training loop alone asks, at the same steps in each process


class Checkpoints:
    """The checkpoints of a run, written in the background.

    There stay the newest, the last ones that were due, and the best.

    Args:
      directory: gets a folder for each step.
      keep: how many of the last that were due stay.
      keep_best: how many of those with the highest scores stay as well.
      is_due: whether a step's checkpoint is saved in a run that is never stopped. Those
        that are saved only because of a stop are never among the last.
      scores: step → score, the higher the better; it may grow at any time.
      read_only: for another process than the one that trains: nothing is changed.
    """

    def __init__(
        self,
        directory: Path,
        keep: int = 1,
        keep_best: int = 0,
        is_due: Callable[[int], bool] = lambda step: True,
        scores: Mapping[int, float] | None = None,
        read_only: bool = False,
    ):
        self.directory = directory.absolute()  # Orbax saves nothing at a relative path
        self.scores = {} if scores is None else scores
        self._keep = keep
        self._keep_best = keep_best
        self._is_due = is_due
        _silence_orbax()
        self._manager = None if read_only else self._open()

    def _open(self) -> ocp.CheckpointManager:
        if processes.is_first():
            for folder in self._unfinished():  # what a kill has left
                storage.remove(folder)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,
            todelete_subdir=_REMOVED,  # renamed first: a kill leaves no half checkpoint
            save_root_metadata=False,
            lightweight_initialize=True,
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._sync,
                # If one could not be made in the background, it would wait for ever.
                create_directories_asynchronously=False,
            ),
        )
        # Compressed, float32 takes 7 % less space and five times as long.
        handlers = {
            'state': ocp.PyTreeCheckpointHandler(use_compression=False),
            'metadata': ocp.JsonCheckpointHandler(),
        }
        try:
            return _Manager(self.directory, options=options, item_handlers=handlers)
        except OSError as error:
            raise self._failure(error) from error

    def should_preserve(self, checkpoints: Sequence[Any], *, context) -> list[bool]:
        """Which checkpoints stay: Orbax's `PreservationPolicy`."""
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        due = [step for step in steps if self._is_due(step)]
        best = self._best(steps)[: self._keep_best]
        stay = {steps[-1], *due[-self._keep :], *best}
        return [step in stay for step in steps]

    def _best(self, steps: Sequence[int]) -> list[int]:
        scored = [(self.scores[step], step) for step in steps if step in self.scores]
        return [step for _, step in sorted(scored, reverse=True)]

    def _unfinished(self) -> list[Path]:
        return list(self.directory.glob('*.orbax-checkpoint-tmp*'))

    def _sync(self) -> None:
        """Orbax calls it when all is written, before the checkpoint gets its name."""
        for folder in self._unfinished():
            storage.sync(folder)

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        """Begins to save a state with its metadata, at a step later than all others.

        It returns when the state may be donated; the writing goes on then.

        Args:
          state: a tree of arrays.
          metadata: what JSON can hold.

        Raises:
          UserError: this checkpoint, or the one before it, cannot be written.
        """
        assert self._manager is not None, 'opened to read only'
        self.wait()
        content = {
            'metadata': metadata,
            'due': self._is_due(step),
            'kinds': digest.array_kinds(state),
            'digests': digest.array_digests(state),
        }
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state),
            metadata=ocp.args.JsonSave({**content, 'sha256': _seal(content)}),
        )
        try:
            saved = self._manager.save(step, args=items)
        except Exception as error:
            raise self._failure(error) from error
        if not saved:
            raise self._failure(f'step {step} is not later than those there')

    def wait(self) -> None:
        """Returns when the checkpoint that was begun is complete.

        Raises:
          UserError: it cannot be written.
        """
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error
        if processes.is_first():
            storage.remove(self.directory / _REMOVED)

    def close(self) -> None:
        """Waits, as `wait`, and ends the threads."""
        try:
            self.wait()
        finally:
            if self._manager is not None:
                with contextlib.suppress(Exception):  # `wait` has told it
                    self._manager.close()

    def _failure(self, reason: Exception | str) -> UserError:
        good = 'there is none yet'
        steps = self.steps()
        if steps:
            good = f'the one of step {steps[-1]} stays good'
        if isinstance(reason, Exception):
            reason = _reason(reason) or _line(reason)
        return UserError(
            f'cannot write a checkpoint to {self.directory} ({good}): {reason}'
        )

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, in order.

        Raises:
          UserError: the folder cannot be read now.
        """
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(
                f'cannot read {self.directory}: {error.strerror}'
            ) from error
        return sorted(int(name) for name in names if _STEP.fullmatch(name))

    def last_steps(self, number: int) -> list[int]:
        """The latest steps that were due, in order.

        Where none was due yet, it is the latest of all.
        """
        steps = self.steps()
        due = [step for step in steps if self._was_due(step)]
        return due[-number:] or steps[-1:]

    def best_steps(self, number: int) -> list[int]:
        """The steps of the highest scores, best first; of equal scores the latest."""
        return self._best(self.steps())[:number]

    def _was_due(self, step: int) -> bool:
        try:
            return _read_content(self.directory / str(step))['due']
        except (OSError, Damaged):
            return True  # it turns out when it is read

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
          UserError: all are damaged, or they are of another model or an earlier
            version; or one cannot be read now, and may be good.
        """
        self.wait()
        damaged: dict[int, str] = {}
        for step in reversed(processes.from_first(self.steps)):
            try:
                restored = self._read(step, abstract_state)
            except Damaged as error:
                # Not the error: it would keep the damaged state in memory.
                damaged[step] = str(error)
                continue
            self._set_aside(damaged, warn)
            return restored
        if not damaged:
            return None
        for step, reason in damaged.items():
            warn(f'the checkpoint of step {step} is damaged: {reason}')
        raise UserError(
            f'all checkpoints in {self.directory} are damaged; '
            'move that folder away to begin the run again'
        )

    def _set_aside(self, damaged: dict[int, str], warn: Callable[[str], None]) -> None:
        """Renames damaged checkpoints, so that they are no step's."""
        if not damaged:
            return
        for step, reason in damaged.items():
            name = f'damaged-{step}'
            if processes.is_first():
                storage.remove(self.directory / name)
                os.replace(self.directory / str(step), self.directory / name)
                warn(
                    f'the checkpoint of step {step} is damaged: {reason}; '
                    f'it is kept as {name}'
                )
        processes.barrier('damaged')
        if self._manager is not None:
            self._manager.reload()

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
          Gone: one was removed before it could be read.
        """
        damaged: dict[int, str] = {}

        def undamaged() -> Iterator[Any]:
            for step in steps:
                try:
                    yield self._read(step, abstract).state
                except Damaged as error:
                    damaged[step] = str(error)

        variables = averaging.average(undamaged())
        if variables is None:
            reasons = '; '.join(f'{step}: {reason}' for step, reason in damaged.items())
            raise UserError(
                f'all checkpoints that are to be used, in {self.directory}, are '
                f'damaged ({reasons}): restore one from a copy, or train again in '
                'another --workdir'
            )
        for step, reason in damaged.items():
            warn(f'the checkpoint of step {step} is damaged and left out: {reason}')
        good = [step for step in steps if step not in damaged]
        return Mean(variables, good, list(damaged))

    def _read(self, step: int, abstract: Any) -> Restored:
        """Reads `abstract`, the state or part of it, and verifies what was read.

        Raises:
          Damaged, Gone: as they say.
          UserError: it is of another model, or cannot be read now.
        """
        folder = self.directory / str(step)
        try:
            content = _read_content(folder)
            _compare_kinds(folder, content['kinds'], abstract)
            state = _restore_arrays(folder / 'state', abstract)
        except (UserError, Damaged):
            raise
        except Exception as error:
            raise _meaning(folder, error) from error
        # Orbax restores a random key as integers where it finds no description of it.
        for facts, found in (
            (content['kinds'], digest.array_kinds(state)),
            (content['digests'], digest.array_digests(state)),
        ):
            for path in found:
                if found[path] != facts[path]:
                    raise Damaged(f'{path} is not what was written')
        return Restored(step, state, content['metadata'])


def _read_content(folder: Path) -> dict[str, Any]:
    """What was saved beside the arrays.

    Raises:
      Damaged: it is not what was written.
      UserError: an earlier version wrote it.
      OSError: it cannot be read now.
    """
    if (folder / _EARLIER_FORM).exists():
        raise UserError(
            f'checkpoint {folder} is of an earlier version, which alone can read it: '
            'use that one, or train again in another --workdir'
        )
    handler = ocp.JsonCheckpointHandler()
    try:
        content = dict(handler.restore(epath.Path(folder / 'metadata')))
        if content.pop('sha256') == _seal(content):
            return content
    except (ValueError, KeyError, TypeError):
        pass
    raise Damaged('metadata is not what was written')


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _compare_kinds(folder: Path, kinds: Mapping[str, str], abstract: Any) -> None:
    for path, here in digest.array_kinds(abstract).items():
        there = kinds.get(path, 'missing')
        if there != here:
            raise UserError(
                f'checkpoint {folder} is of another model: {path} is {there}, not '
                f'{here}'
            )


def _restore_arrays(folder: Path, abstract: Any) -> Any:
    # Where no sharding is given Orbax uses the one that was saved, whose devices may be
    # missing here.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here),
        abstract,
    )
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    args = ocp.args.PyTreeRestore(
        abstract, restore_args=restore_args, partial_restore=True
    )
    handler = ocp.PyTreeCheckpointHandler()
    try:
        return handler.restore(epath.Path(folder), args=args)
    finally:
        handler.close()


def _meaning(folder: Path, error: BaseException) -> Exception:
    """What it means that a checkpoint could not be read."""
    if not folder.exists():
        return Gone()
    reason = _reason(error)
    if reason is None:
        return Damaged(_line(error))
    return UserError(
        f'cannot read checkpoint {folder}: {reason}. Nothing was changed; start again '
        'when it can be read'
    )


def _reason(error: BaseException | None) -> str | None:
    """What the system or a device says of an error; None if it is not of these.

    A file that is missing is damage.
    """
    while error is not None:
        text = str(error)
        number = error.errno if isinstance(error, OSError) else None
        if found := _SYSTEM_ERROR.search(text):
            number = int(found[1])
        if number in (errno.ENOENT, errno.ENOTDIR):
            return None
        if number is not None:
            return os.strerror(number)
        if isinstance(error, MemoryError) or any(x in text for x in _OF_DEVICES):
            return _line(error)
        error = error.__cause__ or error.__context__
    return None


def _line(error: BaseException) -> str:
    text = ' '.join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f'{text[:_LONGEST]}…'


@functools.cache
def _silence_orbax() -> None:
    """Keeps Orbax's threads from printing: what matters is raised as an error."""
    logging.getLogger('absl').addFilter(lambda line: 'orbax' not in line.pathname)
    printing = sys.unraisablehook

    def print_others(unraisable: Any) -> None:
        # Where one array cannot be read, nobody waits for the others any more: they
        # find that their event loop has ended, or are ended by Python themselves.
        error = unraisable.exc_value
        is_late = str(error) == 'Event loop is closed'
        if not is_late and not isinstance(error.__cause__, GeneratorExit):
            printing(unraisable)

    sys.unraisablehook = print_others
