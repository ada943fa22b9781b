"""Profiles of training steps, which TensorBoard and Perfetto open."""

from pathlib import Path
from typing import Any

import jax


class StepProfiler:
    """Writes a trace of some training steps, by `jax.profiler`.

    Args:
      steps: the first and the last; None for none.
      folder: gets `plugins/profile/<time>/` with the trace.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: Path):
        self._first, self._last = steps or (0, 0)
        self._folder = folder
        self._runs = False

    def before(self, step: int, state: Any) -> None:
        """Begins the trace where this is the first step; `state` is that before it."""
        if step == self._first:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._runs = True

    def after(self, step: int, state: Any) -> str:
        """Ends the trace where this is the last step → where it is; else ''."""
        if not self._runs or step < self._last:
            return ''
        jax.block_until_ready(state)
        self.close()
        return f'profile of steps {self._first} to {self._last}: {self._folder}'

    def close(self) -> None:
        """Ends a trace that has begun."""
        if self._runs:
            self._runs = False
            jax.profiler.stop_trace()
