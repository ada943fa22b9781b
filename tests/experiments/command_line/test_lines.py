"""Tests of input lines."""

import os
import subprocess
import sys

import pytest

from experiments.command_line import console
from experiments.errors import UserError


def test_a_line_comes_while_the_pipe_stays_open():
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


def test_a_fast_pipe_comes_in_the_lists_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(console, '_LINE_TIMEOUT', 60)  # on a busy machine, too
    file = tmp_path / 'text'
    file.write_bytes(b''.join(b'line %d\n' % i for i in range(20_000)))
    with open(file, 'rb') as stream:
        expected = list(console.line_windows(stream.fileno(), 4_096))
    assert [len(window) for window in expected] == [4_096] * 4 + [20_000 % 4_096]
    with subprocess.Popen(['cat', file], stdout=subprocess.PIPE) as cat:
        assert cat.stdout
        assert list(console.line_windows(cat.stdout.fileno(), 4_096)) == expected


def test_lines_are_read_where_only_sockets_can_be_waited_for(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError('an operation was attempted on something that is not a socket')

    file = tmp_path / 'text'
    file.write_bytes(b'a\nb\nc\n')
    with open(file, 'rb') as stream, monkeypatch.context() as windows:
        windows.setattr(console.os, 'name', 'nt')
        windows.setattr(console.select, 'select', refuse)
        found = list(console.line_windows(stream.fileno(), 2))
    assert found == [['a', 'b'], ['c']]


def test_a_single_line_waits_for_no_other(monkeypatch):
    select, waits = console.select.select, []

    def at_once(reading, writing, failing, seconds):
        waits.append(seconds > 0)
        return select(reading, writing, failing, 0)

    monkeypatch.setattr(console.select, 'select', at_once)
    reading, writing = os.pipe()
    windows = console.line_windows(reading, 3)
    for text in 'ab':
        os.write(writing, f'{text}\n'.encode())
        assert next(windows) == [text]
    assert waits == [False, False]
    os.write(writing, b'c\nd\n')
    assert next(windows) == ['c', 'd']
    assert waits[2:] == [True]
    os.write(writing, b'e\nf\ng\nh\n')
    assert next(windows) == ['e', 'f', 'g']
    assert next(windows) == ['h']
    assert waits[3:] == [False]
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize('end', ['', '\n'])
def test_a_file_comes_whole(tmp_path, end):
    file = tmp_path / 'text'
    all_lines = [f'line {i} ' + 'x' * (i % 90) for i in range(4_999)] + ['', 'last']
    file.write_bytes(('\r\n'.join(all_lines) + end).encode())
    with open(file, 'rb') as stream:
        found = list(console.line_windows(stream.fileno()))
    assert sum(found, []) == all_lines


def test_what_is_not_utf_8_is_named_after_the_lines_before_it(tmp_path):
    (tmp_path / 'text').write_bytes('ä\u2028b\nc\n'.encode() + b'\xff\nd\n')
    with open(tmp_path / 'text', 'rb') as stream:
        windows = console.line_windows(stream.fileno())
        assert next(windows) == ['ä\u2028b', 'c']
        with pytest.raises(UserError, match='standard input, line 3, is not UTF-8'):
            next(windows)


def test_byte_order_marks_are_no_text(tmp_path):
    mark = b'\xef\xbb\xbf'
    (tmp_path / 'text').write_bytes(mark + b'a\r\n' + mark + b'\n' + mark + b'b')
    with open(tmp_path / 'text', 'rb') as stream:
        assert sum(console.line_windows(stream.fileno()), []) == ['a', '', 'b']


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (b'a\rb\rc\r', 'line 1, has line ends of CR alone. Convert them, .* tr'),
        ('a\nb\n'.encode('utf-16-le'), r'line 1, is not UTF-8 \(zero bytes, as UTF-16'),
    ],
)
def test_other_line_ends_and_encodings_are_refused(text, message, tmp_path):
    (tmp_path / 'text').write_bytes(text)
    with open(tmp_path / 'text', 'rb') as stream:
        with pytest.raises(UserError, match=f'standard input, {message}'):
            list(console.line_windows(stream.fileno()))


def test_streams_are_utf8_whatever_the_locale():
    code = (
        'from experiments.command_line import flags\n'
        r'flags.main(lambda: print("☃ name\udcff of a file"))'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        env=os.environ | {'PYTHONIOENCODING': 'ascii:strict'},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b'')
    assert done.stdout == '☃ name\\udcff of a file\n'.encode()
