"""Digests of text and code, which serve as cache keys."""

import hashlib
import inspect
from pathlib import Path

from experiments import storage


def hex_digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def of_file(path: Path) -> bytes:
    return bytes.fromhex(storage.sha256(path))


def code_of(cls: type) -> bytes:
    return Path(inspect.getfile(cls)).read_bytes()
