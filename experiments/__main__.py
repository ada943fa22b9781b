"""Lists the commands of the runner and of installed packages, each with a summary.

Each command is a separate module: python -m experiments.run --help
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.__main__')

import ast
import contextlib
from importlib import util
from pathlib import Path

from experiments.command_line import console, flags
from flaxformer_lite.config import spec

COMMANDS = 'flaxformer_lite.commands'  # group of entry points


def main() -> None:
    flags.Parser(__doc__).parse_args()
    print(console.table(['command', 'summary'], summaries()))


def summaries() -> list[tuple[str, str]]:
    """Returns each command with the first line of its docstring."""
    found = []
    for module, file in _modules().items():
        code = file.read_text(encoding='utf-8', errors='replace')
        if "__name__ == '__main__'" in code:
            docstring = ast.get_docstring(ast.parse(code)) or ''
            found.append((f'python -m {module}', docstring.partition('\n')[0]))
    return found


def _modules() -> dict[str, Path]:
    """Returns the files of the modules that may be commands."""
    own = sorted(Path(__file__).parent.glob('[a-z]*.py'))
    found = {f'experiments.{file.stem}': file for file in own}
    for entry in spec.entry_points(COMMANDS).values():
        with contextlib.suppress(Exception):  # of a broken package
            module = util.find_spec(entry.module)
            if module and module.has_location and module.origin:
                found[entry.module] = Path(module.origin)
    return dict(sorted(found.items()))
