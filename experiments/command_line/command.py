"""A command from its first line on, before what takes long to import."""

import gc
import importlib
import sys
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
    try:
        from experiments.command_line import flags
    except ImportError as error:
        if error.name != 'jax':
            raise
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)

    flags.main(importlib.import_module(name).main)
    sys.exit()
