"""Room on a disk: what a folder takes of it, and how that is said."""

import os
from pathlib import Path

_BLOCK = 512  # bytes, of which `st_blocks` counts, whatever the file system's own are
_UNITS = ('bytes', 'kB', 'MB', 'GB', 'TB')


def taken(folder: Path) -> int:
    """Bytes on disk of all files below a folder; one that is being removed takes none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total += _taken_by_file(os.path.join(parent, name))
    return total


def _taken_by_file(path: str) -> int:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    # A file system that does not count blocks, or a system that has none.
    return getattr(status, 'st_blocks', 0) * _BLOCK or status.st_size


def text(size: int) -> str:
    """A number of bytes with two to four digits: `9,999 bytes`, `25 kB`, `1,200 MB`."""
    value, unit = float(size), _UNITS[0]
    for unit in _UNITS:
        if value < 9999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f'{value:,.0f} {unit}'
