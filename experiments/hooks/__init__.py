"""Hooks that a run calls while it trains, one per module."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from experiments.hooks.base import Hook, RunInfo


class Hooks:
    """The hooks of a run, called in order. A note on their errors names the hook."""

    def __init__(self, hooks: Mapping[str, Hook]):
        self._hooks = hooks
        self._open: dict[str, Hook] = {}  # started and not ended

    def start(self, run: RunInfo) -> None:
        for name, hook in self._hooks.items():
            _call({name: hook}, lambda hook: hook.start(run))
            self._open[name] = hook

    def row(self, row: dict[str, Any]) -> None:
        """Adds the hooks' results to a row; each hook sees those before it."""

        def add(hook):
            # In the form that the file stores: NumPy numbers as Python's, NaN as null.
            found = hook.row(dict(row)) or {}
            text = json.dumps(found, default=float)
            more = json.loads(text, parse_constant=lambda name: None)
            row.update(more | row)

        _call(self._open, add)

    def checkpoint(self, step: int) -> None:
        _call(self._open, lambda hook: hook.checkpoint(step))

    def end(self, result: Mapping[str, Any] | None) -> None:
        started, self._open = self._open, {}
        _call(started, lambda hook: hook.end(result))


def _call(hooks: Mapping[str, Hook], act: Callable[[Hook], None]) -> None:
    for name, hook in hooks.items():
        try:
            act(hook)
        except Exception as error:
            error.add_note(f'in train.hooks={name}')
            raise
