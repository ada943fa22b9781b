"""A tree of arrays in a folder, by Orbax: written in the background.

A failure becomes one short line of text.
"""

import functools
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

_LONGEST = 200  # characters of a failure's text


class Failed(Exception):
    """Orbax cannot write or read; the message is one line, with the system's reason."""

    def __init__(self, error: BaseException):
        text = ' '.join(str(error).split())
        if not text:
            text = type(error).__name__
        if len(text) > _LONGEST:
            # The end, where the system's own words are.
            text = f'…{text[-_LONGEST:]}'
        super().__init__(text)


class StateFiles:
    """Saves and restores trees of arrays; one is being written at a time."""

    def __init__(self):
        _silence()
        # If directories were made in the background and one could not be made, Orbax
        # would wait for it for ever.
        options = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        handler = ocp.PyTreeCheckpointHandler()
        self._orbax = ocp.AsyncCheckpointer(handler, async_options=options)

    def save(self, folder: Path, state: Any) -> None:
        """Begins to write; returns when the state is copied and may be donated."""
        try:
            self._orbax.save(folder, args=ocp.args.PyTreeSave(state))
        except Exception as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Returns when all is written."""
        try:
            self._orbax.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error

    def restore(self, folder: Path, abstract: Any) -> Any:
        """The leaves that `abstract` has, with its shardings."""
        try:
            return self._orbax.restore(folder, args=_restore_args(abstract))
        except Exception as error:
            raise Failed(error) from error

    def close(self) -> None:
        """Ends the threads; `wait` has already raised what failed in them."""
        try:
            self._orbax.close()
        except Exception as error:
            self._failure(error)

    def _failure(self, error: Exception) -> Failed:
        # Orbax had begun work that nobody waits for any more.
        message = "coroutine '.*' was never awaited"
        warnings.filterwarnings('ignore', message, RuntimeWarning)
        return Failed(error)


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
