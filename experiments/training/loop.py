"""The training loop, in reading order: batch, step, log, evaluate, checkpoint."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.config.schema import profiled_steps
from experiments.data.batches import Position
from experiments.data.collate import Batch
from experiments.data.prefetch import Feed
from experiments.runs.failure import Diverged
from experiments.runtime import processes
from experiments.runtime.profiling import StepProfiler
from experiments.training.programs import Programs
from experiments.training.record import RunRecord
from experiments.training.setup import RunSetup
from flaxformer_lite.training.train_step import Metrics, TrainState


class Trainer:
    """Trains runs from their newest checkpoints to the end.

    Several runs differ in their seeds alone, and are trained by one program. Each step
    moves those that have made the fewest; the others wait.

    Args:
      setups: what to train: one run, or several.
      paths: the directory of each; None for one that has ended already, and keeps its
        place, so that the others are trained by the very program that they began with.
      screen: shows the progress of training.
      stop: asked after each step. Once a stop was asked for, the states are saved and
        `Stopped` is raised.

    Attributes:
      records: what is kept of each run that has not ended, by its place.
      failed: what ended the runs that diverged.

    Raises:
      Stopped: a stop was asked for.
    """

    def __init__(
        self,
        setups: Sequence[RunSetup],
        paths: Sequence[Path | None],
        screen: Screen,
        stop: Stop,
    ):
        self._setup = setups[0]
        self._config = setups[0].config
        self._screen = screen
        self._stop = stop
        self._runs = len(setups)
        self.failed: dict[int, Diverged] = {}
        self.records: dict[int, RunRecord] = {}
        for place, (setup, path) in enumerate(zip(setups, paths, strict=True)):
            if path is not None:
                say = screen.say if self._runs == 1 else _named(screen, setup)
                self.records[place] = RunRecord(setup, path, screen, stop, say)
        first_record = next(iter(self.records.values()))
        profiled = profiled_steps(self._config) if processes.is_first() else None
        self._profiler = StepProfiler(profiled, first_record.path / 'profile')
        self._programs = Programs(setups[0], self._runs)
        screen.begin('compiling')
        abstract = stop.wait_for(self._programs.abstract_state)
        # The state is made while the program of each shape is compiled.
        self._programs.compile_steps(setups[0].batches.shapes)
        self._state = stop.wait_for(lambda: self._first_state(abstract))
        self._dropout_key = self._in_places(
            {place: record.dropout_key for place, record in self.records.items()}
        )
        self._feed = Feed(
            {
                place: record.batches(self._programs.own_rows(place))
                for place, record in self.records.items()
            },
            self._on_devices,
        )

    def _first_state(self, abstract: TrainState) -> TrainState:
        """The state that the runs go on from."""
        first_state = self._programs.first_state
        states = {
            place: record.begin(abstract, first_state)
            for place, record in self.records.items()
        }
        self._programs.forget_initial()
        return self._in_places(states)

    def _in_places(self, trees: dict[int, Any]) -> Any:
        """A tree for each run as one; the places of others hold any of the trees."""
        anything = next(iter(trees.values()))
        places = range(self._runs)
        return self._programs.stack([trees.get(place, anything) for place in places])

    def run(self) -> None:
        """Trains to the last step, or until each has stopped early or diverged.

        Raises:
          Stopped: the runs were asked to stop.
          Diverged: before the program of another shape was compiled; else `failed`
            tells.
          UserError: the disk is full.
        """
        for place, record in self.records.items():
            if record.metrics.progress.owes_evaluation:
                self._evaluate_saved(place)
        first = min(record.step for record in self.records.values())
        self._screen.train(self._setup.steps, first)
        self._start_clocks()
        while moving := self._moving():
            self._train(moving)
            self._after_step(moving)
        self._screen.begin('saving', quiet=True)
        for record in self.records.values():
            record.checkpoints.wait()

    def state(self, place: int) -> TrainState:
        """The state of a run."""
        return self._programs.take(self._state, place)

    def close(self) -> None:
        """Ends the threads and closes the files."""
        self._profiler.close()
        self._feed.close()
        for record in self.records.values():
            record.close()
        self._programs.close(wait=not self._stop.asked)

    def _moving(self) -> list[int]:
        """The places that make the next step: those with the fewest steps so far."""
        steps = {}
        for place, record in self.records.items():
            if not record.ended and place not in self.failed:
                steps[place] = record.step
        fewest = min(steps.values(), default=0)
        return [place for place, step in steps.items() if step == fewest]

    def _train(self, moving: list[int]) -> None:
        """Starts one training step."""
        step = self.records[moving[0]].step + 1
        batches, on_devices = self._feed.take(moving)
        program = self._programs.step(on_devices['labels'].shape)
        if not program.done():
            self._wait_for_program(program, moving)
        self._screen.step(step)
        self._profiler.before(step, self._state)
        with jax.profiler.StepTraceAnnotation('train', step_num=step):
            metrics = self._advance(program.result(), on_devices, moving)
        profile = self._profiler.after(step, self._state)
        if profile:
            self._screen.say(profile)
        for place in moving:
            _, after = batches[place]
            index = None if self._runs == 1 else place
            self.records[place].metrics.add(step, after, metrics, index)
            self.records[place].step = step

    def _on_devices(
        self, batches: dict[int, tuple[Batch, Position]]
    ) -> dict[str, jax.Array]:
        """The batches of the runs in some places, as a step takes them."""
        return self._programs.place_batches(
            {place: batch for place, (batch, _) in batches.items()}
        )

    def _advance(
        self,
        program: jax.stages.Compiled,
        batch: dict[str, jax.Array],
        moving: list[int],
    ) -> Metrics:
        """Moves the runs in these places by one step."""
        arguments = [self._state, batch, self._dropout_key]
        if self._runs > 1:
            arguments.append(np.array([i in moving for i in range(self._runs)]))
        self._state, metrics = program(*arguments)
        return metrics

    def _wait_for_program(self, program: Future, moving: list[int]) -> None:
        """Waits for the compiler, whose time does not count as training time.

        Raises:
          Diverged: a step before this one is not finite. Only a run that is trained
            alone has batches of several shapes, so this is its own end.
        """
        for place in moving:
            self.records[place].settle()
        self._screen.begin('compiling')
        try:
            self._stop.result(program)
        except Stopped:
            self._leave(moving)
        self._start_clocks()

    def _start_clocks(self) -> None:
        for record in self.records.values():
            record.metrics.start_clock()

    def _after_step(self, moving: list[int]) -> None:
        """Logs, evaluates, saves and stops, each where it is due after this step."""
        step = self.records[moving[0]].step
        is_last = step == self._setup.steps
        stops = self._stop.due()
        logs = is_last or _is_due(step, self._config.train.log_every)
        evaluates = is_last or _is_due(step, self._config.evaluation.every)
        saves = evaluates or _is_due(step, self._config.checkpoint.every)
        if not (logs or saves or stops):
            return
        moving = self._settle(moving)
        if logs:
            self._log(moving)
        for i, place in enumerate(moving):
            score = None
            if evaluates:
                score = self._evaluate(place, not_yet=moving[i:])
            if saves:
                self._screen.begin('saving', quiet=True)
                self.records[place].save(self.state(place), score)
                if self._runs > 1 and processes.count() > 1:
                    # Processes have no common order of saves that overlap.
                    self.records[place].checkpoints.wait()
        if stops and not is_last and moving:
            self._leave(moving)
        self._start_clocks()

    def _settle(self, moving: list[int]) -> list[int]:
        """Waits for the steps so far → the places that go on; others have diverged."""
        good = []
        for place in moving:
            record = self.records[place]
            try:
                record.settle(share=1 / len(moving))
            except Diverged as error:
                if self._runs > 1:
                    record.say(str(error))
                self.failed[place] = error
                continue
            good.append(place)
        return good

    def _log(self, moving: list[int]) -> None:
        """Writes a row of metrics for each run; the screen shows their means."""
        rows = [self.records[place].log() for place in moving]
        if not rows:
            return
        losses = [row['loss'] for row in rows if row['loss'] is not None]
        speeds = [row['tokens_per_second'] or 0.0 for row in rows]
        self._screen.metrics(
            self.records[moving[0]].step,
            loss=sum(losses) / len(losses) if losses else None,
            tokens_per_second=sum(speeds) / len(speeds),
        )

    def _evaluate(self, place: int, not_yet: list[int]) -> float:
        """Scores the dev set; if a stop interrupts that, saves the states and leaves.

        Args:
          not_yet: the places that are not scored yet, this one the first of them.
        """
        try:
            return self.records[place].evaluate(self.state(place))
        except Stopped:
            self._leave(not_yet, owes_evaluation=True)

    def _evaluate_saved(self, place: int) -> None:
        try:
            self.records[place].evaluate_saved(self.state(place))
        except Stopped:
            self._leave([place], owes_evaluation=True)

    def _leave(self, places: list[int], owes_evaluation: bool = False) -> NoReturn:
        """Raises `Stopped` as soon as the states in some places are saved."""
        self._screen.begin('saving', quiet=True)
        for place in places:
            self.records[place].leave(self.state(place), owes_evaluation)
        for record in self.records.values():
            record.checkpoints.wait()
        step = min(record.saved_step for record in self.records.values())
        raise Stopped(f'saved at step {step:,}' if step else '')


def _named(screen: Screen, setup: RunSetup) -> Callable[[str], None]:
    """Prints texts about one of several runs, with its seed before them."""

    def say(text: str) -> None:
        screen.say(f'seed {setup.config.train.seed}: {text}')

    return say


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
