"""Runs, from their configs to their results: what `run` and a sweep do for each.

Runs that differ in their seeds alone are trained together, by one program.
"""

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import storage
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.config import check
from experiments.config.flat import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.runs import directory, failure, reading
from experiments.runtime import kept
from experiments.runtime.processes import endings, group
from experiments.training import extension, loop, result, setup, start
from experiments.training.setup import Memo, RunSetup

# How long a disk of several hosts may take to show one what another has written.
_SEEN_SECONDS = 60


class Run(NamedTuple):
    """A config and the directory of its run."""

    config: ExperimentConfig
    path: Path

    @property
    def extends(self) -> bool:
        """Whether the run is there, and this config raises its limits."""
        return directory.asks_for_more(self.path, self.config.to_dict())

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing to do but to show its result."""
        return storage.exists(self.path / directory.RESULT) and not self.extends


def run(
    runs: Sequence[Run],
    overrides: Iterable[str],
    screen: Screen,
    stop: Stop,
    extend: bool = False,
    memo: Memo | None = None,
) -> None:
    """Trains to the end and scores, or shows the result of a run that has ended.

    Args:
      runs: one, or several that differ in `train.seed` alone. Where a directory holds a
        part of its run, that goes on.
      overrides: the fields that were changed: one that nothing is done with is refused.
      extend: whether to go on to raised limits although the learning rates would have
        been others.
      memo: what runs of one process share; by default nothing.

    Raises:
      UserError: a field, a file or a text that cannot be worked with; or training
        failed, as `failure.json` in the directory then says.
      Stopped: a stop was asked for.
    """
    _check_same_command(runs, extend)
    for member in runs:
        directory.check(member.path, member.config.to_dict())
        if member.has_ended:
            _show(member, screen, stop)
    if all(member.has_ended for member in runs):
        return
    check.check_overrides(runs[0].config, overrides)
    setups = stop.wait_for(lambda: setup.prepare_seeds(runs, screen, stop, memo))
    group.check_same('text', setup.digests(setups[0]))
    extensions = {}
    for member, run_setup in zip(runs, setups, strict=True):
        if member.extends:
            extensions[member] = extension.check(run_setup, member.path, extend)
    group.barrier('prepared')  # all have seen the directories as they were
    with contextlib.ExitStack() as opened:
        for member in runs:
            if group.is_first() and not member.has_ended:
                opened.enter_context(_open(member, extensions.get(member)))
        group.barrier('opened')
        _check_shared(runs)
        errors = _train(runs, setups, stop, screen)
    if errors:
        raise _summary(errors, len(runs))


def _check_same_command(runs: Sequence[Run], extend: bool) -> None:
    """Refuses processes that were not started alike."""
    if group.count() == 1:
        return
    group.check_same('code', kept.code())
    group.check_same('config', flatten(runs[0].config.to_dict()))
    paths = [str(member.path.absolute()) for member in runs]
    group.check_same('command', {'--workdir': paths, '--extend': extend})


def _check_shared(runs: Sequence[Run]) -> None:
    """Refuses directories that this process does not see as the first does."""
    until = time.monotonic() + _SEEN_SECONDS
    for member in runs:
        while not storage.exists(member.path / directory.CONFIG):
            if time.monotonic() > until:
                raise UserError(
                    f'{member.path} is not there as the first process sees it: choose '
                    'a --workdir on a disk that all share'
                )
            time.sleep(1)


def _show(member: Run, screen: Screen, stop: Stop) -> None:
    """Shows the result of a run that has ended, and mends its tokenizer."""
    if not group.is_first():
        return
    with directory.open_run(member.path, member.config.to_dict()):
        screen.say(result.summary(member.path, reading.read_result(member.path)))
        mend = functools.partial(
            start.mend_tokenizer, member.config, member.path, screen
        )
        stop.wait_for(mend)


@contextlib.contextmanager
def _open(member: Run, extension: dict[str, Any] | None) -> Iterator[None]:
    """Locks a run's directory; an error is written there."""
    with (
        directory.open_run(member.path, member.config.to_dict(), extension),
        failure.recorded(member.path),
    ):
        yield


def _train(
    runs: Sequence[Run], setups: Sequence[RunSetup], stop: Stop, screen: Screen
) -> list[failure.Diverged]:
    """Trains the runs that have not ended, then scores their chosen sets.

    Returns:
      What ended those that diverged.
    """
    paths = [None if member.has_ended else member.path for member in runs]
    if group.is_first():
        descriptions = [
            start.begin(run_setup, path)
            for run_setup, path in zip(setups, paths, strict=True)
            if path is not None
        ]
        screen.say(descriptions[0])
    if len(runs) > 1:
        screen.say(_together(runs))
    with contextlib.closing(loop.Trainer(setups, paths, screen, stop)) as trainer:
        with endings.deaths_are_told():
            trainer.run()
            screen.begin('scoring')
            for place in trainer.records:
                _score(trainer, place, stop, screen)
    return list(trainer.failed.values())


def _score(trainer: loop.Trainer, place: int, stop: Stop, screen: Screen) -> None:
    """Scores a run that has trained to the end, or says how it failed."""
    record = trainer.records[place]
    if place in trainer.failed:
        if group.is_first():
            failure.write(record.path, trainer.failed[place])
        return
    state = trainer.state(place)
    scored = stop.wait_for(functools.partial(result.finish, record, state))
    if group.is_first():
        storage.write_json(record.path / directory.RESULT, scored)
    screen.say(result.summary(record.path, scored))


def _together(runs: Sequence[Run]) -> str:
    seeds = [member.config.train.seed for member in runs]
    places = f'{runs[0].path} … {runs[-1].path}'
    return f'seeds {seeds[0]} to {seeds[-1]} are trained at once: {places}'


def _summary(errors: Sequence[failure.Diverged], runs: int) -> UserError:
    """One error for those of several runs."""
    if runs == 1:
        return errors[0]
    return UserError(
        f'{len(errors)} of {runs} runs diverged, as failure.json in their directories '
        f'says; the first: {errors[0]}'
    )
