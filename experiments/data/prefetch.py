"""Items that are made by a thread before they are needed."""

import functools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar('T')
U = TypeVar('U')
Rest = Callable[[], object]
_REST = 2e-4  # seconds; planning a window takes some 500 rests


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


def one_ahead(
    keys: Iterable[T], make: Callable[[T, Rest], U]
) -> Generator[tuple[T, U], None, None]:
    """Each key with what `make` makes of it; a thread makes the next one meanwhile.

    Args:
      keys: one at least.
      make: is given a key, and a function to call now and then. Of Python one thread
        runs at a time: there it rests, for the others, until what it makes is needed.
    """
    is_due = threading.Event()
    is_due.set()
    rest = functools.partial(is_due.wait, _REST)
    remaining = iter(keys)
    key = next(remaining)
    made = make(key, rest)
    with ThreadPoolExecutor(1, thread_name_prefix='ahead') as thread:
        for following in remaining:
            is_due.clear()
            upcoming = thread.submit(make, following, rest)
            try:
                yield key, made
            finally:
                is_due.set()
            key, made = following, upcoming.result()
        yield key, made


class Feed(Generic[T, U]):
    """The next items of several endless sources, put where they are used beforehand.

    Each time some of the sources give an item. It is foreseen that the same ones will
    be asked again; if others are, what was put is dropped, and every item still comes
    in its turn.

    Args:
      sources: by their places. They are closed with the feed.
      put: makes of items by place what is to be used; called by a thread.
      ahead: how many times it is called before that is needed.
    """

    def __init__(
        self,
        sources: Mapping[int, Generator[T, None, None]],
        put: Callable[[dict[int, T]], U],
        ahead: int = 2,
    ):
        self._sources = sources
        self._put = put
        self._ahead = ahead
        self._places: tuple[int, ...] = ()
        self._waiting: deque[Future[tuple[dict[int, T], U]]] = deque()
        # Of each source what was taken from it, and not used yet.
        self._returned: dict[int, deque[T]] = {place: deque() for place in sources}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix='feed')

    def take(self, places: Sequence[int]) -> tuple[dict[int, T], U]:
        """The next item of each source in these places, and what `put` made of them.

        What a source or `put` raises is raised here.
        """
        if tuple(places) != self._places:
            self._return_items()
            self._places = tuple(places)
        while len(self._waiting) <= self._ahead:
            self._waiting.append(self._thread.submit(self._make, self._places))
        return self._waiting.popleft().result()

    @property
    def is_ready(self) -> bool:
        """Whether what would be taken next from the same places is there."""
        return bool(self._waiting) and self._waiting[0].done()

    def close(self) -> None:
        """Ends the thread and the sources."""
        self._thread.shutdown(cancel_futures=True)
        for source in self._sources.values():
            source.close()

    def _make(self, places: tuple[int, ...]) -> tuple[dict[int, T], U]:
        items = {}
        for place in places:
            returned = self._returned[place]
            items[place] = (
                returned.popleft() if returned else next(self._sources[place])
            )
        return items, self._put(items)

    def _return_items(self) -> None:
        """Gives back what was taken beforehand; the thread has nothing to do then."""
        made = [future.result() for future in self._waiting]
        self._waiting.clear()
        for items, _ in reversed(made):
            for place, item in items.items():
                self._returned[place].appendleft(item)
