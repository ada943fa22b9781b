"""One run's side of training: its batches, metrics, scores and checkpoints."""

import dataclasses
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.config.schema import seed
from experiments.data.batches import Position
from experiments.data.collate import Batch
from experiments.data.prefetch import prefetch
from experiments.errors import UserError
from experiments.evaluation import scores, translation_files
from experiments.evaluation.evaluator import Evaluator
from experiments.optimizers import eval_params
from experiments.runs import trained_run
from experiments.runs.failure import Diverged
from experiments.runs.metrics_log import MetricsLog, NoMetricsLog
from experiments.runtime import memory, processes
from experiments.training.metrics import MetricAccumulator, Progress
from experiments.training.setup import RunSetup
from flaxformer_lite.training.train_step import TrainState


class RunRecord:
    """What is kept of a run while it trains.

    Args:
      setup: of the run.
      path: its directory.
      screen: shows what it says.
      stop: ends its evaluations.
      say: prints a text about this run.

    Attributes:
      step: the last one that was made.
      saved_step: that of the newest checkpoint.
      metrics: of the steps since the last row.
      peak: the most memory that this process takes from here on.
    """

    def __init__(
        self,
        setup: RunSetup,
        path: Path,
        screen: Screen,
        stop: Stop,
        say: Callable[[str], None],
    ):
        self.setup = setup
        self.config = setup.config
        self.path = path
        self.say = say
        self.peak = memory.Peak()
        self.checkpoints = Checkpoints(
            path / trained_run.CHECKPOINTS,
            self.config.checkpoint.keep,
            self.config.checkpoint.keep_best,
        )
        self.evaluator = Evaluator(
            setup.model,
            setup.tokenizer,
            self.config,
            path,
            setup.direction,
            setup.devices,
            on_progress=self._on_evaluation_progress,
        )
        self.dropout_key = self._key('dropout_seed')
        self._screen = screen
        self._stop = stop
        self._shapes = [list(shape) for shape in setup.batches.planned_shapes]

    def begin(
        self, abstract: TrainState, first_state: Callable[[jax.Array], TrainState]
    ) -> TrainState:
        """The state to go on from: the newest checkpoint's, or else a first one.

        Args:
          abstract: shapes and dtypes of a state.
          first_state: makes one of a key.

        Raises:
          UserError: the checkpoints cannot be read, or are of other batches.
        """
        to_restore = eval_params.to_restore(abstract)
        restored = self.checkpoints.restore(to_restore, warn=self.say)
        if restored is None:
            progress = Progress(self._shapes)
            state = first_state(self._key('init_seed'))
        else:
            progress = Progress.of(restored.metadata)
            self._check_shapes(progress)
            self.say(f'resuming at step {restored.step:,}')
            state = eval_params.restored(restored.state)
        self.step = int(state.step)
        self.saved_step = self.step
        self.metrics = MetricAccumulator(progress)
        log = MetricsLog if processes.is_first() else NoMetricsLog
        self.metrics_log = log(self.path, progress.rows, self.step)
        if restored is None and self.config.init_from:
            # Then nothing asks for the source any more. The next seed's is saved after
            # it: processes have no common order of saves that overlap.
            self.save(state, due=False)
            self.checkpoints.wait()
        return state

    def _key(self, name: str) -> jax.Array:
        """The random key of one of the seeds, on every device."""
        return self.setup.devices.key(seed(self.config, name))

    def _check_shapes(self, progress: Progress) -> None:
        if progress.shapes != self._shapes:
            raise UserError(
                f'{self.path} was begun with batches of other shapes: '
                f'{progress.shapes}, not {self._shapes}. Its text has changed, or an '
                'earlier version began it on several devices: choose another --workdir'
            )

    @property
    def ended(self) -> bool:
        """Whether this run has made its last step."""
        patience = self.config.train.patience
        stops_early = self.metrics.progress.stops_early(patience)
        return self.step >= self.setup.steps or stops_early

    def batches(
        self, own_rows: Callable[[int], np.ndarray]
    ) -> Generator[tuple[Batch, Position], None, None]:
        """The batches from the next step's on, each with the next one's position.

        A thread makes them ahead.

        Args:
          own_rows: which rows of so many are made.
        """
        position = self.metrics.progress.position
        return prefetch(self.setup.batches.iterate(position, own_rows))

    def settle(self, share: float = 1.0) -> None:
        """Waits for the steps so far; one that is not finite is told, or an error.

        Args:
          share: of the time since the clock was started, that was this run's.

        Raises:
          Diverged: one is not finite, and `train.on_nonfinite` says to stop.
        """
        for step, position in self.metrics.settle(share):
            where = f'step {step:,} (epoch {position.epoch}, batch {position.index})'
            if self.config.train.on_nonfinite == 'skip':
                self.say(f'not finite at {where}: its update is skipped')
                continue
            steps = self.checkpoints.steps()
            good = 'no checkpoint yet'
            if steps:
                good = f'the last good checkpoint is {steps[-1]}'
            raise Diverged(
                step,
                f'loss or gradient not finite at {where}; {good} in {self.path}. Lower '
                'the rate of optimizer.schedule, set optimizer.clip, or '
                '--config.train.on_nonfinite=skip',
            )

    def log(self) -> dict[str, float | None]:
        """Writes a row of metrics, and returns it."""
        row = self.metrics.row()
        # The rate that made this update: schedules count from 0.
        learning_rate: Any = self.setup.schedule(self.step - 1)
        self.metrics_log.write(
            self.step,
            'train',
            epoch=self.metrics.progress.position.epoch,
            learning_rate=float(learning_rate),
            **row,
        )
        return row

    def evaluate(self, state: TrainState) -> float:
        """The dev set's BLEU, which is logged and shown with three translations.

        Raises:
          Stopped: a stop was asked for.
        """
        name, pairs = self.setup.dev
        self._screen.begin('evaluating', quiet=True)
        variables = eval_params.variables(state)
        result = self._stop.wait_for(
            lambda: self.evaluator(variables, name, pairs, self.step)
        )
        so_far = self.metrics.so_far()
        self.metrics_log.write(self.step, 'eval', set=name, **result, **so_far)
        self.say(scores.summary(name, self.step, result))
        if processes.is_first():
            self.say(translation_files.examples(self.path, name, self.step, pairs))
        self.metrics.progress.count_score(result['bleu'])
        return result['bleu']

    def _on_evaluation_progress(self, name: str, sentences: int, total: int) -> None:
        if self._stop.due():
            raise Stopped
        self._screen.count(sentences, total, f'sentences of {name}')

    def evaluate_saved(self, state: TrainState) -> None:
        """Scores the checkpoint whose evaluation a stop had interrupted."""
        score = self.evaluate(state)
        self.checkpoints.set_score(self.step, score)
        self.metrics.progress.owes_evaluation = False

    def save(
        self, state: TrainState, score: float | None = None, due: bool = True
    ) -> None:
        """Begins to save the state, as `Checkpoints.save` does."""
        self.saved_step = self.step
        progress = self.metrics.progress
        progress.rows = self.metrics_log.flush()
        tree = eval_params.to_save(state)
        metadata = dataclasses.asdict(progress)
        self.checkpoints.save(self.step, tree, metadata, score, due)

    def leave(self, state: TrainState, owes_evaluation: bool = False) -> None:
        """Returns as soon as the state is on disk, unless it was there already."""
        self.metrics.progress.owes_evaluation = owes_evaluation
        if self.step > self.saved_step:
            self.save(state, due=owes_evaluation)
        self.checkpoints.wait()

    def close(self) -> None:
        """Ends the threads and closes the files."""
        self.metrics_log.close()
        self.checkpoints.close()
