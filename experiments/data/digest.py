"""Digests of text and code, which serve as cache keys."""

import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def hex_digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def text_digest(rows: Iterable[Any]) -> str:
    """Returns a hex digest of streamed rows of text, such as pairs."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(f'{json.dumps(row)}\n'.encode())
    return digest.hexdigest()


def read_code(cls: type) -> bytes:
    return Path(inspect.getfile(cls)).read_bytes()
