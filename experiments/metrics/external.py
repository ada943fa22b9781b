"""Scores from a command, for learned metrics that need another environment."""

import contextlib
import dataclasses
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated

from experiments.errors import UserError, reason
from experiments.metrics.base import Metric
from flaxformer_lite.validation import Range

Texts = tuple[str, str, str]  # source, hypothesis, reference

_KEYS = ('source', 'hypothesis', 'reference')
_SAMPLE = ('A dog.', 'Ein Hund.', 'Ein Hund.')
_FORMAT = 'Print one score per line to standard output, and nothing else'
_LEADER = 'import os, signal, sys; sys.stdin.read(); os.killpg(0, signal.SIGKILL)'
# Evaluations repeat sentences, and reports score the same translations several times.
_cached_scores: dict[tuple[str, Texts], float] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class External(Metric):
    """The mean of the scores that a command prints; higher must be better.

    The command reads JSON lines with `source`, `hypothesis` and `reference`, and prints
    a number for each. Each sentence uses the reference with the highest score. Equal
    texts are scored once per process.

    Attributes:
      command: Program and arguments, quoted as in a shell, but run without one.
      timeout: Seconds that a call may take.
    """

    command: str
    timeout: Annotated[float, Range(above=0, at_most=1e6)] = 3600.0

    def __post_init__(self):
        super().__post_init__()
        try:
            is_empty = not shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f'command={self.command!r}: {error}') from None
        if is_empty:
            raise ValueError('command is empty. Pass a program and its arguments.')

    def arguments(self):
        return {'command': self.command}  # the timeout doesn't affect scores

    def check_installed(self):
        """Scores a sample, because only a call shows whether a model loads."""
        self._scores([_SAMPLE])

    def statistics(self, outputs, references, sources):
        texts = []
        for output, known, source in zip(outputs, references, sources, strict=True):
            texts.append([(source, output, reference) for reference in known])
        scores = self._scores(chain.from_iterable(texts))
        return [(max(scores[x] for x in of_sentence), 1) for of_sentence in texts]

    def score_of(self, total):
        score, sentences = total
        return score / sentences

    def _scores(self, texts: Iterable[Texts]) -> dict[Texts, float]:
        unique = list(dict.fromkeys(texts))
        new = [x for x in unique if (self.command, x) not in _cached_scores]
        if new:
            rows = [json.dumps(dict(zip(_KEYS, x, strict=True))) for x in new]
            printed = self._run(''.join(f'{row}\n' for row in rows)).splitlines()
            if len(printed) != len(new):
                raise self._error(
                    f'printed {len(printed)} lines for {len(new)} translations', _FORMAT
                )
            for text, line in zip(new, printed, strict=True):
                _cached_scores[self.command, text] = self._number(line)
        return {x: _cached_scores[self.command, x] for x in unique}

    def _run(self, rows: str) -> str:
        with contextlib.ExitStack() as opened:
            # End the group first, because the exit of the process waits for it.
            with _process_group() as group:
                process = opened.enter_context(self._start(group))
                try:
                    printed, errors = process.communicate(rows, self.timeout)
                except subprocess.TimeoutExpired:
                    raise self._error(
                        f'no scores within {self.timeout:g} s', 'Set a longer timeout'
                    ) from None
                finally:
                    process.kill()  # on Windows, which has no groups
        if process.returncode:
            last = (errors.strip() or 'it printed no message').splitlines()[-1]
            raise self._error(
                f'exit status {process.returncode}: {reason(last)}',
                'Run it in a terminal to see all messages',
            )
        return printed

    def _start(self, group: int | None) -> 'subprocess.Popen[str]':
        program, *arguments = shlex.split(self.command)
        try:
            return subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding='utf-8',
                errors='replace',
                process_group=group,
            )
        except (OSError, ValueError) as error:
            raise self._error(
                f'cannot run {program!r}: {reason(error)}', 'Install it or correct it'
            ) from None

    def _number(self, line: str) -> float:
        with contextlib.suppress(ValueError):
            number = float(line)
            if math.isfinite(number):
                return number
        raise self._error(f'printed {line[:80]!r} instead of a number', _FORMAT)

    def _error(self, problem: str, fix: str) -> UserError:
        return UserError(
            f'evaluation.metrics: {self.name}: the command {self.command!r}: '
            f'{problem}. {fix}.'
        )


@contextlib.contextmanager
def _process_group() -> Iterator[int | None]:
    """Yields a process group that ends with the block and with this process.

    Its leader reads a pipe that closes even if this process is killed.
    """
    if not hasattr(os, 'killpg'):  # Windows
        yield None
        return
    command = [sys.executable, '-I', '-S', '-c', _LEADER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0) as leader:
        yield leader.pid
