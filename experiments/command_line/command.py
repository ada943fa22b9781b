"""A command from its first line on, before what takes long to import."""

import gc
import importlib
import logging
import sys
import warnings
from typing import NoReturn

from experiments.command_line import stopping

_COLLECTED_AFTER = (50_000, 20, 20)


def run(name: str) -> NoReturn:
    """Imports a command's module and runs its `main`; a signal ends both.

    The first lines of the module call it, where Python runs that file: what is below
    them is then read only here.
    """
    stopping.watch()
    # Tracing makes millions of objects, hardly any of them garbage in cycles: looking
    # for these after each 700, as Python does, is a tenth of a short command's time.
    gc.set_threshold(*_COLLECTED_AFTER)
    silence_orbax()
    try:
        from experiments.command_line import flags
    except ImportError as error:
        if error.name != 'jax':
            raise
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)

    flags.main(importlib.import_module(name).main)
    sys.exit()


def silence_orbax() -> None:
    """Keeps Orbax's threads from printing: what matters is raised as an error.

    It changes filters and a hook of the process, so only commands call it.
    """
    logging.getLogger('absl').addFilter(lambda line: 'orbax' not in line.pathname)
    late = 'exception was never retrieved'
    logging.getLogger('asyncio').addFilter(lambda line: late not in line.getMessage())
    # Its event loops end with the first error; what was to be read next never begins.
    unread = r'coroutine .* was never awaited'
    warnings.filterwarnings('ignore', unread, category=RuntimeWarning)
    printing = sys.unraisablehook

    def print_others(unraisable):
        # Where one array cannot be read, nobody waits for the others any more: they
        # find that their event loop has ended, or are ended by Python themselves.
        error = unraisable.exc_value
        is_late = str(error) == 'Event loop is closed'
        if not is_late and not isinstance(error.__cause__, GeneratorExit):
            printing(unraisable)

    sys.unraisablehook = print_others
