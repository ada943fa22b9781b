"""Prefetching in a thread."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar('T')


def prefetch(items: Iterable[T], ahead: int = 8) -> Generator[T, None, None]:
    """Yields the same items and exceptions; a thread makes them ahead of time."""
    iterator = iter(items)
    end: Any = object()
    with ThreadPoolExecutor(1, thread_name_prefix='prefetch') as thread:
        pending = deque(thread.submit(next, iterator, end) for _ in range(ahead))
        while (item := pending.popleft().result()) is not end:
            pending.append(thread.submit(next, iterator, end))
            yield item
