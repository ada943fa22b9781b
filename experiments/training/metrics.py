"""The metrics of training: left on the device until needed, summed between log rows."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.batches import Position
from flaxformer_lite.training.train_step import Metrics

# Stands before the names of metrics that parts of the model report, so that none of
# them is taken for one of the runner's own.
_AUXILIARY = 'model/'
# The same of what the loss reports, also in rows: these are means over tokens.
_OF_LOSS = 'loss/'
_LARGEST_EXPONENT = 700  # exp of more is not a float


class _Started(NamedTuple):
    """A step that was started: its number, its batch's position, its metrics."""

    step: int
    position: Position
    metrics: Metrics


class Progress:
    """How far training is, and its metrics since the last row.

    Args:
      text: digest of the training pairs, among which a position means something.
      position: of the next batch.
      seconds: spent on training steps, without compilation, evaluation and saving.
      tokens: target tokens trained on.
      window: sums over the steps since the last row.
    """

    def __init__(
        self,
        text: str,
        position: Sequence[int] = (),
        seconds: float = 0.0,
        tokens: int = 0,
        window: Mapping[str, float] = MappingProxyType({}),
    ):
        self.text = text
        self.position = Position(*position)
        self.seconds = seconds
        self.tokens = tokens
        self._window: Counter[str] = Counter(window)
        self._started: list[_Started] = []
        self.start_clock()

    def metadata(self) -> dict[str, Any]:
        """The arguments that make it anew; a checkpoint holds them as JSON."""
        return {
            'text': self.text,
            'position': self.position,
            'seconds': self.seconds,
            'tokens': self.tokens,
            'window': dict(self._window),  # which is written while this one grows
        }

    def start_clock(self) -> None:
        """Counts the time from now until the next `settle` as training time."""
        self._since = time.perf_counter()

    def add(self, step: int, after: Position, metrics: Metrics) -> None:
        """Notes that a step was started; `after` is the position of the next batch."""
        self._started.append(_Started(step, self.position, metrics))
        self.position = after
        if len(self._started) > 1:
            # At most one step is ahead of the device.
            jax.block_until_ready(self._started[-2].metrics)

    def settle(self) -> list[tuple[int, Position]]:
        """Waits for the steps and adds their metrics to the sums.

        Returns:
          The steps whose update was not finite, and so was not made, with the position
          of their batch. Their loss is left out of the sums.
        """
        values: Any = jax.device_get([started.metrics for started in self._started])
        seconds = time.perf_counter() - self._since
        self.seconds += seconds
        self._window.update({'seconds': seconds})
        not_finite = []
        for started, metrics in zip(self._started, values, strict=True):
            self.tokens += int(metrics.sums.tokens)
            if np.isfinite(metrics.sums.loss) and np.isfinite(metrics.gradient_norm):
                self._add_step(metrics)
            else:
                self._window.update({'skipped': 1})
                not_finite.append((started.step, started.position))
        self._started.clear()
        return not_finite

    def so_far(self) -> dict[str, float]:
        """What the steps since the run began took: target tokens, and seconds."""
        return {'tokens': self.tokens, 'seconds': self.seconds}

    def row(self) -> dict[str, float]:
        """Means over the steps since the last row, and begins new sums.

        Loss, perplexity and accuracy are means over target tokens; NaN where no step
        gave any.
        """
        sums = self._window
        self._window = Counter()
        tokens = sums['tokens'] or math.nan
        steps = sums['steps'] or math.nan
        row = {}
        for name, total in sums.items():
            if name.startswith(_AUXILIARY):
                row[name.removeprefix(_AUXILIARY)] = total / steps
            elif name.startswith(_OF_LOSS):
                row[name] = total / tokens
        # The runner's own come last: they win over an auxiliary metric of their name.
        return row | {
            'loss': sums['loss'] / tokens,
            'perplexity': math.exp(min(sums['nll'] / tokens, _LARGEST_EXPONENT)),
            'accuracy': sums['correct'] / tokens,
            'gradient_norm': sums['gradient_norm'] / steps,
            'tokens_per_second': sums['tokens'] / (sums['seconds'] or math.nan),
            'skipped': int(sums['skipped']),
            **self.so_far(),
        }

    def _add_step(self, metrics: Metrics) -> None:
        sums = {
            **vars(metrics.sums),
            'gradient_norm': metrics.gradient_norm,
            'steps': 1,
        }
        for name, value in sums.pop('others').items():
            sums[f'{_OF_LOSS}{name}'] = value
        for name, value in metrics.aux_metrics.items():
            sums[f'{_AUXILIARY}{name}'] = value
        self._window.update({name: float(value) for name, value in sums.items()})


def stops_early(scores: Mapping[int, float], patience: int) -> bool:
    """Whether so many evaluations in a row gave no better score; 0 means never.

    Args:
      scores: of the dev set by step, in order. An equal one is no improvement.
    """
    values = list(scores.values())
    return bool(values) and 0 < patience < len(values) - values.index(max(values))
