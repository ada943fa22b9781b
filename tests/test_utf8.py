"""Under any locale text is read and written as UTF-8."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCALES = {
    'streams of Latin-1': {'PYTHONIOENCODING': 'latin-1'},
    'strict ASCII': {
        'LC_ALL': 'C',
        'PYTHONCOERCECLOCALE': '0',
        'PYTHONUTF8': '0',
        'PYTHONIOENCODING': 'ascii:strict',
    },
    'ASCII': {'LC_ALL': 'C', 'PYTHONCOERCECLOCALE': '0', 'PYTHONUTF8': '0'},
}
TEXT = 'Straße – ☃'
every_locale = pytest.mark.parametrize('locale', LOCALES.values(), ids=LOCALES)


def python(locale, *arguments, **options):
    environment = {k: v for k, v in os.environ.items() if not k.startswith('LC_')}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | locale,
        cwd=ROOT,
        capture_output=True,
        **options,
    )


@every_locale
def test_streams_arguments_and_names_of_files_are_utf8(locale, tmp_path):
    code = (
        'import sys\n'
        'from pathlib import Path\n'
        'from experiments.command_line import flags\n'
        'def main():\n'
        '    folder, text = sys.argv[1:]\n'
        '    assert (Path(folder) / text).exists()\n'
        '    print(text, input())\n'
        '    print(text, file=sys.stderr)\n'
        'flags.main(main)\n'
    )
    (tmp_path / TEXT).touch()
    given = f'{TEXT}\n'.encode()
    done = python(locale, '-c', code, tmp_path, TEXT, input=given)
    assert (done.returncode, done.stderr) == (0, given)
    assert done.stdout == f'{TEXT} {TEXT}\n'.encode()


@every_locale
def test_an_error_of_a_command_says_what_was_typed(locale):
    done = python(locale, '-m', 'experiments.report', f'--{TEXT}')
    assert (done.returncode, done.stdout) == (2, b'')
    assert f'--{TEXT}'.encode() in done.stderr


def test_what_is_no_text_stops_nothing():
    code = (
        'from experiments.command_line import flags\n'
        r'flags.main(lambda: print("name\udcff of a file"))'
    )
    done = python({}, '-c', code)
    assert (done.returncode, done.stdout) == (0, b'name\\udcff of a file\n')


def as_text(call):
    """Whether a call opens a file, or another process, as text of no named encoding."""
    function = call.func
    name = getattr(function, 'attr', getattr(function, 'id', ''))
    named = {keyword.arg for keyword in call.keywords}
    if 'encoding' in named:
        return False
    if name in ('read_text', 'write_text'):
        return True
    if name in ('run', 'Popen', 'check_output'):
        return bool(named & {'text', 'universal_newlines'})
    # `open(path, mode)` and `path.open(mode)`; os.open knows no text.
    if name == 'open' and getattr(function, 'value', None) is None:
        modes = call.args[1:2]
    elif name == 'open' and getattr(function.value, 'id', '') not in ('os', 'gzip'):
        modes = call.args[:1]
    else:
        return False
    modes += [k.value for k in call.keywords if k.arg == 'mode']
    return not any(isinstance(m, ast.Constant) and 'b' in m.value for m in modes)


@pytest.mark.parametrize(
    'path', sorted((ROOT / 'experiments').rglob('*.py')), ids=lambda path: path.stem
)
def test_whoever_opens_text_names_its_encoding(path):
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text('utf-8')))
        if isinstance(node, ast.Call)
    ]
    assert [f'line {call.lineno}' for call in calls if as_text(call)] == []
