"""Digests, by which the cache finds what was made of the same text by the same code."""

import hashlib
import inspect
from pathlib import Path

from experiments import storage


def hex_digest(*parts: str | bytes) -> str:
    """The SHA-256 of texts and bytes, one behind the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def of_file(path: Path) -> bytes:
    """The SHA-256 of a file; raises UserError if it cannot be read."""
    return bytes.fromhex(storage.sha256(path))


def code_of(cls: type) -> bytes:
    """The file that a class is defined in."""
    return Path(inspect.getfile(cls)).read_bytes()
