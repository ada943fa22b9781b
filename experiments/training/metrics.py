"""The metrics of training: left on the device until needed, summed between log rows."""

import dataclasses
import math
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.batches import Position
from flaxformer_lite.training.train_step import Metrics

# Stands before the names of metrics that parts of the model report, so that none of
# them is taken for one of the runner's own.
_AUXILIARY = 'model/'
_LARGEST_EXPONENT = 700  # exp of more is not a float
_OWN_MEANS = ('loss', 'perplexity', 'accuracy', 'gradient_norm')


@dataclasses.dataclass
class Progress:
    """What a run must remember, beside its state, to resume: a checkpoint's metadata.

    Attributes:
      shapes: of the batches. They depend on the number of devices, and `position` is
        meaningful among the same shapes only.
      position: of the next batch.
      seconds: spent on training steps, without compilation, evaluation and saving.
      tokens: target tokens trained on.
      rows: of `metrics.jsonl` that are on disk.
      window: sums over the steps since the last logged row.
      best_score: of the dev set so far.
      since_best: how many evaluations since then were no better.
      owes_evaluation: whether a stop interrupted the dev set's evaluation at this step.
    """

    shapes: list[list[int]] = dataclasses.field(default_factory=list)
    position: Position = Position()
    seconds: float = 0.0
    tokens: int = 0
    rows: int = 0
    window: dict[str, float] = dataclasses.field(default_factory=dict)
    best_score: float | None = None
    since_best: int = 0
    owes_evaluation: bool = False

    def count_score(self, score: float) -> None:
        """Counts one more evaluation; an equal score is no improvement."""
        if self.best_score is None or score > self.best_score:
            self.best_score = score
            self.since_best = 0
        else:
            self.since_best += 1

    def stops_early(self, patience: int) -> bool:
        """Whether so many evaluations in a row were no better; 0 means never."""
        return 0 < patience <= self.since_best

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> 'Progress':
        values: dict[str, Any] = {**metadata}
        values['position'] = Position(*metadata['position'])
        return cls(**values)


class _Pending(NamedTuple):
    """A step that was started: its number, its batch's position, its metrics."""

    step: int
    position: Position
    metrics: Metrics
    index: int | None  # of the run among those that the metrics are of

    def values(self) -> Any:
        """The metrics of this run, once the step has ended."""
        values = jax.device_get(self.metrics)
        if self.index is None:
            return values
        return jax.tree.map(lambda x_R: x_R[self.index], values)


class MetricAccumulator:
    """Sums the metrics of training steps without waiting for each step to end."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self._pending: list[_Pending] = []
        self._since = time.perf_counter()

    def start_clock(self) -> None:
        """Counts the time from now until the next `settle` as training time."""
        self._since = time.perf_counter()

    def add(
        self, step: int, after: Position, metrics: Metrics, index: int | None = None
    ) -> None:
        """Notes that a step was started.

        Args:
          after: the position of the next batch.
          metrics: the step's.
          index: the place of this run where `metrics` are of several.
        """
        pending = _Pending(step, self.progress.position, metrics, index)
        self._pending.append(pending)
        self.progress.position = after
        if len(self._pending) > 1:
            # At most one step is ahead of the device.
            jax.block_until_ready(self._pending[-2].metrics)

    def settle(self, share: float = 1.0) -> list[tuple[int, Position]]:
        """Waits for the steps and adds their metrics to the sums.

        Args:
          share: of the time since the clock was started, that counts as this run's.

        Returns:
          The steps whose update was not finite, and so was not made, with the position
          of their batch. Their loss is left out of the sums.
        """
        values = [pending.values() for pending in self._pending]
        seconds = share * (time.perf_counter() - self._since)
        self.progress.seconds += seconds
        self._add_to_window('seconds', seconds)
        not_finite = []
        for pending, metrics in zip(self._pending, values, strict=True):
            self.progress.tokens += int(metrics.sums.tokens)
            if np.isfinite(metrics.sums.loss) and np.isfinite(metrics.gradient_norm):
                self._add_step(metrics)
            else:
                self._add_to_window('skipped', 1)
                not_finite.append((pending.step, pending.position))
        self._pending.clear()
        return not_finite

    def so_far(self) -> dict[str, float]:
        """What the steps since the run began took: target tokens, and seconds."""
        return {'tokens': self.progress.tokens, 'seconds': self.progress.seconds}

    def row(self) -> dict[str, float | None]:
        """Means over the steps since the last row, and begins new sums.

        Loss, perplexity and accuracy are means over target tokens.
        """
        window = self.progress.window
        self.progress.window = {}
        # The runner's own come last: they win over an auxiliary metric of their name.
        return {
            **_auxiliary_means(window),
            **_own_means(window),
            'tokens_per_second': _speed(window),
            'skipped': int(window.get('skipped', 0)),
            **self.so_far(),
        }

    def _add_step(self, metrics: Metrics) -> None:
        for name, value in vars(metrics.sums).items():
            self._add_to_window(name, value)
        self._add_to_window('gradient_norm', metrics.gradient_norm)
        self._add_to_window('steps', 1)
        for name, value in metrics.aux_metrics.items():
            self._add_to_window(f'{_AUXILIARY}{name}', value)

    def _add_to_window(self, name: str, value: Any) -> None:
        window = self.progress.window
        window[name] = window.get(name, 0.0) + float(value)


def _own_means(window: dict[str, float]) -> dict[str, float | None]:
    """Means of the runner's own metrics; None where no step gave any."""
    steps = window.get('steps', 0)
    if not steps:
        return dict.fromkeys(_OWN_MEANS)
    tokens = window.get('tokens', 0)
    nll = window['nll'] / tokens
    return {
        'loss': window['loss'] / tokens,
        'perplexity': math.exp(min(nll, _LARGEST_EXPONENT)),
        'accuracy': window['correct'] / tokens,
        'gradient_norm': window['gradient_norm'] / steps,
    }


def _auxiliary_means(window: dict[str, float]) -> dict[str, float]:
    """Means over the steps of what parts of the model report of themselves."""
    means = {}
    for name, total in window.items():
        if name.startswith(_AUXILIARY):
            means[name.removeprefix(_AUXILIARY)] = total / window['steps']
    return means


def _speed(window: dict[str, float]) -> float | None:
    """Target tokens a second."""
    seconds = window.get('seconds')
    return window.get('tokens', 0) / seconds if seconds else None
