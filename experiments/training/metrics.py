"""Training's figures: left on the device until they are asked for, summed from row to row."""

import dataclasses
import math
import time
from typing import Any

import jax
import numpy as np

from experiments.data.batches import Position
from flaxformer_lite.training.train_step import Metrics

# Before the names of what a model's parts report of themselves, so that none is taken for ours.
_OTHER = 'model/'


@dataclasses.dataclass
class Progress:
    """What goes on from one process of a run to the next beside the state: a checkpoint's JSON.

    Attributes:
      shapes: of batches, which follow from the devices too: positions mean nothing among others.
      position: of the next batch.
      seconds: spent on training steps; without compilation, evaluation and saving.
      tokens: target tokens trained on.
      rows: of metrics that are on disk.
      window: sums over the steps since the last row of metrics.
      best_score, since_best: of the dev set so far, and how many evaluations had none better since.
      owes_evaluation: a stop cut the dev set's evaluation at this step short.
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

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> 'Progress':
        return cls(**metadata | {'position': Position(*metadata['position'])})


class Figures:
    """Collects what the steps return, without waiting for them."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self._pending: list[tuple[int, Position, Metrics]] = []
        self._since = time.perf_counter()

    def start_clock(self) -> None:
        """What follows is training, until the next `settle`."""
        self._since = time.perf_counter()

    def add(self, step: int, after: Position, metrics: Metrics) -> None:
        """A step was begun; `after` is the position of the batch behind its own."""
        self._pending.append((step, self.progress.position, metrics))
        self.progress.position = after
        if len(self._pending) > 1:  # one step ahead of the device, and never more
            jax.block_until_ready(self._pending[-2][2])

    def settle(self) -> list[tuple[int, Position]]:
        """Waits for the steps and counts them → those whose update was not finite, and so not made.

        Their loss is left out of the sums.
        """
        values = jax.device_get([metrics for _, _, metrics in self._pending])
        seconds = time.perf_counter() - self._since
        self.progress.seconds += seconds
        self._count(seconds=seconds)
        bad = []
        for (step, position, _), metrics in zip(self._pending, values, strict=True):
            self.progress.tokens += int(metrics.sums.tokens)
            if np.isfinite(metrics.sums.loss) and np.isfinite(metrics.gradient_norm):
                self._count(
                    **vars(metrics.sums), gradient_norm=metrics.gradient_norm, steps=1
                )
                self._count(
                    **{f'{_OTHER}{name}': x for name, x in metrics.aux_metrics.items()}
                )
            else:
                self._count(skipped=1)
                bad.append((step, position))
        self._pending.clear()
        return bad

    def row(self) -> dict[str, float | None]:
        """Means over the steps since the last row: loss and perplexity a token, speed, …"""
        window = self.progress.window
        self.progress.window = {}
        steps, tokens = window.get('steps', 0), window.get('tokens', 0)
        means = {
            'loss': None,
            'perplexity': None,
            'accuracy': None,
            'gradient_norm': None,
        }
        if steps:
            means = {
                'loss': window['loss'] / tokens,
                'perplexity': math.exp(min(window['nll'] / tokens, 700)),
                'accuracy': window['correct'] / tokens,
                'gradient_norm': window['gradient_norm'] / steps,
            }
        others = [name for name in window if name.startswith(_OTHER)]
        # Ours last: a part that reports a `loss` of its own does not stand for the loss.
        means = {
            name.removeprefix(_OTHER): window[name] / steps for name in others
        } | means
        speed = tokens / window['seconds'] if window.get('seconds') else None
        return means | {
            'tokens_per_second': speed,
            'skipped': int(window.get('skipped', 0)),
        }

    def _count(self, **values: Any) -> None:
        for name, value in values.items():
            self.progress.window[name] = self.progress.window.get(name, 0.0) + float(
                value
            )
