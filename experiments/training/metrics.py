"""Training metrics, kept on the device and summed between log rows."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.batches import Position
from experiments.evaluation.scores import perplexity
from flaxformer_lite.training.train_step import Metrics

# Prefix of metrics that components of the model report, to avoid name collisions with
# the runner's metrics.
_AUXILIARY = 'model/'
# Prefix of metrics that the loss reports (means over tokens). Log rows keep it.
_LOSS_PREFIX = 'loss/'


class _PendingStep(NamedTuple):
    step: int
    position: Position
    metrics: Metrics


class Progress:
    """The progress of training, and the metrics since the last log row.

    Args:
      text: Digest of the training pairs.
      seconds: Time spent on training steps, without compilation, evaluation and saving.
      tokens: Target tokens trained on.
      cpu_seconds: Time of this process on the CPU's cores in `seconds`, which depends
        less on the load of the machine.
    """

    def __init__(
        self,
        text: str,
        position: Sequence[int] = (),
        seconds: float = 0.0,
        tokens: int = 0,
        window: Mapping[str, float] = MappingProxyType({}),
        cpu_seconds: float = 0.0,
    ):
        self.text = text
        self.position = Position(*position)
        self.seconds = seconds
        self.tokens = tokens
        self.cpu_seconds = cpu_seconds
        self._window: Counter[str] = Counter(window)
        self._pending: list[_PendingStep] = []
        self.start_clock()

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> 'Progress':
        """Returns the progress in the metadata of a checkpoint."""
        own = ('position', 'seconds', 'cpu_seconds', 'tokens', 'window')
        stored = {name: metadata[name] for name in own if name in metadata}
        return cls(metadata.get('text', ''), **stored)

    def metadata(self) -> dict[str, Any]:
        """Returns the constructor arguments, which checkpoints store as JSON."""
        return {
            'text': self.text,
            'position': self.position,
            'seconds': self.seconds,
            'tokens': self.tokens,
            'window': dict(self._window),  # a copy: it is written in the background
            'cpu_seconds': self.cpu_seconds,
        }

    def start_clock(self) -> None:
        """Starts the clock that the next `settle` reads."""
        self._clock_start = time.perf_counter()
        self._cpu_clock_start = time.process_time()

    def add(self, step: int, after: Position, metrics: Metrics) -> None:
        """Records a dispatched step; `after` is the position of the next batch."""
        self._pending.append(_PendingStep(step, self.position, metrics))
        self.position = after
        if len(self._pending) > 1:
            # At most one step is ahead of the device.
            jax.block_until_ready(self._pending[-2].metrics)

    def settle(self) -> list[tuple[int, Position]]:
        """Waits for the dispatched steps and adds their metrics to the sums.

        The sums exclude non-finite updates. Returns the steps whose update a smaller
        loss scale can't fix, and the positions of their batches.
        """
        values: Any = jax.device_get([pending.metrics for pending in self._pending])
        seconds = time.perf_counter() - self._clock_start
        self.seconds += seconds
        self.cpu_seconds += time.process_time() - self._cpu_clock_start
        self._window.update({'seconds': seconds})
        not_finite = []
        for pending, metrics in zip(self._pending, values, strict=True):
            self.tokens += int(metrics.sums.tokens)
            if np.isfinite(metrics.sums.loss) and np.isfinite(metrics.gradient_norm):
                self._add_step(metrics)
                continue
            self._window.update({'skipped': 1})
            # At a larger scale, float16 gradients overflow until the scale has halved.
            if not np.isfinite(metrics.sums.loss) or metrics.loss_scale <= 1:
                not_finite.append((pending.step, pending.position))
        self._pending.clear()
        return not_finite

    def totals(self) -> dict[str, float]:
        """Returns the time and the tokens of all steps so far."""
        return {'tokens': self.tokens, 'seconds': self.seconds}

    def row(self) -> dict[str, float]:
        """Returns means since the last row, and resets the sums.

        Loss, perplexity and accuracy are means over target tokens; NaN without tokens.
        """
        sums = self._window
        self._window = Counter()
        tokens = sums['tokens'] or math.nan
        steps = sums['steps'] or math.nan
        row = {}
        for name, total in sums.items():
            if name.startswith(_AUXILIARY):
                row[name.removeprefix(_AUXILIARY)] = total / steps
            elif name.startswith(_LOSS_PREFIX):
                row[name] = total / tokens
        # The runner's metrics come last: they override auxiliary ones of the same name.
        return row | {
            'loss': sums['loss'] / tokens,
            'perplexity': perplexity(sums['nll'] / tokens),
            'accuracy': sums['correct'] / tokens,
            'gradient_norm': sums['gradient_norm'] / steps,
            'tokens_per_second': sums['tokens'] / (sums['seconds'] or math.nan),
            'skipped': int(sums['skipped']),
            **self.totals(),
        }

    def _add_step(self, metrics: Metrics) -> None:
        sums = {
            **vars(metrics.sums),
            'gradient_norm': metrics.gradient_norm,
            'steps': 1,
        }
        for name, value in sums.pop('others').items():
            sums[f'{_LOSS_PREFIX}{name}'] = value
        for name, value in metrics.aux_metrics.items():
            sums[f'{_AUXILIARY}{name}'] = value
        self._window.update({name: float(value) for name, value in sums.items()})


def stops_early(scores: Mapping[int, float], patience: int) -> bool:
    """Returns whether `patience` evaluations brought no better score; 0 disables it.

    `scores` maps steps to dev scores, in order. An equal score isn't better.
    """
    values = list(scores.values())
    return bool(values) and 0 < patience < len(values) - values.index(max(values))
