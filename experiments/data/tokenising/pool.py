"""Processes that tokenise, and the threads that hand them their pairs."""

import dataclasses
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, ParamSpec, TypeVar

from experiments.data.tokenising import part, worker
from experiments.data.tokenising.part import Part
from experiments.data.tokenizer import Tokenizer
from experiments.errors import UserError

P = ParamSpec('P')
T = TypeVar('T')


class Pool:
    """Tokenises several lists of pairs at once, each in a process of its own.

    `multiprocessing` does not serve here. A fork is unsafe once JAX has threads; what
    it spawns imports the main module again, whatever that is; and a command that was
    asked to stop ends by `os._exit`, after which its processes would stay.

    Args:
      tokenizer: what they tokenise with.
      processes: how many. With one, this process does it itself.

    Raises:
      UserError: the system has no room for them.
    """

    def __init__(self, tokenizer: Tokenizer, processes: int):
        self._tokenizer = tokenizer
        self._all: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        try:
            for _ in range(processes if processes > 1 else 0):
                started = _Worker(tokenizer)
                self._all.append(started)
                self._idle.put(started)
        except OSError as error:
            self._end_workers()
            raise UserError(
                f'cannot start {processes} processes that tokenise: '
                f'{error.strerror or error}'
            ) from error
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix='tokenise')

    def __enter__(self) -> 'Pool':
        return self

    def __exit__(self, *_) -> None:
        """Ends the processes, and with them what they were doing."""
        for each in self._all:
            each.kill()
        self._threads.shutdown(cancel_futures=True)
        self._end_workers()

    def submit(
        self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Has a thread do some work, which may call `tokenize`."""
        return self._threads.submit(work, *args, **kwargs)

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> Part:
        """As `part.tokenize`; there are as many threads as processes, so none waits.

        Raises:
          UserError: the process has ended.
        """
        if not self._all:
            return part.tokenize(pairs, self._tokenizer)
        idle = self._idle.get()
        try:
            return idle.tokenize(pairs)
        finally:
            self._idle.put(idle)

    def _end_workers(self) -> None:
        for each in self._all:
            each.end()


class _Worker:
    """The near end of a process that tokenises."""

    def __init__(self, tokenizer: Tokenizer):
        # In a session of its own it gets no Ctrl-C of the terminal.
        self._process = subprocess.Popen(
            [sys.executable, '-m', worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        # Anew, without what it has parsed.
        self._tokenizer: Tokenizer | None = dataclasses.replace(tokenizer)

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> Part:
        try:
            if self._tokenizer is not None:
                pickle.dump(self._tokenizer, self._questions)
                self._tokenizer = None
            pickle.dump(pairs, self._questions, pickle.HIGHEST_PROTOCOL)
            self._questions.flush()
            return part.from_bytes(pickle.load(self._answers))
        except (OSError, EOFError, pickle.UnpicklingError):
            raise UserError(
                f'a process that tokenises {self._how_it_ended()}; what is done is '
                'kept: the same command goes on from there'
            ) from None

    @property
    def _questions(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _answers(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _how_it_ended(self) -> str:
        status = self._process.wait()
        if status >= 0:
            return f'has ended with status {status}'
        name = signal.Signals(-status).name
        hint = ', as where memory is short' if name == 'SIGKILL' else ''
        return f'was ended by {name}{hint}'

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Ends the process and closes both pipes; no thread may be using them."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        try:
            self._questions.close()
        except OSError:
            pass  # it had not read all
