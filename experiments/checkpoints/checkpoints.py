"""A run's checkpoints, by Orbax's manager: whole or not there, verified when read.

A checkpoint is a folder that gets its name, the step, only when all of it is on disk.
It holds `state`, the arrays, and `metadata`, JSON with a digest of each array: Orbax
alone restores a flipped byte without an error.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from experiments import storage
from experiments.checkpoints import digest
from experiments.errors import UserError
from experiments.runtime import processes
from flaxformer_lite.jax_compat import enable_x64

_REMOVED = 'removed'  # the folder of those that are being removed
# In which the slowest process has to have written its part, after the quickest one.
_WRITTEN_SECONDS = 300
_LONGEST = 500  # characters of what is said of an error
# What Orbax raises for files that are missing or do not parse. It raises `Exception`
# from an error of TensorStore.
_PARSE_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(StopIteration, FileNotFoundError, NotADirectoryError),
)
# TensorStore raises ValueError for any failure; most messages begin with a status.
_PARSE_STATUSES = (
    *('DATA_LOSS', 'FAILED_PRECONDITION', 'INVALID_ARGUMENT'),
    *('NOT_FOUND', 'OUT_OF_RANGE'),
)


class Damaged(ValueError):
    """A checkpoint was read and is not what was written."""


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
    """

    def __init__(
        self,
        directory: Path,
        keep: int = 1,
        keep_best: int = 0,
        is_due: Callable[[int], bool] = lambda step: True,
        scores: Mapping[int, float] | None = None,
    ):
        self.directory = directory.absolute()  # Orbax saves nothing at a relative path
        self.scores = {} if scores is None else scores
        self._keep = keep
        self._keep_best = keep_best
        self._is_due = is_due
        self._manager: ocp.CheckpointManager | None = None

    def _open(self) -> ocp.CheckpointManager:
        for folder in self._unfinished():  # what a kill has left
            storage.remove(folder)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,
            todelete_subdir=_REMOVED,  # renamed first: a kill leaves no half checkpoint
            save_root_metadata=False,
            lightweight_initialize=True,
            async_options=ocp.AsyncOptions(
                timeout_secs=_WRITTEN_SECONDS,
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
        return _Manager(self.directory, options=options, item_handlers=handlers)

    def should_preserve(self, checkpoints: Sequence[Any], *, context) -> list[bool]:
        """Which checkpoints stay: Orbax asks it, as a `PreservationPolicy`."""
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
        """Begins to save a state, a tree of arrays, at a step later than all others.

        It returns when the state may be donated; the writing goes on then. `metadata`
        is what JSON can hold.

        Raises:
          UserError: this checkpoint, or the one before it, cannot be written.
        """
        self.wait()
        content = {
            'metadata': metadata,
            'due': self._is_due(step),
            'arrays': digest.array_facts(state),
        }
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state),
            metadata=ocp.args.JsonSave({**content, 'sha256': _seal(content)}),
        )
        with self._failures_told():
            self._manager = self._manager or self._open()
            if not self._manager.save(step, args=items):
                raise ValueError(f'step {step} is not later than those there')

    def wait(self) -> None:
        """Returns when the checkpoint that was begun is complete.

        Raises:
          UserError: it cannot be written.
        """
        if self._manager is not None:
            with self._failures_told():
                self._manager.wait_until_finished()
            storage.remove(self.directory / _REMOVED)

    def close(self) -> None:
        """Waits, as `wait`, and ends the threads."""
        try:
            self.wait()
        finally:
            if self._manager is not None:
                with contextlib.suppress(Exception):  # `wait` has told it
                    self._manager.close()

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise UserError(
                f'cannot write a checkpoint to {self.directory}; those there stay '
                f'good: {_reason(error)}'
            ) from error

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, in order.

        Raises:
          UserError: the folder cannot be read now.
        """
        if not storage.exists(self.directory):
            return []
        with storage.as_user_error('read', self.directory):
            names = os.listdir(self.directory)
        return sorted(int(name) for name in names if name.isdecimal())

    def last_steps(self, number: int) -> list[int]:
        """The latest steps that were due, in order.

        Where none was due yet, it is the latest of all.
        """
        steps = self.steps()
        due = [step for step in steps if self._was_due(step)]
        return due[-number:] or steps[-1:]

    def _was_due(self, step: int) -> bool:
        try:
            return _read_content(self.directory / str(step))['due']
        except (Damaged, OSError):
            return True  # it turns out when it is read

    def metadata(self, step: int) -> dict[str, Any]:
        """Returns the metadata of a checkpoint; empty if it cannot be read."""
        try:
            return _read_content(self.directory / str(step))['metadata']
        except (Damaged, OSError):
            return {}  # it turns out when the state is read

    def best_steps(self, number: int) -> list[int]:
        """The steps of the highest scores, best first; of equal scores the latest."""
        return self._best(self.steps())[:number]

    def restore(
        self, abstract_state: Any, warn: Callable[[str], None] = print
    ) -> Restored | None:
        """The latest undamaged checkpoint, or None where there is none yet.

        Later ones, which are damaged, are renamed to `damaged-<step>`.

        Args:
          abstract_state: a tree of shapes and dtypes, whose shardings say where the
            leaves go.
          warn: is told of each damaged checkpoint.

        Raises:
          UserError: all are damaged, one cannot be read now, or they are of another
            model. No folder is renamed.
        """
        self.wait()
        damaged: list[int] = []
        for step in reversed(processes.from_first(self.steps)):
            try:
                restored = self._read(step, abstract_state)
            except Damaged as error:
                warn(f'the checkpoint of step {step} is damaged: {error}')
                damaged.append(step)
            else:
                self._set_aside(damaged)
                return restored
        if damaged:
            raise UserError(
                f'all checkpoints in {self.directory} are damaged; '
                'move that folder away to begin the run again'
            )
        return None

    def _set_aside(self, steps: Iterable[int]) -> None:
        """Renames damaged checkpoints, so that they are no step's."""
        if processes.is_first():
            for step in steps:
                aside = self.directory / f'damaged-{step}'
                storage.remove(aside)  # of an earlier time
                os.replace(self.directory / str(step), aside)
        processes.barrier('damaged')

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
          UserError: none is good, one cannot be read now, or is of another model.
          Gone: one was removed before it could be read.
        """
        good: list[int] = []

        def undamaged():
            for step in steps:
                try:
                    variables = self._read(step, abstract).state
                except Damaged as error:
                    text = f'the checkpoint of step {step} is damaged and left out'
                    warn(f'{text}: {error}')
                else:
                    good.append(step)
                    yield variables

        mean = average(undamaged())
        if not good:
            raise UserError(
                f'all checkpoints that are to be used, in {self.directory}, are '
                'damaged: restore one from a copy, or train again in another --workdir'
            )
        return Mean(mean, good, [step for step in steps if step not in good])

    def _read(self, step: int, abstract: Any) -> Restored:
        """Reads `abstract`, the state or part of it, and verifies what was read.

        Raises:
          Damaged, Gone: as they say.
          UserError: it cannot be read now, or is of another model.
        """
        folder = self.directory / str(step)
        reason = state = content = None
        try:
            content = _read_content(folder)
            _compare_kinds(folder, content['arrays'], abstract)
            state = _restore_arrays(folder / 'state', abstract)
        except UserError:
            raise
        except Exception as error:
            if not storage.exists(folder):
                raise Gone from error
            reason = _damage(folder, error)
        # Each process reads its devices' part: what one cannot read, none uses.
        reasons = [text for text in processes.gather(reason) if text is not None]
        if reasons or content is None:
            raise Damaged(reasons[0])
        try:
            found = digest.array_facts(state)
        except jax.errors.JaxRuntimeError as error:  # out of memory
            raise UserError(f'cannot read {folder}: {_reason(error)}') from error
        # Orbax restores a random key as integers where it finds no description of it.
        for path, facts in found.items():
            if facts != content['arrays'][path]:
                raise Damaged(f'{path} is not what was written')
        return Restored(step, state, content['metadata'])


def average(trees: Iterable[Any]) -> Any:
    """The mean of trees of floating-point arrays, leaf by leaf; None of no tree.

    It is computed where they are. One tree is in memory at a time, beside the sums,
    which are float64. (A TPU computes these by pairs of float32.) The result has the
    leaves' own dtypes and shardings.
    """
    sums = dtypes = None
    number = 0
    for tree in trees:
        dtypes = jax.tree.map(lambda x: x.dtype, tree)
        with enable_x64(True):
            sums = _float64(tree) if sums is None else _add(sums, tree)
            # Or the next tree would be there before this one goes.
            jax.block_until_ready(sums)
        number += 1
        del tree

    # The number is an argument: XLA would multiply by the reciprocal of a constant.
    @jax.jit
    def divided(sums, number):
        return jax.tree.map(lambda x, dtype: (x / number).astype(dtype), sums, dtypes)

    with enable_x64(True):
        return divided(sums, np.float64(number))


# Of whole trees: a program for each shape of their leaves takes longer to make.


@jax.jit
def _float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float64), tree)


@functools.partial(jax.jit, donate_argnums=0)
def _add(sums: Any, tree: Any) -> Any:
    return jax.tree.map(jnp.add, sums, _float64(tree))


def _read_content(folder: Path) -> dict[str, Any]:
    """What was saved beside the arrays.

    Raises:
      Damaged: it is not what was written.
      OSError: it cannot be read.
    """
    data = storage.read_bytes(folder / 'metadata' / 'metadata')
    with contextlib.suppress(ValueError, KeyError, TypeError):
        content = storage.parse_json(data)
        if content.pop('sha256') == _seal(content):
            return content
    raise Damaged('metadata is not what was written')


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _compare_kinds(folder: Path, arrays: Mapping[str, str], abstract: Any) -> None:
    for path, here in digest.array_kinds(abstract).items():
        there = arrays.get(path, 'missing 0').rpartition(' ')[0]
        if there != here:
            raise UserError(
                f'checkpoint {folder} is of another model: {path} is {there}, not '
                f'{here}'
            )


def _restore_arrays(folder: Path, abstract: Any) -> Any:
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    args = ocp.args.PyTreeRestore(
        abstract, restore_args=restore_args, partial_restore=True
    )
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        state = handler.restore(epath.Path(folder), args=args)
    # Orbax leaves the shape of an array that its list of arrays doesn't name.
    for path, leaf in digest.leaves_by_path(state).items():
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise Damaged(f'{path} is missing')
    return state


def _damage(folder: Path, error: Exception) -> str:
    """Returns what is damaged, by an error that reading a checkpoint raised.

    Raises:
      UserError: the checkpoint cannot be read now, for lack of permission, of memory or
        of a healthy disk.
    """
    _check_readable(folder)
    cause: BaseException | None = error
    while cause is not None:
        status = re.match('([A-Z_]+): ', str(cause))
        is_known = isinstance(cause, _PARSE_ERRORS) or type(cause) is Exception
        if not is_known or (status and status[1] not in _PARSE_STATUSES):
            raise UserError(f'cannot read {folder}: {_reason(cause)}') from error
        cause = cause.__cause__ or cause.__context__
    return _reason(error)


def _check_readable(folder: Path) -> None:
    """Raises UserError if a file of a folder cannot be read; none has to be there.

    Orbax takes files in a directory without permission for missing.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile
            raise error

    with storage.as_user_error('read', folder):
        for parent, _, names in os.walk(folder, onerror=refuse):
            for path in map(Path(parent).joinpath, names):
                with (
                    storage.as_user_error('read', path),
                    contextlib.suppress(FileNotFoundError),
                    path.open('rb') as file,
                ):
                    hashlib.file_digest(file, 'sha256')


def _reason(error: BaseException) -> str:
    """What an error says, on one line."""
    return textwrap.shorten(str(error) or type(error).__name__, _LONGEST)
