"""Trains what a config describes and scores it.

The same command again resumes the run, or shows its result if it has ended.

python -m experiments.run --config=configs/wmt_small.py --config.model.num_heads=2
"""

if __name__ == '__main__':
    from experiments.command_line import command
    from experiments.runtime import memory

    memory.use_huge_pages()
    command.run('experiments.run')

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

from experiments.command_line import flags, stopping
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stopped
from experiments.runs import directory
from experiments.runtime import processes


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir',
        type=Path,
        help='default: runs/<config>,<what differs from the config>',
    )
    parser.add_argument(
        '--accept_changed_parts',
        action='store_true',
        help='go on with parts from elsewhere that have changed since the run began',
    )
    processes.add_flags(parser)
    args, settings = flags.parse(parser)
    name = directory.run_name(settings.name, settings.overrides)
    processes.initialize(args)
    with processes.errors_end_all():
        _run(settings, args.workdir or Path('runs') / name, args.accept_changed_parts)
        processes.leave()


def _run(settings: flags.Settings, path: Path, accept_changed_parts: bool) -> None:
    """Trains, or shows the result of a run that has ended."""
    with (
        _standard_output() as out,
        contextlib.redirect_stdout(out),
        contextlib.closing(Screen()) as screen,
    ):
        stopping.at_end(lambda: _last_line(path, screen))
        # JAX is imported only after the flags: a mistyped one is answered at once.
        from experiments.training import loop

        try:
            loop.run(
                settings.config,
                path,
                settings.overrides,
                screen,
                accept_changed_parts,
            )
        except Stopped as stopped:
            text = f'stopped and {stopped}; the same command goes on from there'
            screen.close()
            processes.leave()
            stopping.end(lambda: text)


def _standard_output() -> contextlib.AbstractContextManager[TextIO]:
    """Of several processes, that of the first."""
    if processes.is_first():
        return contextlib.nullcontext(sys.stdout)
    return open(os.devnull, 'w', encoding='utf-8')


def _last_line(path: Path, screen: Screen) -> str:
    """Says from where the same command goes on, where a signal ends the process."""
    screen.close()
    step = _newest_step(path)
    if screen.phase == 'evaluating':  # of the state that was saved just before
        return (
            f'stopped and saved at step {step:,}; the same command goes on from there'
        )
    goes_on = f'goes on from step {step:,}' if step else 'begins again'
    return f'stopped while {screen.phase}; nothing was lost: the same command {goes_on}'


def _newest_step(path: Path) -> int:
    """The step of the newest checkpoint in a run's directory; 0 where there is none."""
    checkpoints = (path / 'checkpoints').glob('[0-9]*')
    steps = [int(folder.name) for folder in checkpoints if folder.name.isdigit()]
    return max(steps, default=0)
