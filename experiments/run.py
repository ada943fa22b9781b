"""Trains what a config describes and scores it.

The same command again resumes the run, or shows its result if it has ended.

python -m experiments.run --config=configs/wmt_small.py --config.model.num_heads=2
"""

import contextlib
import itertools
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.runs import directory
from experiments.runtime import malloc, processes


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir',
        type=Path,
        help='default: runs/<config>,<what differs from the config>',
    )
    parser.add_argument(
        '--extend',
        action='store_true',
        help='go on to a larger train.steps although the learning rates would have '
        'been others',
    )
    processes.add_flags(parser)
    args, settings = flags.parse(parser)
    processes.initialize(args)
    with processes.errors_end_all():
        _run_or_stop(settings, _runs(settings, args.workdir), args.extend)


def _run_or_stop(
    settings: flags.Settings, runs: dict[Path, flags.Settings], extend: bool
) -> None:
    stop = Stop()
    with (
        _standard_output() as out,
        contextlib.redirect_stdout(out),
        stop.listening(),
        contextlib.closing(Screen()) as screen,
    ):
        try:
            _run(settings, runs, extend, stop, screen)
        except Stopped as stopped:
            screen.close()
            _leave(str(stopped), list(runs), stop, screen)


def _standard_output() -> contextlib.AbstractContextManager[TextIO]:
    """Of several processes, that of the first."""
    if processes.is_first():
        return contextlib.nullcontext(sys.stdout)
    return open(os.devnull, 'w', encoding='utf-8')


def _runs(settings: flags.Settings, workdir: Path | None) -> dict[Path, flags.Settings]:
    """The runs that are asked for, by their directories."""
    return {workdir or _default_path(settings): settings}


def _default_path(settings: flags.Settings) -> Path:
    return Path('runs') / directory.run_name(settings.name, settings.overrides)


def _run(
    settings: flags.Settings,
    runs: dict[Path, flags.Settings],
    extend: bool,
    stop: Stop,
    screen: Screen,
) -> None:
    """Trains, or shows the results of runs that have ended."""
    for path, alone in runs.items():
        directory.check(path, alone.config.to_dict())
    stop.wait_for(_import_jax)
    if processes.count() > 1:
        calls = itertools.count()  # which all processes make alike
        stop.agree(lambda: processes.stops_at(next(calls)))
    from experiments.training import whole_run

    members = [whole_run.Run(alone.config, path) for path, alone in runs.items()]
    whole_run.run(members, settings.overrides, screen, stop, extend)


def _import_jax() -> None:
    """Imports JAX, and only after the flags: a mistyped flag is answered at once."""
    from experiments.training import whole_run  # noqa: F401


def _leave(saved: str, paths: list[Path], stop: Stop, screen: Screen) -> NoReturn:
    """Says from where the same command goes on, and ends the process."""
    if saved:
        print(f'stopped and {saved}; the same command goes on from there')
    else:
        step = min(_newest_step(path) for path in paths)
        goes_on = f'goes on from step {step:,}' if step else 'begins again'
        print(
            f'stopped while {screen.phase}; nothing was lost: the same command '
            f'{goes_on}'
        )
    processes.leave()
    stop.leave()


def _newest_step(path: Path) -> int:
    """The step of the newest checkpoint in a run's directory; 0 where there is none."""
    checkpoints = (path / 'checkpoints').glob('[0-9]*')
    steps = [int(folder.name) for folder in checkpoints if folder.name.isdigit()]
    return max(steps, default=0)


if __name__ == '__main__':
    malloc.use_huge_pages()
    flags.main(main)
