"""Tests of input lines."""

import os
import subprocess
import sys

import pytest

from experiments.command_line import console
from experiments.errors import UserError


@pytest.fixture
def windows_of(tmp_path):
    """Returns a function that reads bytes from a file, in lists of lines."""
    with open(tmp_path / 'text', 'w+b') as stream:

        def windows(content, *size):
            stream.write(content)
            stream.seek(0)
            return console.line_windows(stream.fileno(), *size)

        yield windows


def test_lines_of_an_open_pipe_are_available_at_once():
    reading, writing = os.pipe()
    windows = console.line_windows(reading)
    os.write(writing, b'one\n')
    assert next(windows) == ['one']
    os.write(writing, b'two\nthree\nhal')
    assert next(windows) == ['two', 'three']
    os.write(writing, b'f\n\n')
    assert next(windows) == ['half', '']
    os.write(writing, b'last')
    os.close(writing)
    assert list(windows) == [['last']]
    os.close(reading)


def test_fast_pipe_and_file_give_the_same_windows(tmp_path, windows_of, monkeypatch):
    monkeypatch.setattr(console, '_LINE_TIMEOUT', 60)  # on a busy machine, too
    expected = list(windows_of(b''.join(b'line %d\n' % i for i in range(9_000)), 4_096))
    assert [len(window) for window in expected] == [4_096] * 2 + [9_000 % 4_096]
    cat = ['cat', tmp_path / 'text']
    with subprocess.Popen(cat, stdout=subprocess.PIPE) as process:
        found = list(console.line_windows(process.stdout.fileno(), 4_096))
    assert found == expected


def test_lines_of_a_file_need_no_select(windows_of, monkeypatch):
    def refuse(*arguments):
        raise OSError('an operation was attempted on something that is not a socket')

    with monkeypatch.context() as windows:
        windows.setattr(console.os, 'name', 'nt')
        windows.setattr(console.select, 'select', refuse)
        found = list(windows_of(b'a\nb\nc\n', 2))
    assert found == [['a', 'b'], ['c']]


@pytest.mark.parametrize('end', ['', '\n'], ids=['no_newline', 'newline'])
def test_file_is_read_completely(windows_of, end):
    lines = [f'line {i} ' + 'x' * (i % 90) for i in range(4_999)] + ['', 'last']
    assert sum(windows_of(('\r\n'.join(lines) + end).encode()), []) == lines


def test_byte_order_marks_are_removed(windows_of):
    mark = b'\xef\xbb\xbf'
    windows = windows_of(mark + b'a\r\n' + mark + b'\n' + mark + b'b')
    assert sum(windows, []) == ['a', '', 'b']


@pytest.mark.parametrize(
    ('text', 'before', 'message'),
    [
        ('ä\u2028b\nc\n'.encode() + b'\xff\nd\n', ['ä\u2028b', 'c'], 'line 3.* UTF-8'),
        (b'a\rb\rc\r', None, 'line 1.* CR alone'),
        ('a\nb\n'.encode('utf-16-le'), None, 'line 1.* UTF-16'),
    ],
    ids=['latin_1', 'cr', 'utf_16'],
)
def test_other_encodings_and_line_ends_are_named(windows_of, text, before, message):
    windows = windows_of(text)
    assert before is None or next(windows) == before
    with pytest.raises(UserError, match=f'standard input, {message}'):
        next(windows)


def test_output_is_utf8_in_any_locale():
    code = (
        'from experiments.command_line import flags\n'
        r'flags.main(lambda: print("☃ name\udcff of a file"))'
    )
    environment = os.environ | {'PYTHONIOENCODING': 'ascii:strict'}
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b'')
    assert done.stdout == '☃ name\\udcff of a file\n'.encode()
