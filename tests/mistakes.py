"""Injects mistakes into a copy of the code, one at a time; each must fail its tests.

python -m tests.mistakes [--only=NAME …] [--list] [--unchanged]

`mistakes.toml` lists them. Run this before and after you rewrite tests.
"""

import argparse
import ast
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ('flaxformer_lite', 'experiments', 'packages')
COPIED = (
    *SOURCES,
    'configs',
    'docs',
    'tests',
    'pyproject.toml',
)
PASSED, FAILED = 0, 1  # statuses of pytest


class Mistake(NamedTuple):
    """A replacement of the one `old` in a definition, which must fail `tests`."""

    name: str
    definition: str  # the name of a function, class or constant in any file
    old: str
    new: str
    tests: list[str]  # names of test modules


def read_mistakes() -> list[Mistake]:
    table = tomllib.loads((ROOT / 'tests' / 'mistakes.toml').read_text('utf-8'))
    return [Mistake(name, *row['change'], row['tests']) for name, row in table.items()]


@functools.cache
def read_sources(root: Path) -> dict[Path, str]:
    files = [file for name in SOURCES for file in sorted((root / name).rglob('*.py'))]
    return {file: file.read_text('utf-8') for file in files}


@functools.cache
def definitions(text: str) -> list[tuple[str, int, int]]:
    """Returns the name, start and end of functions, classes and constants."""
    lines = text.split('\n')
    starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        else:
            continue
        found.append((name, starts[node.lineno - 1], starts[node.end_lineno or 0]))
    return found


def find_places(root: Path, mistake: Mistake) -> set[tuple[Path, int]]:
    """Returns the files and offsets at which the mistake fits."""
    found = set()
    for file, text in read_sources(root).items():
        for match in re.finditer(re.escape(mistake.old), text):
            at = match.start()
            found |= {
                (file, at)
                for name, start, end in definitions(text)
                if name == mistake.definition and start <= at < end
            }
    return found


def find_tests(root: Path, mistake: Mistake) -> list[str]:
    """Returns the paths of the mistake's test modules."""
    found = []
    for name in mistake.tests:
        (path,) = (root / 'tests').rglob(f'{name}.py')
        found.append(str(path.relative_to(root)))
    return found


def run_tests(copy: Path, tests: list[str]) -> tuple[int, str]:
    """Runs pytest in a copy of the code; returns its status and last line."""
    environment = os.environ | {
        'PYTHONPATH': f'{copy}{os.pathsep}{copy / "packages"}',
        'FLAXFORMER_LITE_CACHE': str(copy / 'cache'),
    }
    command = [sys.executable, '-m', 'pytest', '-x', '-q', '-n0', '--tb=line']
    command += ['-p', 'no:cacheprovider', '-m', 'slow or not slow', *tests]
    shutil.rmtree(copy / 'cache', ignore_errors=True)
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True
    )
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    return done.returncode, lines[-1] if lines else ''


def try_mistake(copy: Path, mistake: Mistake) -> str:
    """Applies the mistake, runs its tests, restores the file; returns the outcome."""
    places = find_places(copy, mistake)
    if len(places) != 1:
        return f'STALE      {mistake.definition} has the old text {len(places)} ×'
    ((file, start),) = places
    text = file.read_text('utf-8')
    end = start + len(mistake.old)
    file.write_text(text[:start] + mistake.new + text[end:], 'utf-8')
    try:
        status, last_line = run_tests(copy, find_tests(copy, mistake))
    finally:
        file.write_text(text, 'utf-8')
    if status == FAILED:
        return 'found'
    word = 'NOT FOUND ' if status == PASSED else 'NO TESTS  '
    return f'{word} {last_line}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--only', nargs='+', default=[], metavar='NAME')
    parser.add_argument('--list', action='store_true', help='say what there is, only')
    parser.add_argument(
        '--unchanged', action='store_true', help='run the tests without any mistake'
    )
    args = parser.parse_args()
    mistakes = [x for x in read_mistakes() if not args.only or x.name in args.only]
    if args.list:
        for mistake in mistakes:
            print(f'{mistake.name:42} {mistake.definition}')
        return
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            copy_one = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy_one(ROOT / name, copy / name)
        if args.unchanged:
            tests = sorted({test for x in mistakes for test in find_tests(copy, x)})
            sys.exit(' '.join(map(str, run_tests(copy, tests))))
        for mistake in mistakes:
            outcome = try_mistake(copy, mistake)
            print(f'{mistake.name:42} {outcome}', flush=True)
            if outcome != 'found':
                wrong.append(mistake.name)
    print(f'{len(mistakes) - len(wrong)} of {len(mistakes)} found')
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
