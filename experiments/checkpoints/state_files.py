"""A tree of arrays in a folder, by Orbax: written in the background, failures as one short text."""

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
    """Orbax cannot write or read; the message is one line, with the system's own words."""

    def __init__(self, error: BaseException):
        text = ' '.join(str(error).split()) or type(error).__name__
        # Of a long reason the end, where the system's own words are.
        super().__init__(text if len(text) <= _LONGEST else f'…{text[-_LONGEST:]}')


class StateFiles:
    """Saves and restores trees of arrays; one is being written at a time."""

    def __init__(self):
        _silence()
        # Directories made in the background, where one cannot be made, are waited for in vain.
        options = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        handler = ocp.PyTreeCheckpointHandler()
        self._orbax = ocp.AsyncCheckpointer(handler, async_options=options)

    def save(self, folder: Path, state: Any) -> None:
        """Begins to write; returns when the state is copied, and may be donated."""
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
        """The leaves that `abstract` has, placed as its shardings say."""
        try:
            return self._orbax.restore(folder, args=_restore_args(abstract))
        except Exception as error:
            raise Failed(error) from error

    def close(self) -> None:
        """Ends the threads; what failed in them, `wait` has said."""
        try:
            self._orbax.close()
        except Exception as error:
            self._failure(error)

    def _failure(self, error: Exception) -> Failed:
        # What Orbax had begun and nobody waits for now.
        message = "coroutine '.*' was never awaited"
        warnings.filterwarnings('ignore', message, RuntimeWarning)
        return Failed(error)


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


@functools.cache
def _silence() -> None:
    """Has Orbax's threads print nothing: what matters is raised, and said where it is caught."""
    logging.getLogger('absl').addFilter(lambda line: 'orbax' not in line.pathname)
    # After the first array that cannot be written nobody waits for the writers of the others.
    unheard = 'exception was never retrieved'
    logging.getLogger('asyncio').addFilter(
        lambda line: unheard not in line.getMessage()
    )
    before = sys.unraisablehook

    def print_unraisable(unraisable: Any) -> None:
        is_late = str(unraisable.exc_value) == 'Event loop is closed'
        if not (is_late and unraisable.exc_type is RuntimeError):
            before(unraisable)

    sys.unraisablehook = print_unraisable
