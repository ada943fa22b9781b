"""A command from its first line on, before what takes long to import."""

import importlib
import sys
from typing import NoReturn

from experiments.command_line import stopping


def run(name: str) -> NoReturn:
    """Imports a command's module and runs its `main`; a signal ends both.

    The first lines of the module call it, where Python runs that file: what is below
    them is then read only here.
    """
    stopping.watch()
    from experiments.command_line import flags

    flags.main(importlib.import_module(name).main)
    sys.exit()
