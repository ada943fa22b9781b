"""Checkpoints by Orbax's manager: written atomically, verified when read.

A folder is renamed to its step only when it is complete on disk. It holds `state`, the
arrays, and `metadata`, JSON with a digest of each array, because Orbax restores flipped
bits without an error.
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

_TRASH = 'removed'  # folder of checkpoints that are being deleted
# How long the fastest process waits for the slowest one to write its shards.
_WRITE_SECONDS = 300
_MAX_MESSAGE = 500  # characters of an error message
# Exceptions of Orbax for missing or unparsable files. It raises plain `Exception`
# for errors of TensorStore.
_PARSE_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(StopIteration, FileNotFoundError, NotADirectoryError),
)
# TensorStore raises ValueError for any failure; most messages begin with a status.
_PARSE_STATUSES = (
    *('DATA_LOSS', 'FAILED_PRECONDITION', 'INVALID_ARGUMENT'),
    *('NOT_FOUND', 'OUT_OF_RANGE'),
)


class DamagedCheckpoint(ValueError):
    """A checkpoint that differs from what was written."""


class RemovedCheckpoint(Exception):
    """A checkpoint that its run removed while it was being read."""


class Checkpoint(NamedTuple):
    """The contents of a checkpoint."""

    step: int
    state: Any
    metadata: dict[str, Any]


class Mean(NamedTuple):
    variables: Any
    steps: list[int]
    left_out: list[int]  # steps of damaged checkpoints


class _Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        return False  # the training loop checks this, at the same step everywhere


class Checkpoints:
    """The checkpoints of a run, written in the background.

    Keeps the newest checkpoint, the last `keep` scheduled ones, and the `keep_best`
    best. Checkpoints that are saved only because of a stop are not scheduled.

    Args:
      is_due: Returns whether an uninterrupted run saves a checkpoint after a step.
      scores: Scores by step, higher is better. It may grow at any time.
    """

    def __init__(
        self,
        directory: Path,
        keep: int = 1,
        keep_best: int = 0,
        is_due: Callable[[int], bool] = lambda step: True,
        scores: Mapping[int, float] | None = None,
    ):
        self.directory = directory.absolute()  # Orbax requires absolute paths
        self.scores = {} if scores is None else scores
        self._keep = keep
        self._keep_best = keep_best
        self._is_due = is_due
        self._manager: ocp.CheckpointManager | None = None

    def _open(self) -> ocp.CheckpointManager:
        for folder in self._unfinished():  # leftovers of a kill
            storage.remove(folder)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,
            todelete_subdir=_TRASH,  # rename first: a kill leaves no partial one
            save_root_metadata=False,
            lightweight_initialize=True,
            async_options=ocp.AsyncOptions(
                timeout_secs=_WRITE_SECONDS,
                post_finalization_callback=self._sync,
                # Asynchronous creation hangs forever if it fails.
                create_directories_asynchronously=False,
            ),
        )
        # Compression saves 7 % of float32 and takes five times as long.
        handlers = {
            'state': ocp.PyTreeCheckpointHandler(use_compression=False),
            'metadata': ocp.JsonCheckpointHandler(),
        }
        return _Manager(self.directory, options=options, item_handlers=handlers)

    def should_preserve(self, checkpoints: Sequence[Any], *, context) -> list[bool]:
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        scheduled = [step for step in steps if self._is_due(step)]
        best = self._best(steps)[: self._keep_best]
        preserved = {steps[-1], *scheduled[-self._keep :], *best}
        return [step in preserved for step in steps]

    def _best(self, steps: Sequence[int]) -> list[int]:
        scored = [(self.scores[step], step) for step in steps if step in self.scores]
        return [step for _, step in sorted(scored, reverse=True)]

    def _unfinished(self) -> list[Path]:
        return list(self.directory.glob('*.orbax-checkpoint-tmp*'))

    def _sync(self) -> None:
        """Flushes unfinished checkpoints to disk, before Orbax renames them."""
        for folder in self._unfinished():
            storage.sync(folder)

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        """Starts to save arrays, which may then be donated.

        Also raises errors of the previous checkpoint's write.

        Args:
          step: Later than all saved steps.
          metadata: A JSON serializable dict.
        """
        self.wait()
        content = {
            'metadata': metadata,
            'due': self._is_due(step),
            'arrays': digest.array_facts(state),
        }
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state),
            metadata=ocp.args.JsonSave({**content, 'sha256': _content_digest(content)}),
        )
        with self._report_failures():
            self._manager = self._manager or self._open()
            if not self._manager.save(step, args=items):
                raise ValueError(f'step {step} is not after the newest checkpoint')

    def wait(self) -> None:
        """Waits until the last checkpoint is complete."""
        if self._manager is not None:
            with self._report_failures():
                self._manager.wait_until_finished()
            storage.remove(self.directory / _TRASH)

    def close(self) -> None:
        """Waits for the last checkpoint and frees the manager."""
        try:
            self.wait()
        finally:
            if self._manager is not None:
                with contextlib.suppress(Exception):  # `wait` reports errors
                    self._manager.close()

    @contextlib.contextmanager
    def _report_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise UserError(
                f'cannot write a checkpoint to {self.directory}: {_reason(error)}. '
                'Earlier checkpoints are intact.'
            ) from error

    def steps(self) -> list[int]:
        if not storage.exists(self.directory):
            return []
        with storage.as_user_error('read', self.directory):
            names = os.listdir(self.directory)
        return sorted(int(name) for name in names if name.isdecimal())

    def last_steps(self, number: int) -> list[int]:
        """Returns the last `number` scheduled steps, or else the newest step."""
        steps = self.steps()
        scheduled = [step for step in steps if self._content(step).get('due', True)]
        return scheduled[-number:] or steps[-1:]

    def metadata(self, step: int) -> dict[str, Any]:
        """Returns the metadata of a checkpoint, or {} if it cannot be read."""
        return self._content(step).get('metadata', {})

    def digest(self, step: int) -> str | None:
        """Returns the SHA-256 of a checkpoint's metadata and checksums, if readable."""
        content = self._content(step)
        return _content_digest(content) if content else None

    def _content(self, step: int) -> dict[str, Any]:
        try:
            return _read_content(self.directory / str(step))
        except (DamagedCheckpoint, OSError):
            return {}  # reading the state reports the damage

    def best_steps(self, number: int) -> list[int]:
        """Returns the steps with the highest scores, best first, then latest."""
        return self._best(self.steps())[:number]

    def restore(
        self, abstract_state: Any, warn: Callable[[str], None] = print
    ) -> Checkpoint | None:
        """Restores the latest undamaged checkpoint; returns None without checkpoints.

        Later, damaged checkpoints cause a warning, and are renamed to `damaged-<step>`.

        Args:
          abstract_state: Shapes, dtypes and target shardings.

        Raises:
          UserError: All are damaged, one cannot be read now, or they are from another
            model. No folder is renamed.
        """
        self.wait()
        damaged: list[int] = []
        for step in reversed(processes.from_first(self.steps)):
            try:
                restored = self._read(step, abstract_state)
            except DamagedCheckpoint as error:
                warn(f'the checkpoint of step {step} is damaged: {error}')
                damaged.append(step)
            else:
                self._rename_damaged(damaged)
                return restored
        if damaged:
            raise UserError(
                f'all checkpoints in {self.directory} are damaged. Move that folder '
                'away to start from scratch.'
            )
        return None

    def _rename_damaged(self, steps: Iterable[int]) -> None:
        if processes.is_first():
            for step in steps:
                target = self.directory / f'damaged-{step}'
                storage.remove(target)  # leftover of an earlier restore
                os.replace(self.directory / str(step), target)
        processes.barrier('damaged')

    def average(
        self,
        steps: Sequence[int],
        abstract: Any,
        warn: Callable[[str], None] = print,
    ) -> Mean:
        """Returns the mean of the variables that were saved at several steps.

        Other arrays, such as optimizer state, are not read or verified. Damaged
        checkpoints cause a warning, and are skipped.

        Args:
          abstract: Shapes, dtypes and target shardings of the mean.

        Raises:
          RemovedCheckpoint: A checkpoint was removed before it could be read.
        """
        used_steps: list[int] = []

        def read_undamaged():
            for step in steps:
                try:
                    variables = self._read(step, abstract).state
                except DamagedCheckpoint as error:
                    text = f'the checkpoint of step {step} is damaged and skipped'
                    warn(f'{text}: {error}')
                else:
                    used_steps.append(step)
                    yield variables

        mean = average(read_undamaged())
        if not used_steps:
            raise UserError(
                f'all selected checkpoints in {self.directory} are damaged. Restore '
                'one from a copy, or train again with another --workdir.'
            )
        return Mean(
            mean, used_steps, [step for step in steps if step not in used_steps]
        )

    def _read(self, step: int, abstract: Any) -> Checkpoint:
        """Reads and verifies the state, or the part of it that `abstract` has."""
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
                raise RemovedCheckpoint from error
            reason = _damage(folder, error)
        # Each process reads its own shards. Skip the checkpoint if any process fails.
        reasons = [text for text in processes.gather(reason) if text is not None]
        if reasons or content is None:
            raise DamagedCheckpoint(reasons[0])
        try:
            found = digest.array_facts(state)
        except jax.errors.JaxRuntimeError as error:  # out of memory
            raise UserError(f'cannot read {folder}: {_reason(error)}') from error
        # Orbax restores a random key as integers if its description is missing.
        for path, facts in found.items():
            if facts != content['arrays'][path]:
                raise DamagedCheckpoint(f'{path} does not match its checksum')
        return Checkpoint(step, state, content['metadata'])


def average(trees: Iterable[Any]) -> Any:
    """Returns the mean of trees of floating-point arrays, if there are any.

    Sums in float64 on the arrays' devices, with one tree in memory at a time. The
    result has the dtypes and shardings of the leaves.
    """
    sums = dtypes = None
    number = 0
    for tree in trees:
        dtypes = jax.tree.map(lambda x: x.dtype, tree)
        with enable_x64(True):
            sums = _float64(tree) if sums is None else _add(sums, tree)
            # Free this tree before loading the next one.
            jax.block_until_ready(sums)
        number += 1
        del tree

    # `number` is an argument, because XLA would multiply by a constant's reciprocal.
    @jax.jit
    def divided(sums, number):
        return jax.tree.map(lambda x, dtype: (x / number).astype(dtype), sums, dtypes)

    with enable_x64(True):
        return divided(sums, np.float64(number))


# One program for the whole tree compiles faster than one per shape of a leaf.


@jax.jit
def _float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float64), tree)


@functools.partial(jax.jit, donate_argnums=0)
def _add(sums: Any, tree: Any) -> Any:
    return jax.tree.map(jnp.add, sums, _float64(tree))


def _read_content(folder: Path) -> dict[str, Any]:
    data = (folder / 'metadata' / 'metadata').read_bytes()
    content = None
    with contextlib.suppress(ValueError):
        content = json.loads(data)
    if not isinstance(content, dict) or content.pop('sha256', None) != _content_digest(
        content
    ):
        raise DamagedCheckpoint('metadata does not match its checksum')
    return content


def _content_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _compare_kinds(folder: Path, arrays: Mapping[str, str], abstract: Any) -> None:
    for path, here in digest.array_kinds(abstract).items():
        there = arrays.get(path, 'missing 0').rpartition(' ')[0]
        if there != here:
            raise UserError(
                f'checkpoint {folder} belongs to a different model: {path} is {there}, '
                f'not {here}'
            )


def _restore_arrays(folder: Path, abstract: Any) -> Any:
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    args = ocp.args.PyTreeRestore(
        abstract, restore_args=restore_args, partial_restore=True
    )
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        state = handler.restore(epath.Path(folder), args=args)
    # Orbax returns a ShapeDtypeStruct for an array that its list of arrays lacks.
    for path, leaf in digest.leaves_by_path(state).items():
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise DamagedCheckpoint(f'{path} is missing')
    return state


def _damage(folder: Path, error: Exception) -> str:
    """Returns what is damaged, given an error from reading a checkpoint.

    Raises UserError if the cause is permissions, memory or a failing disk.
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
    """Raises UserError for an unreadable file, which Orbax may report as missing."""

    def raise_error(error: OSError) -> None:
        # The run may have removed the file in the meantime.
        if not isinstance(error, FileNotFoundError):
            raise error

    with storage.as_user_error('read', folder):
        for parent, _, names in os.walk(folder, onerror=raise_error):
            for path in map(Path(parent).joinpath, names):
                with (
                    storage.as_user_error('read', path),
                    contextlib.suppress(FileNotFoundError),
                    path.open('rb') as file,
                ):
                    hashlib.file_digest(file, 'sha256')


def _reason(error: BaseException) -> str:
    return textwrap.shorten(str(error) or type(error).__name__, _MAX_MESSAGE)
