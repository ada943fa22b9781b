"""Injects mistakes into a copy of the code, one at a time; each must fail its tests.

python -m tests.mistakes [--only=NAME …] [--list] [--unchanged]

`mistakes.toml` lists them. Run this before and after you rewrite tests.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = (
    'flaxformer_lite',
    'experiments',
    'packages',
    'configs',
    'docs',
    'tests',
    'pyproject.toml',
)
PASSED, FAILED = 0, 1  # statuses of pytest


class Mistake(NamedTuple):
    """A replacement of the one `old` in `file` by `new`, which must fail `tests`."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def read_mistakes() -> list[Mistake]:
    table = tomllib.loads((ROOT / 'tests' / 'mistakes.toml').read_text('utf-8'))
    return [
        Mistake(
            name,
            row['file'],
            row['old'].strip('\n'),
            row['new'].strip('\n'),
            row['tests'],
        )
        for name, row in table.items()
    ]


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
    file = copy / mistake.file
    text = file.read_text('utf-8') if file.exists() else ''
    if text.count(mistake.old) != 1:
        return f'STALE      {mistake.file} has the old text {text.count(mistake.old)} ×'
    file.write_text(text.replace(mistake.old, mistake.new), 'utf-8')
    try:
        status, last_line = run_tests(copy, mistake.tests)
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
            print(f'{mistake.name:42} {mistake.file}')
        return
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            copy_one = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy_one(ROOT / name, copy / name)
        if args.unchanged:
            tests = sorted({test for mistake in mistakes for test in mistake.tests})
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
