"""The training loop and the final scores."""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from experiments import hooks, storage
from experiments.checkpoints import base
from experiments.checkpoints.checkpoints import Checkpoint, Checkpoints
from experiments.command_line import stopping
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stopped
from experiments.config import check, user_modules
from experiments.config.schema import ExperimentConfig, seed
from experiments.data.batches import Position
from experiments.data.prefetch import prefetch
from experiments.errors import UserError, user_errors
from experiments.evaluation import evaluator, scores
from experiments.hooks.base import RunInfo
from experiments.optimizers import eval_params
from experiments.runs import (
    directory,
    environment,
    failure,
    metrics_log,
    reading,
    trained_run,
)
from experiments.runs.failure import Diverged
from experiments.runs.metrics_log import MetricsLog
from experiments.runtime import compilation, memory, processes
from experiments.runtime.compilation import ProgramCache
from experiments.training import result, warm_start
from experiments.training.metrics import Progress, stops_early
from experiments.training.setup import RunSetup, check_can_extend, describe, prepare
from flaxformer_lite import adapters
from flaxformer_lite.training.train_step import TrainState

Batch = dict[str, jax.Array]


class Trainer:
    """Trains a run in a directory, and scores it.

    Attributes:
      step: The number of steps so far.
      scores: Step → dev score; higher is better.
    """

    def __init__(self, setup: RunSetup, path: Path, screen: Screen):
        self.setup = setup
        self.config = setup.config
        self.path = path
        self.screen = screen
        self.step = 0
        self.progress = Progress(setup.pairs.digest)
        self.scores: dict[int, float] = {}
        self._log = MetricsLog(None)  # replaced once the step is known
        self._peak = memory.Peak()
        self._hooks = hooks.Hooks(setup.hooks if processes.is_first() else {})
        self._compiled_steps: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._unreported_step: int | None = None  # hooks don't know this checkpoint
        self._checkpoints = Checkpoints(
            path / trained_run.CHECKPOINTS,
            self.config.checkpoint.keep,
            self.config.checkpoint.keep_best,
            is_due=self._saves,
            scores=self.scores,
        )

    def run(self) -> None:
        """Trains to the end, from the newest checkpoint if there is one, and scores.

        Raises:
          Stopped: The run was interrupted; the state is saved.
          Diverged: A loss or gradient is not finite.
        """
        self.screen.begin('compiling')
        state = self._train(self._restore_or_init())
        self.screen.begin('scoring')
        params = eval_params.variables(state)['params']
        trained = {
            'parameters': result.count_parameters(params),
            'parameters_sha256': trained_run.sha256(params),
        }
        del state, params  # frees memory
        self._score(trained)

    def _train(self, state: TrainState) -> TrainState:
        if self._evaluates(self.step) and self.step not in self.scores:
            self._evaluate(state)
        if self._has_ended():
            return state
        self._compile(self.setup.batches.shapes[0])
        with contextlib.closing(prefetch(self._batches())) as batches:
            while not self._has_ended():
                with _stop_requested() as stop:
                    state = self._make_steps(state, batches, stop)
                    self.screen.begin('saving', quiet=True)
                    self._wait_for_checkpoint()
                # Everything is saved, so a signal may end the process from here on.
                self._evaluate(state)
        return state

    def _make_steps(
        self,
        state: TrainState,
        batches: Iterable[tuple[Batch, Position]],
        stop: Callable[[int], bool],
    ) -> TrainState:
        """The training loop to the next evaluation: batch, step, log, save, stop."""
        dropout_key = self._key('dropout_seed')
        teacher_variables, peak = self._teacher_variables, self.setup.peak
        self.progress.start_clock()
        for batch, position in batches:
            program = self._compiled_step(batch['labels'].shape)
            step = self.step + 1
            self.screen.step(step, self.setup.steps)
            with jax.profiler.StepTraceAnnotation('train', step_num=step):
                state, metrics = program(
                    state, batch, dropout_key, teacher_variables, peak
                )
            self.step = step
            self.progress.add(step, position, metrics)  # at most one step is ahead
            is_stopped = stop(step)
            if not (self._logs(step) or self._saves(step) or is_stopped):
                continue
            self._flush_metrics()  # waits; raises Diverged
            if self._logs(step):
                self._write_row(state)
            if self._saves(step) or is_stopped:
                self._save(state)
            if is_stopped:
                self._wait_for_checkpoint()
                raise Stopped(f'saved at step {step:,}')
            if self._evaluates(step):
                break
            self.progress.start_clock()
        return state

    # Logging, saving and evaluation depend only on the step and the config. So a
    # resumed run behaves as if it had never stopped.

    def _logs(self, step: int) -> bool:
        return self._is_due(step, self.config.train.log_every)

    def _evaluates(self, step: int) -> bool:
        return self._is_due(step, self.config.evaluation.every)

    def _saves(self, step: int) -> bool:
        return self._evaluates(step) or self._is_due(step, self.config.checkpoint.every)

    def _is_due(self, step: int, every: int) -> bool:
        return step == self.setup.steps or (0 < every <= step and step % every == 0)

    def _has_ended(self) -> bool:
        is_early = stops_early(self.scores, self.config.train.patience)
        return self.step >= self.setup.steps or is_early

    def _restore_or_init(self) -> TrainState:
        _, abstract = self.setup.programs.first_state
        to_restore = eval_params.to_restore(abstract, self._base_paths)
        checkpoint = self._checkpoints.restore(to_restore, warn=self.screen.say)
        if checkpoint is None:
            self._archive_metrics()
            state = self._initialized()
        else:
            self._resume(checkpoint)
            state = eval_params.restored(checkpoint.state)
            params = base.join(
                self._checkpoints,
                state.params,
                abstract.params,
                self._base_paths,
            )
            state = state.replace(params=params)
        self.step = int(state.step)
        self._open_log()
        if checkpoint is None and self.setup.warm_start:
            origin = self.setup.warm_start.record['run']
            base.save(self.path, state.params, self._base_paths, origin)
            # With this checkpoint, the run doesn't need the source run any more.
            self._save(state)
        self._wait_for_checkpoint()
        return state

    @functools.cached_property
    def _base_paths(self) -> frozenset[str]:
        _, abstract = self.setup.programs.first_state
        with user_errors('model.'):
            return adapters.frozen_paths(self.setup.model, abstract.params)

    def _initialized(self) -> TrainState:
        setup = self.setup
        make, _ = setup.programs.first_state
        given = setup.warm_start.variables if setup.warm_start else {}
        arguments = self._key('init_seed'), given
        with ThreadPoolExecutor(1) as pool:
            # Compile the training step in parallel, on another core.
            shape = setup.batches.shapes[0]
            compiling = pool.submit(setup.programs.step, shape, self._teacher_variables)
            first = compilation.compile_program(make, *arguments, once=True)
            state = first(*arguments)
            compiling.result()
        given.clear()  # frees memory
        return state

    def _resume(self, checkpoint: Checkpoint) -> None:
        self.progress = Progress.of(checkpoint.metadata)
        self.screen.say(f'resuming at step {checkpoint.step:,}')
        self._unreported_step = checkpoint.step

    def _archive_metrics(self) -> None:
        last = metrics_log.archive_rows(self.path) if processes.is_first() else 0
        if last:
            self.screen.say(
                f'no checkpoint in {self._checkpoints.directory}; restarting at step '
                f'0. Metrics up to step {last:,} were moved to {metrics_log.ARCHIVE}.'
            )

    def _open_log(self) -> None:
        path = self.path if processes.is_first() else None
        self._log = MetricsLog(path, self.step, self._hooks.row)
        fields = self.config.values()
        rows = metrics_log.read_rows(self.path)
        self._hooks.start(RunInfo(self.path, fields, self.step, rows))
        best = self.setup.best_metric
        logged = processes.from_first(
            lambda: list(metrics_log.dev_scores(rows, best).items())
        )
        self.scores.update(logged)

    def _key(self, name: str) -> jax.Array:
        return self.setup.devices.key(seed(self.config, name))

    def _batches(self) -> Generator[tuple[Batch, Position], None, None]:
        devices = self.setup.devices
        batches = self.setup.batches.iterate(self.progress.position, devices.own_rows)
        for batch, after in batches:
            yield devices.put_rows(batch), after

    def _compiled_step(self, shape: tuple[int, ...]) -> Callable[..., Any]:
        if shape not in self._compiled_steps:
            self._flush_metrics()
            self._compile(shape)
            self.progress.start_clock()
        return self._compiled_steps[shape]

    def _compile(self, shape: tuple[int, ...]) -> None:
        self.screen.begin('compiling')
        program = self.setup.programs.step(shape, self._teacher_variables)
        self._compiled_steps[shape] = program

    @property
    def _teacher_variables(self) -> Any:
        teacher = self.setup.teacher
        return teacher and teacher.variables

    def _flush_metrics(self) -> None:
        for step, position in self.progress.settle():
            where = f'step {step:,} (epoch {position.epoch}, batch {position.index})'
            if self.config.train.on_nonfinite == 'stop':
                raise Diverged(
                    step,
                    f'loss or gradient not finite at {where}. Lower the rate of '
                    'optimizer.schedule, set optimizer.clip, or pass '
                    '--config.train.on_nonfinite=skip.',
                )
            self.screen.say(f'skipped the non-finite update at {where}')

    def _write_row(self, state: TrainState) -> None:
        # Schedules count the applied updates from 0.
        updates = self.step - int(state.skipped)
        rate = self.setup.programs.learning_rate(max(updates - 1, 0), self.setup.peak)
        row = {
            'epoch': self.progress.position.epoch,
            'learning_rate': float(rate),
            **self.progress.row(),
        }
        shown = ['loss', 'tokens_per_second']
        if state.loss_scale is not None:
            row['loss_scale'] = float(state.loss_scale.scale)
            shown += ['loss_scale', 'skipped']
        self._log.write(self.step, 'train', **row)
        values = {name: row[name] for name in shown}
        self.screen.metrics(self.step, self.setup.steps, **values)

    def _save(self, state: TrainState) -> None:
        self.screen.begin('saving', quiet=True)
        self._wait_for_checkpoint()
        self._log.flush()
        tree = eval_params.to_save(state, self._base_paths)
        metadata = self.progress.metadata()
        metadata['sets'] = self.setup.set_digests
        metadata['tokenizer'] = self.setup.tokenizer.model_digest
        if self._base_paths:
            metadata['base'] = base.facts(self.path)
        self._checkpoints.save(self.step, tree, metadata)
        self._unreported_step = self.step

    def _wait_for_checkpoint(self) -> None:
        self._checkpoints.wait()
        if self._unreported_step is not None:
            self._hooks.checkpoint(self._unreported_step)
            self._unreported_step = None

    def _evaluate(self, state: TrainState) -> None:
        name, pairs = self.setup.dev
        self.screen.begin('evaluating', quiet=True)
        variables = eval_params.variables(state)
        found, outputs = self.setup.evaluator(variables, name, pairs, self.step)
        totals = self.progress.totals()
        text = {'training_text_sha256': self.setup.training_text}
        self._log.write(self.step, 'eval', set=name, **found, **text, **totals)
        best = self.setup.best_metric
        self.scores[self.step] = best.rank(found[best.name])
        summary = scores.summary(name, self.step, found)
        self.screen.say(summary)
        self.screen.say(evaluator.examples(pairs, outputs))

    def _score(self, trained: dict[str, Any]) -> None:
        setup = self.setup
        mean = trained_run.average(
            self.config, self._checkpoints, setup.model, self.screen.say, setup.devices
        )
        evaluations = setup.evaluator.every(mean.variables, setup.sets, mean.steps)
        for name, values in evaluations.items():
            self._log.write(self.step, 'final', set=name, **values)
        found = {
            'status': 'finished',
            'step': self.step,
            'stopped_early': self.step < setup.steps,
            **trained,
            'train_seconds': self.progress.seconds,
            'train_cpu_seconds': self.progress.cpu_seconds,
            'tokens_per_second': self.progress.tokens / self.progress.seconds,
            'peak_memory_bytes': self._peak.bytes(),
            'flops_per_token': setup.programs.flops_per_token,
            'averaged_steps': mean.steps,
            'left_out_steps': mean.left_out,
            'training_text_sha256': setup.training_text,
            'evaluations': evaluations,
        }
        if processes.is_first():
            storage.write_json(self.path / directory.RESULT, found)
            self._hooks.end(found)
        self.screen.say(result.summary(self.path, found))

    def close(self) -> None:
        self._checkpoints.close()
        self._hooks.end(None)


@contextlib.contextmanager
def _stop_requested() -> Iterator[Callable[[int], bool]]:
    """Yields a function: whether to stop after a step, the same in all processes."""
    if processes.count() > 1:
        yield processes.stops_at
        return
    with stopping.delay_stop() as is_requested:
        yield lambda step: is_requested()


def run(
    config: ExperimentConfig,
    path: Path,
    overrides: Iterable[str],
    screen: Screen,
    accept_changed_code: bool = False,
    program_cache: ProgramCache | None = None,
) -> None:
    """Trains and scores a run, or shows its result.

    Args:
      path: The run's directory. An unfinished run in it is resumed.
      overrides: Names of overridden fields. Fields without effect are rejected.
      accept_changed_code: Resumes although user modules have changed.
      program_cache: Shares compiled programs with other runs.

    Raises:
      UserError: Training can't start, or failed. Its failures are also recorded in
        `failure.json`.
      Stopped: Training was interrupted; the state is saved.
    """
    with contextlib.ExitStack() as opened:
        fields = config.to_dict()
        if processes.count() > 1:
            processes.check_same('command', _command(config, path))
        state = directory.check_directory(path, fields)
        has_ended = state == directory.COMPLETE
        if has_ended:
            _show_result(config, path, screen)
            return
        environment.check_modules(path, screen.say, accept_changed_code)
        check.check_overrides(config, overrides)
        setup = prepare(config, path, screen, program_cache)
        if state == directory.EXTENDED:
            check_can_extend(config, setup.programs.schedule)
        digests = {'its digest': setup.pairs.digest}
        for name, digest in setup.set_digests.items():
            digests[f'the digest of {name}'] = digest
        # This also waits until all processes have checked the directory.
        processes.check_same('text', digests)
        _check_text(setup, path)
        if processes.is_first():
            opened.enter_context(directory.open_run(path, fields))
            _write_start(setup, path)
            screen.say(describe(setup, path))
        processes.barrier('opened')
        trainer = Trainer(setup, path, screen)
        opened.enter_context(contextlib.closing(trainer))
        opened.enter_context(processes.errors_end_all(Stopped))
        if processes.is_first():
            opened.enter_context(failure.record_errors(path))
        trainer.run()


def _command(config: ExperimentConfig, path: Path) -> dict[str, Any]:
    """Returns what must be equal in all processes of a run."""
    here = environment.describe([])
    code = {**here['packages'], 'the commit': here['git']}
    return {**code, '--workdir': str(path.absolute()), **config.values()}


def _show_result(config: ExperimentConfig, path: Path, screen: Screen) -> None:
    if not processes.is_first():
        return
    with directory.open_run(path, config.to_dict()):
        screen.say(result.summary(path, reading.read_result(path)))


def _check_text(setup: RunSetup, path: Path) -> None:
    """Raises UserError if the text differs from that of earlier steps."""
    checkpoints = Checkpoints(path / trained_run.CHECKPOINTS)
    for step in checkpoints.steps():
        stored = checkpoints.metadata(step)
        # Checkpoints of earlier versions have no digests of sets.
        of_sets = stored.get('sets', {})
        changed = [
            f'text of {name}'
            for name, digest in setup.set_digests.items()
            if of_sets.get(name, digest) != digest
        ]
        if stored.get('text', setup.pairs.digest) != setup.pairs.digest:
            changed.insert(0, 'training text')
        if changed:
            raise UserError(
                f'data: the {" and the ".join(changed)} changed since {path} started. '
                'Restore it, or start a new run with another --workdir.'
            )


def _write_start(setup: RunSetup, path: Path) -> None:
    setup.tokenizer.save(path / trained_run.TOKENIZER)
    kinds = [device.device_kind for device in jax.devices()]
    environment.save(path, kinds, user_modules.imported(setup.config.values()))
    if setup.warm_start is not None:
        storage.write_json(path / warm_start.NAME, setup.warm_start.record)
