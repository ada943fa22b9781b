"""Digests of text and code, which serve as cache keys."""

import hashlib
import inspect
from pathlib import Path


def hex_digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def read_code(cls: type) -> bytes:
    return Path(inspect.getfile(cls)).read_bytes()
