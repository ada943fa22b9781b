"""The training loop, in reading order: batch, step, log, evaluate, checkpoint."""

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line.errors import UserError
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.config.derived import seed
from experiments.data import batches
from experiments.data.batches import Position
from experiments.evaluation import scores, translation_files
from experiments.evaluation.evaluator import Evaluator
from experiments.runs import trained_run
from experiments.runs.metrics_log import MetricsLog
from experiments.runtime import compilation, mesh
from experiments.training import early_stopping, eval_params
from experiments.training.metrics import MetricAccumulator, Progress
from experiments.training.setup import RunSetup
from flaxformer_lite.training.batch import BATCH_ARRAYS, Batch
from flaxformer_lite.training.train_step import (
    TrainState,
    init_state,
    make_train_step,
)


class Trainer:
    """Trains a run from its newest checkpoint to the end.

    Args:
      setup: what to train.
      path: the run's directory.
      screen: shows the progress of training.
      stop: asked after each step. Once a stop was asked for, the state is saved and
        `Stopped` is raised.

    Raises:
      Stopped: a stop was asked for.
    """

    def __init__(self, setup: RunSetup, path: Path, screen: Screen, stop: Stop):
        self.setup = setup
        self.config = setup.config
        self.path = path
        self.screen = screen
        self.stop = stop
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
            on_progress=self._on_evaluation_progress,
        )
        self._dropout_key = _key(setup, 'dropout_seed')
        self._shapes = [list(shape) for shape in setup.batches.shapes]
        abstract = mesh.placed(
            jax.eval_shape(self._first_state, _key(setup, 'init_seed'))
        )
        # Each shape has a program of its own. They are compiled while the state is
        # made; those after the first also while training goes on.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix='compile')
        self._programs = {
            shape: self._compiler.submit(self._compile, abstract, shape)
            for shape in setup.batches.shapes
        }
        screen.begin('compiling')
        self.state, progress = stop.wait_for(lambda: self._first_or_restored(abstract))
        self._saved_step = int(self.state.step)
        self.metrics = MetricAccumulator(progress)
        self.metrics_log = MetricsLog(path, progress.rows, int(self.state.step))

    def _compile(
        self, state: TrainState, shape: tuple[int, int]
    ) -> jax.stages.Compiled:
        """The program of a training step, for batches of this shape."""
        step = make_train_step(
            self.setup.model,
            self.setup.optimizer,
            label_smoothing=self.config.train.label_smoothing,
            accumulate=self.config.train.accumulate,
        )
        rows = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=mesh.rows())
        jitted = jax.jit(step, donate_argnums=0, out_shardings=mesh.everywhere())
        batch = dict.fromkeys(BATCH_ARRAYS, rows)
        return compilation.compiled(jitted, state, batch, self._dropout_key)

    def _first_state(self, key: jax.Array) -> TrainState:
        return init_state(self.setup.model, self.setup.optimizer, key)

    def _first_or_restored(self, abstract: TrainState) -> tuple[TrainState, Progress]:
        """The state and the progress to begin with."""
        to_restore = eval_params.to_restore(abstract)
        restored = self.checkpoints.restore(to_restore, warn=self.screen.say)
        if restored is None:
            first = jax.jit(self._first_state, out_shardings=mesh.everywhere())
            key = _key(self.setup, 'init_seed')
            program = compilation.compiled(first, key, once=True)
            return program(key), Progress(self._shapes)
        progress = Progress.of(restored.metadata)
        if progress.shapes != self._shapes:
            raise UserError(
                f'{self.path} was begun on other devices: its batches have shapes '
                f'{progress.shapes}, and on {jax.device_count()} devices they have '
                f'{self._shapes}; resume it on as many as before, or choose another '
                '--workdir'
            )
        self.screen.say(f'resuming at step {restored.step:,}')
        return eval_params.restored(restored.state), progress

    def run(self) -> TrainState:
        """Trains to the last step, or until it stops early.

        Returns:
          The final state, which is saved.

        Raises:
          Stopped: the run was asked to stop.
          UserError: the loss is not finite, or the disk is full.
        """
        step = self._saved_step
        if self.metrics.progress.owes_evaluation:
            self._evaluate_saved(step)
        position = self.metrics.progress.position
        self.screen.train(self.setup.steps, step)
        self.metrics.start_clock()
        for batch, after in batches.prefetch(self.setup.batches.iterate(position)):
            if step >= self.setup.steps or self.stops_early:
                break
            step += 1
            self._train(step, jax.device_put(batch, mesh.rows()), after)
            self._after_step(step)
        self.screen.begin('saving', quiet=True)
        self.checkpoints.wait()
        return self.state

    @property
    def stops_early(self) -> bool:
        """Whether the dev score has not risen for `train.patience` evaluations."""
        patience = self.config.train.patience
        return early_stopping.is_due(self.metrics.progress, patience)

    def close(self) -> None:
        """Ends the threads and closes the files."""
        self.metrics_log.close()
        self.checkpoints.close()
        self._compiler.shutdown(wait=not self.stop.asked, cancel_futures=True)

    def _train(self, step: int, batch: Batch, after: Position) -> None:
        """Starts one training step; `after` is the position of the next batch."""
        program = self._programs[batch['labels'].shape]
        if not program.done():
            self._wait_for_program(program, step)
        self.screen.step(step)
        self.state, metrics = program.result()(self.state, batch, self._dropout_key)
        self.metrics.add(step, after, metrics)

    def _wait_for_program(self, program: Future, step: int) -> None:
        """Waits for the compiler, whose time does not count as training time."""
        self._settle()
        self.screen.begin('compiling')
        try:
            self.stop.result(program)
        except Stopped:
            self._leave(step - 1)
        self.metrics.start_clock()

    def _after_step(self, step: int) -> None:
        """Logs, evaluates, saves and stops, each where it is due after this step."""
        is_last = step == self.setup.steps
        stops = self.stop.asked
        logs = is_last or _is_due(step, self.config.train.log_every)
        evaluates = is_last or _is_due(step, self.config.evaluation.every)
        saves = evaluates or _is_due(step, self.config.checkpoint.every)
        if not (logs or saves or stops):
            return
        self._settle()
        if logs:
            self._log(step)
        score = None
        if evaluates:
            score = self._evaluate(step)
        if saves:
            self._save(step, score)
        if stops and not is_last:
            self._leave(step)
        self.metrics.start_clock()

    def _settle(self) -> None:
        """Waits for the steps so far; one that is not finite is told, or an error."""
        for step, position in self.metrics.settle():
            where = f'step {step:,} (epoch {position.epoch}, batch {position.index})'
            if self.config.train.on_nonfinite == 'skip':
                self.screen.say(f'not finite at {where}: its update is skipped')
                continue
            steps = self.checkpoints.steps()
            good = 'no checkpoint yet'
            if steps:
                good = f'the last good checkpoint is {steps[-1]}'
            raise UserError(
                f'loss or gradient not finite at {where}; {good} in {self.path}. Lower '
                'the rate of optimizer.schedule, set optimizer.clip, or '
                '--config.train.on_nonfinite=skip'
            )

    def _log(self, step: int) -> None:
        row = self.metrics.row()
        # The rate that made this update: schedules count from 0.
        learning_rate: Any = self.setup.schedule(step - 1)
        self.metrics_log.write(
            step,
            'train',
            epoch=self.metrics.progress.position.epoch,
            learning_rate=float(learning_rate),
            **row,
        )
        self.screen.metrics(
            step, loss=row['loss'], tokens_per_second=row['tokens_per_second']
        )

    def _evaluate(self, step: int) -> float:
        """Scores the dev set; if a stop interrupts that, saves the state and leaves."""
        try:
            return self._score_dev_set(step)
        except Stopped:
            self._leave(step, owes_evaluation=True)

    def _score_dev_set(self, step: int) -> float:
        """The dev set's BLEU, which is logged and shown with three translations."""
        name, pairs = self.setup.dev
        self.screen.begin('evaluating', quiet=True)
        variables = eval_params.variables(self.state)
        result = self.stop.wait_for(
            lambda: self.evaluator(variables, name, pairs, step)
        )
        self.metrics_log.write(step, 'eval', set=name, **result)
        self.screen.say(scores.summary(name, step, result))
        self.screen.say(translation_files.examples(self.path, name, step, pairs))
        early_stopping.count(self.metrics.progress, result['bleu'])
        return result['bleu']

    def _on_evaluation_progress(self, name: str, sentences: int, total: int) -> None:
        self.stop.check()
        self.screen.count(sentences, total, f'sentences of {name}')

    def _evaluate_saved(self, step: int) -> None:
        """Scores the checkpoint whose evaluation a stop had interrupted."""
        score = self._evaluate(step)
        self.checkpoints.set_score(step, score)
        self.metrics.progress.owes_evaluation = False

    def _save(self, step: int, score: float | None = None, due: bool = True) -> None:
        self.screen.begin('saving', quiet=True)
        self._saved_step = step
        progress = self.metrics.progress
        progress.rows = self.metrics_log.flush()
        tree = eval_params.to_save(self.state)
        self.checkpoints.save(step, tree, dataclasses.asdict(progress), score, due)

    def _leave(self, step: int, owes_evaluation: bool = False) -> NoReturn:
        """Raises `Stopped` as soon as the state after this step is saved."""
        self.metrics.progress.owes_evaluation = owes_evaluation
        if step > self._saved_step:
            self._save(step, due=owes_evaluation)
        self.checkpoints.wait()
        raise Stopped(f'saved at step {step:,}' if step else '')


def _key(setup: RunSetup, name: str) -> jax.Array:
    """The random key of one of the seeds, on every device."""
    key = jax.random.key(seed(setup.config, name))
    return jax.device_put(key, mesh.everywhere())


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
