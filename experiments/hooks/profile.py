"""Traces of some steps."""

import contextlib
import dataclasses
from typing import Annotated

from experiments.hooks.base import Hook
from flaxformer_lite.validation import Range


@dataclasses.dataclass(kw_only=True)
class Profile(Hook):
    """Traces the steps between two rows of training, to `profile/` of the run.

    Attributes:
      after: The step of the first row, a multiple of `train.log_every`.
    """

    after: Annotated[int, Range(at_least=1)]

    def start(self, run):
        self._folder = run.path / 'profile'
        self._trace = contextlib.ExitStack()

    def row(self, row):
        import jax

        if row['kind'] == 'train':
            self._trace.close()
            if row['step'] == self.after:
                trace = jax.profiler.trace(self._folder, create_perfetto_trace=True)
                self._trace.enter_context(trace)

    def end(self, result):
        self._trace.close()
