"""The training loop, in reading order: batch, step, log, evaluate, checkpoint."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp

from experiments import (
    batching,
    console,
    devices,
    early_stopping,
    eval_params,
    evaluate,
    trained,
)
from experiments.batching import Position
from experiments.checkpoint import Checkpoints
from experiments.errors import UserError
from experiments.figures import Figures, Progress
from experiments.job import Job, seed
from experiments.log import Log
from flaxformer_lite import learning, training


class Stopped(Exception):
    """The run was asked to stop; it has saved, and can be resumed."""


class Trainer:
    """One process's part of a run: from its newest checkpoint to the end.

    Args:
      job: what to train.
      path: the run's directory.
      stopping: asked after each step; True saves and raises `Stopped`.
    """

    def __init__(self, job: Job, path: Path, stopping: Callable[[], bool]):
        self.job, self.config, self.path, self.stopping = (
            job,
            job.config,
            path,
            stopping,
        )
        keep = self.config.checkpoint
        self.checkpoints = Checkpoints(
            path / trained.CHECKPOINTS, keep.keep, keep.keep_best
        )
        self.evaluator = evaluate.Evaluator(
            job.model, job.tokenizer, self.config, path, job.direction
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
        self.state, progress = self._first_or_restored(abstract)
        self.figures = Figures(progress)
        self.log = Log(path, progress.rows, int(self.state.step))
        self.bar = console.Progress(job.steps, int(self.state.step))

    def _compile(
        self, state: training.State, shape: tuple[int, int]
    ) -> jax.stages.Compiled:
        step = training.make_step(
            self.job.model,
            self.job.optimizer,
            label_smoothing=self.config.train.label_smoothing,
            accumulate=self.config.train.accumulate,
        )
        rows = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=devices.rows())
        jitted = jax.jit(step, donate_argnums=0, out_shardings=devices.everywhere())
        batch = dict.fromkeys(learning.ARRAYS, rows)
        return devices.compiled(jitted, state, batch, self._dropout_key)

    def _first(self, key: jax.Array) -> training.State:
        return training.init(self.job.model, self.job.optimizer, key)

    def _first_or_restored(
        self, abstract: training.State
    ) -> tuple[training.State, Progress]:
        restored = self.checkpoints.restore(eval_params.to_restore(abstract))
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
        print(f'resuming at step {restored.step:,}')
        return eval_params.restored(restored.state), progress

    def run(self) -> training.State:
        """Trains to the last step, or until it stops early → the final state, which is saved.

        Raises:
          Stopped: the run was asked to stop.
          UserError: the loss is not finite, or the disk is full.
        """
        step = int(self.state.step)
        position = self.figures.progress.position
        self.figures.start_clock()
        for batch, after in batching.prefetch(self.job.batches.iterate(position)):
            if step >= self.job.steps or self.stops_early:
                break
            step += 1
            self._train(step, jax.device_put(batch, devices.rows()), after)
            self._afterwards(step)
        self.checkpoints.wait()
        return self.state

    @property
    def stops_early(self) -> bool:
        """Whether the dev score has not risen for as many evaluations as `train.patience`."""
        patience = self.config.train.patience
        return early_stopping.is_due(self.figures.progress, patience)

    def close(self) -> None:
        """Ends the progress line and the threads, and closes the files."""
        self.bar.close()
        self.log.close()
        self.checkpoints.close()
        self._compiler.shutdown(cancel_futures=True)

    def _train(self, step: int, batch: learning.Batch, after: Position) -> None:
        program = self._programs[batch['labels'].shape]
        if not program.done():  # what waits for the compiler is not training
            self._settle()
            program.result()
            self.figures.start_clock()
        self.state, metrics = program.result()(self.state, batch, self._dropout_key)
        self.figures.add(step, after, metrics)

    def _afterwards(self, step: int) -> None:
        """Logs, evaluates, saves and stops, each where it is due after this step."""
        last, stops = step == self.job.steps, self.stopping()
        logs = last or _due(step, self.config.train.log_every)
        evaluates = last or _due(step, self.config.evaluation.every)
        due = evaluates or _due(step, self.config.checkpoint.every)
        if not (logs or due or stops):
            return
        self._settle()
        if logs:
            self._log(step)
        score = self._evaluate(step) if evaluates else None
        if due or stops:
            self._save(step, score, due)
        if stops and not last:
            self.checkpoints.wait()
            raise Stopped(f'{step:,}')
        self.figures.start_clock()

    def _settle(self) -> None:
        for step, position in self.figures.settle():
            where = f'step {step:,} (epoch {position.epoch}, batch {position.index})'
            if self.config.train.on_nonfinite == 'skip':
                self.bar.say(f'not finite at {where}: its update is skipped')
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
        self.bar.update(
            step, loss=row['loss'], tokens_per_second=row['tokens_per_second']
        )

    def _evaluate(self, step: int) -> float:
        """Scores the dev set, and shows three translations of it."""
        name, pairs = self.job.dev
        variables = eval_params.variables(self.state)
        result = self.evaluator(variables, name, pairs, step)
        self.log.write(step, 'eval', set=name, **result)
        self.bar.say(evaluate.summary(name, step, result))
        self.bar.say(evaluate.examples(self.path, name, step, pairs))
        early_stopping.count(self.figures.progress, result['bleu'])
        return result['bleu']

    def _save(self, step: int, score: float | None, due: bool) -> None:
        progress = self.figures.progress
        progress.rows = self.log.flush()
        saved = eval_params.to_save(self.state)
        self.checkpoints.save(step, saved, dataclasses.asdict(progress), score, due)


def _key(job: Job, name: str) -> jax.Array:
    """The random key of one of the seeds, on every device."""
    return jax.device_put(jax.random.key(seed(job.config, name)), devices.everywhere())


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
