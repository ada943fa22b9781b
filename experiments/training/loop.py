"""The training loop, in reading order: batch, step, log, evaluate, checkpoint."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import jax
import jax.numpy as jnp

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line.errors import UserError
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.data import batches
from experiments.data.batches import Position
from experiments.evaluation import evaluator
from experiments.runs import trained_run
from experiments.runs.metrics_log import Log
from experiments.runtime import devices
from experiments.training import early_stopping, eval_params
from experiments.training.metrics import Figures, Progress
from experiments.training.setup import Job, seed
from flaxformer_lite.training.batch import BATCH_ARRAYS, Batch
from flaxformer_lite.training.train_step import (
    TrainState,
    init_state,
    make_train_step,
)


class Trainer:
    """One process's part of a run: from its newest checkpoint to the end.

    Args:
      job: what to train.
      path: the run's directory.
      screen: shows where training stands.
      stop: looked at after each step; once asked for, the state is saved and `Stopped` raised.

    Raises:
      Stopped: a stop was asked for.
    """

    def __init__(self, job: Job, path: Path, screen: Screen, stop: Stop):
        self.job, self.config, self.path = job, job.config, path
        self.screen, self.stop = screen, stop
        keep = self.config.checkpoint
        self.checkpoints = Checkpoints(
            path / trained_run.CHECKPOINTS, keep.keep, keep.keep_best
        )
        self.evaluator = evaluator.Evaluator(
            job.model,
            job.tokenizer,
            self.config,
            path,
            job.direction,
            tell=self._scored,
        )
        self._dropout_key = _key(job, 'dropout_seed')
        self._shapes = [list(shape) for shape in job.batches.shapes]
        abstract = devices.placed(jax.eval_shape(self._first, _key(job, 'init_seed')))
        # The step is compiled for each shape while the state is made and, after the first, while
        # the others train.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix='compile')
        self._programs = {
            shape: self._compiler.submit(self._compile, abstract, shape)
            for shape in job.batches.shapes
        }
        screen.begin('compiling')
        self.state, progress = stop.wait_for(lambda: self._first_or_restored(abstract))
        self._saved_step = int(self.state.step)
        self.figures = Figures(progress)
        self.log = Log(path, progress.rows, int(self.state.step))

    def _compile(
        self, state: TrainState, shape: tuple[int, int]
    ) -> jax.stages.Compiled:
        step = make_train_step(
            self.job.model,
            self.job.optimizer,
            label_smoothing=self.config.train.label_smoothing,
            accumulate=self.config.train.accumulate,
        )
        rows = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=devices.rows())
        jitted = jax.jit(step, donate_argnums=0, out_shardings=devices.everywhere())
        batch = dict.fromkeys(BATCH_ARRAYS, rows)
        return devices.compiled(jitted, state, batch, self._dropout_key)

    def _first(self, key: jax.Array) -> TrainState:
        return init_state(self.job.model, self.job.optimizer, key)

    def _first_or_restored(self, abstract: TrainState) -> tuple[TrainState, Progress]:
        to_restore = eval_params.to_restore(abstract)
        restored = self.checkpoints.restore(to_restore, warn=self.screen.say)
        if restored is None:
            first = jax.jit(self._first, out_shardings=devices.everywhere())
            key = _key(self.job, 'init_seed')
            return devices.compiled(first, key, once=True)(key), Progress(self._shapes)
        progress = Progress.of(restored.metadata)
        if progress.shapes != self._shapes:
            raise UserError(
                f'{self.path} was begun on other devices: its batches have shapes '
                f'{progress.shapes}, and on {jax.device_count()} devices they have {self._shapes}; '
                'resume it on as many as before, or choose another --workdir'
            )
        self.screen.say(f'resuming at step {restored.step:,}')
        return eval_params.restored(restored.state), progress

    def run(self) -> TrainState:
        """Trains to the last step, or until it stops early → the final state, which is saved.

        Raises:
          Stopped: the run was asked to stop.
          UserError: the loss is not finite, or the disk is full.
        """
        step = self._saved_step
        if self.figures.progress.owes_evaluation:
            self._evaluate_saved(step)
        position = self.figures.progress.position
        self.screen.train(self.job.steps, step)
        self.figures.start_clock()
        for batch, after in batches.prefetch(self.job.batches.iterate(position)):
            if step >= self.job.steps or self.stops_early:
                break
            step += 1
            self._train(step, jax.device_put(batch, devices.rows()), after)
            self._afterwards(step)
        self.screen.begin('saving', quiet=True)
        self.checkpoints.wait()
        return self.state

    @property
    def stops_early(self) -> bool:
        """Whether the dev score has not risen for as many evaluations as `train.patience`."""
        patience = self.config.train.patience
        return early_stopping.is_due(self.figures.progress, patience)

    def close(self) -> None:
        """Ends the threads and closes the files."""
        self.log.close()
        self.checkpoints.close()
        self._compiler.shutdown(wait=not self.stop.asked, cancel_futures=True)

    def _train(self, step: int, batch: Batch, after: Position) -> None:
        program = self._programs[batch['labels'].shape]
        if not program.done():  # what waits for the compiler is not training
            self._settle()
            self.screen.begin('compiling')
            try:
                self.stop.result(program)
            except Stopped:
                self._leave(step - 1)
            self.figures.start_clock()
        self.screen.step(step)
        self.state, metrics = program.result()(self.state, batch, self._dropout_key)
        self.figures.add(step, after, metrics)

    def _afterwards(self, step: int) -> None:
        """Logs, evaluates, saves and stops, each where it is due after this step."""
        last, stops = step == self.job.steps, self.stop.asked
        logs = last or _due(step, self.config.train.log_every)
        evaluates = last or _due(step, self.config.evaluation.every)
        due = evaluates or _due(step, self.config.checkpoint.every)
        if not (logs or due or stops):
            return
        self._settle()
        if logs:
            self._log(step)
        score = None
        if evaluates:
            try:
                score = self._evaluate(step)
            except Stopped:
                self._leave(step, owes_evaluation=True)
        if due:
            self._save(step, score)
        if stops and not last:
            self._leave(step)
        self.figures.start_clock()

    def _leave(self, step: int, owes_evaluation: bool = False) -> NoReturn:
        """Raises `Stopped` when the state after a step is saved."""
        self.figures.progress.owes_evaluation = owes_evaluation
        if step > self._saved_step:
            self._save(step, due=owes_evaluation)
        self.checkpoints.wait()
        raise Stopped(f'saved at step {step:,}' if step else '')

    def _settle(self) -> None:
        for step, position in self.figures.settle():
            where = f'step {step:,} (epoch {position.epoch}, batch {position.index})'
            if self.config.train.on_nonfinite == 'skip':
                self.screen.say(f'not finite at {where}: its update is skipped')
                continue
            steps = self.checkpoints.steps()
            good = (
                f'the last good checkpoint is {steps[-1]}'
                if steps
                else 'no checkpoint yet'
            )
            raise UserError(
                f'loss or gradient not finite at {where}; {good} in {self.path}. Lower the rate of '
                'optimizer.schedule, set optimizer.clip, or --config.train.on_nonfinite=skip'
            )

    def _log(self, step: int) -> None:
        row = self.figures.row()
        # The rate that made the update: schedules count from 0.
        rate = float(self.job.schedule(step - 1))
        epoch = self.figures.progress.position.epoch
        self.log.write(step, 'train', epoch=epoch, learning_rate=rate, **row)
        self.screen.figures(
            step, loss=row['loss'], tokens_per_second=row['tokens_per_second']
        )

    def _evaluate(self, step: int) -> float:
        """Scores the dev set, and shows three translations of it."""
        name, pairs = self.job.dev
        self.screen.begin('evaluating', quiet=True)
        variables = eval_params.variables(self.state)
        result = self.stop.wait_for(
            lambda: self.evaluator(variables, name, pairs, step)
        )
        self.log.write(step, 'eval', set=name, **result)
        self.screen.say(evaluator.summary(name, step, result))
        self.screen.say(evaluator.examples(self.path, name, step, pairs))
        early_stopping.count(self.figures.progress, result['bleu'])
        return result['bleu']

    def _scored(self, name: str, sentences: int, total: int) -> None:
        self.stop.check()
        self.screen.count(sentences, total, f'sentences of {name}')

    def _evaluate_saved(self, step: int) -> None:
        """Scores the checkpoint whose evaluation a stop had cut short."""
        try:
            score = self._evaluate(step)
        except Stopped:
            self._leave(step, owes_evaluation=True)
        self.checkpoints.set_score(step, score)
        self.figures.progress.owes_evaluation = False

    def _save(self, step: int, score: float | None = None, due: bool = True) -> None:
        self.screen.begin('saving', quiet=True)
        self._saved_step = step
        progress = self.figures.progress
        progress.rows = self.log.flush()
        saved = eval_params.to_save(self.state)
        self.checkpoints.save(step, saved, dataclasses.asdict(progress), score, due)


def _key(job: Job, name: str) -> jax.Array:
    """The random key of one of the seeds, on every device."""
    return jax.device_put(jax.random.key(seed(job.config, name)), devices.everywhere())


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
