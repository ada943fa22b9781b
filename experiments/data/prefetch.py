"""Items that are made by a thread before they are needed."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar('T')


def prefetch(items: Iterable[T], ahead: int = 8) -> Generator[T, None, None]:
    """The same items, made by a thread while the ones before them are in use.

    What `items` raises is raised here, at its place among the items. Grain's thread is
    not used: it takes a data set of its own kind with a state, and here the position of
    the next batch is the whole state.
    """
    iterator = iter(items)
    end: Any = object()
    with ThreadPoolExecutor(1, thread_name_prefix='prefetch') as thread:
        waiting = deque(thread.submit(next, iterator, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, iterator, end))
            yield item
