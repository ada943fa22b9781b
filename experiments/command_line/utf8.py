"""Everything in and out is UTF-8, whatever the locale: streams, files, arguments, file names."""

import io
import os
import sys
from collections.abc import Callable


def use(run: Callable[[], None]) -> None:
    """Has the streams of this process be UTF-8, and the process itself where it is a command's.

    Arguments and names of files are decoded when Python starts, so a command under a locale of
    another encoding starts once more, in Python's UTF-8 mode.
    """
    decoded_otherwise = sys.getfilesystemencoding() != 'utf-8'
    tried = os.environ.get('PYTHONUTF8') == '1'
    is_command = run.__module__ == '__main__'
    if decoded_otherwise and is_command and not tried and os.name == 'posix':
        os.execve(sys.executable, sys.orig_argv, os.environ | {'PYTHONUTF8': '1'})
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding='utf-8', errors='strict')
    for stream in (sys.stdout, sys.stderr):
        # What is no text, as the bytes of a file's name may be, is shown and stops nothing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding='utf-8', errors='backslashreplace')
