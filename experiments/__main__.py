"""Lists the commands of this package, each with a summary.

Each command is a separate module: python -m experiments.run --help
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.__main__')

import ast
from pathlib import Path

from experiments.command_line import console, flags


def main() -> None:
    flags.Parser(__doc__).parse_args()
    print(console.table(['command', 'summary'], summaries()))


def summaries() -> list[tuple[str, str]]:
    """Returns each command with the first line of its docstring."""
    found = []
    for file in sorted(Path(__file__).parent.glob('[a-z]*.py')):
        code = file.read_text(encoding='utf-8')
        if "__name__ == '__main__'" in code:
            docstring = ast.get_docstring(ast.parse(code)) or ''
            command = f'python -m experiments.{file.stem}'
            found.append((command, docstring.partition('\n')[0]))
    return found
