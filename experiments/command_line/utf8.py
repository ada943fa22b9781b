"""UTF-8 everywhere, whatever the locale: streams, files, arguments, file names."""

import io
import os
import sys
from collections.abc import Callable


def use(run: Callable[[], None]) -> None:
    """Makes the streams of this process UTF-8.

    Arguments and names of files are decoded when Python starts. So, under a locale of
    another encoding, a command restarts itself in Python's UTF-8 mode.
    """
    decoded_otherwise = sys.getfilesystemencoding() != 'utf-8'
    tried = os.environ.get('PYTHONUTF8') == '1'
    is_command = run.__module__ == '__main__'
    if decoded_otherwise and is_command and not tried and os.name == 'posix':
        os.execve(sys.executable, sys.orig_argv, os.environ | {'PYTHONUTF8': '1'})
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding='utf-8', errors='strict')
    for stream in (sys.stdout, sys.stderr):
        # A file's name may hold bytes that are not text: they are shown escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding='utf-8', errors='backslashreplace')
