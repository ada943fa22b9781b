"""What a command needs beside the extra `experiments`."""

import importlib.util
from collections.abc import Sequence

from experiments.errors import UserError


def check(what: str, names: Sequence[str], extra: str, instead: str = '') -> None:
    """Refuses to begin without some packages.

    Args:
      what: what needs them, such as a flag.
      names: what they are imported as.
      extra: of the project, which installs them.
      instead: what can be done without them.

    Raises:
      UserError: one is not installed.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f'{what} needs {", ".join(missing)}: pip install -e ".[{extra}]"'
            + (f'; {instead}' if instead else '')
        )
