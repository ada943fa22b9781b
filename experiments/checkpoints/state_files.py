"""A tree of arrays in a folder, by Orbax: written in the background.

Little is in memory beside the arrays themselves, for few are written or read at once. A
failure becomes one short line of text.
"""

import functools
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

_LONGEST = 200  # characters of a failure's text
# Bytes of arrays that are written or read at once. Beside each that it reads Orbax
# holds what it has of the file.
_IN_FLIGHT = 2**26
# A larger state is not written while the training on a CPU goes on (`StateFiles.save`).
_WRITTEN_BESIDE = 2**28
# What a message of the system or the devices has in it, and none of damaged data has.
_OF_SYSTEM = (
    *('OS error', 'RESOURCE_EXHAUSTED', 'PERMISSION_DENIED', 'UNAVAILABLE'),
    *('DEADLINE_EXCEEDED', 'NOT_FOUND'),
)


class Failed(Exception):
    """Orbax cannot write or read; the message is one line, with the system's reason.

    Attributes:
      of_system: whether the system or a device failed, and not what was to be read.
    """

    def __init__(self, error: BaseException):
        self.of_system = any(_is_of_system(cause) for cause in _causes(error))
        text = ' '.join(str(error).split())
        if not text:
            text = type(error).__name__
        if len(text) > _LONGEST:
            # The end, where the system's own words are.
            text = f'…{text[-_LONGEST:]}'
        super().__init__(text)


def _is_of_system(error: BaseException) -> bool:
    if isinstance(error, OSError | MemoryError):
        return True
    return any(words in str(error) for words in _OF_SYSTEM)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it comes from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class StateFiles:
    """Saves and restores trees of arrays; one is being written at a time."""

    def __init__(self):
        _silence()
        self._writer: ocp.AsyncCheckpointer | None = None
        self._limit = 0

    def save(self, folder: Path, state: Any) -> None:
        """Begins to write; returns when the state may be donated.

        Of an accelerator's state a copy is written, which is in the host's memory. A
        CPU's is written as it is, and as long as that takes the next step would need
        memory for another one: where it is large, `save` returns when it is written.
        The cores, which write and train, lose little by that.
        """
        try:
            writer = self._writer_of(state)
            writer.save(folder, args=ocp.args.PyTreeSave(state))
            if _is_on_cpu() and _bytes(state) > _WRITTEN_BESIDE:
                writer.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error

    def _writer_of(self, state: Any) -> ocp.AsyncCheckpointer:
        limit = _limit(state)
        if self._writer is not None and limit <= self._limit:
            return self._writer
        self.close()
        # If directories were made in the background and one could not be made, Orbax
        # would wait for it for ever.
        options = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        self._limit = limit
        self._writer = ocp.AsyncCheckpointer(_handler(limit), async_options=options)
        return self._writer

    def wait(self) -> None:
        """Returns when all is written."""
        try:
            if self._writer is not None:
                self._writer.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error

    def restore(self, folder: Path, abstract: Any) -> Any:
        """The leaves that `abstract` has, with its shardings.

        Processes do not wait for each other, so that where one fails others return.
        """
        handler = _handler(_limit(abstract))
        try:
            return handler.restore(epath.Path(folder), args=_restore_args(abstract))
        except Exception as error:
            raise Failed(error) from error
        finally:
            handler.close()

    def close(self) -> None:
        """Ends the threads; `wait` has already raised what failed in them."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except Exception as error:
            self._failure(error)

    def _failure(self, error: Exception) -> Failed:
        # Orbax had begun work that nobody waits for any more.
        message = "coroutine '.*' was never awaited"
        warnings.filterwarnings('ignore', message, RuntimeWarning)
        return Failed(error)


def _handler(limit: int) -> ocp.PyTreeCheckpointHandler:
    """What writes and reads trees, with at most so many bytes of arrays at once.

    Arrays are written from where they are, as they are: compressed they would be in
    memory once more, which saves 7 % of float32 on disk, and takes five times as long.
    What earlier versions have compressed is read as well.
    """
    limited = ocp.BasePyTreeCheckpointHandler(
        save_concurrent_bytes=limit,
        restore_concurrent_bytes=limit,
        use_compression=False,
    )
    return ocp.PyTreeCheckpointHandler(handler_impl=limited)


def _limit(tree: Any) -> int:
    # Orbax refuses an array that is not smaller than the limit.
    return max(_IN_FLIGHT, 1 + max(map(_bytes, jax.tree.leaves(tree))))


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _is_on_cpu() -> bool:
    return jax.devices()[0].platform == 'cpu'


def _restore_args(abstract: Any) -> ocp.args.PyTreeRestore:
    # Where no sharding is given Orbax uses the one that was saved, whose devices may be
    # missing here.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def placed(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here)

    abstract = jax.tree.map(placed, abstract)
    return ocp.args.PyTreeRestore(
        abstract,
        restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
        partial_restore=True,
    )


@functools.cache
def _silence() -> None:
    """Keeps Orbax's threads from printing: what matters is raised as an error."""
    logging.getLogger('absl').addFilter(lambda line: 'orbax' not in line.pathname)
    # Once one array could not be written, nobody waits for the writers of the others.
    unheard = 'exception was never retrieved'
    logging.getLogger('asyncio').addFilter(
        lambda line: unheard not in line.getMessage()
    )
    before = sys.unraisablehook

    def print_unraisable(unraisable: Any) -> None:
        if not _is_late(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = print_unraisable


def _is_late(error: BaseException | None) -> bool:
    """Whether an error comes from work that Orbax itself has given up.

    Where one array cannot be read or written, those that wait beside it are closed when
    their memory is freed: either their event loop has ended by then, or Orbax turns the
    closing into an error of its own.
    """
    if isinstance(error, RuntimeError):
        return str(error) == 'Event loop is closed'
    return error is not None and isinstance(error.__cause__, GeneratorExit)
