"""Space on disk: how much a folder takes, and how a size is printed."""

import os
from pathlib import Path

_BLOCK = (
    512  # bytes of a block of `st_blocks`, whatever the file system's own blocks are
)
_UNITS = ('bytes', 'kB', 'MB', 'GB', 'TB')


def taken(folder: Path) -> int:
    """Bytes on disk of all files below a folder; one that vanishes counts as 0."""
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
    blocks = getattr(status, 'st_blocks', 0)
    if not blocks:
        # The file system does not count blocks, or the operating system has none.
        return status.st_size
    return blocks * _BLOCK


def text(size: int) -> str:
    """A number of bytes with two to four digits: `9,999 bytes`, `25 kB`, `1,200 MB`."""
    value = float(size)
    unit = _UNITS[0]
    for unit in _UNITS:
        if value < 9999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f'{value:,.0f} {unit}'
