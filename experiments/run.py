"""Trains what a config describes and scores it; the same command again resumes, or shows the end.

python -m experiments.run --config=configs/wmt_small.py --config.model.num_heads=2
"""

import contextlib
import sys
from pathlib import Path
from typing import NoReturn

from experiments.command_line import flags
from experiments.command_line.screen import Output, Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.runs import directory
from experiments.runs import result as results
from experiments.runtime import malloc
from experiments.storage import files

RESULT = directory.RESULT


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
        help='go on to a larger train.steps although the learning rates would have been others',
    )
    args, settings = flags.parse(parser)
    path = args.workdir or Path('runs') / directory.run_name(
        settings.name, settings.overrides
    )
    stop = Stop()
    with (
        contextlib.redirect_stdout(Output(sys.stdout)),
        stop.listening(),
        contextlib.closing(Screen()) as screen,
    ):
        try:
            _run(settings, path, args.extend, stop, screen)
        except Stopped as stopped:
            screen.close()
            _leave(str(stopped), path, stop, screen)


def _run(
    settings: flags.Settings, path: Path, extend: bool, stop: Stop, screen: Screen
) -> None:
    config = settings.config
    directory.check(path, config.to_dict())
    stop.wait_for(_import_jax)
    from experiments.config import check
    from experiments.runs import extension
    from experiments.training import loop
    from experiments.training import setup as jobs

    longer = directory.asks_for_more(path, config.to_dict())
    if (path / RESULT).exists() and not longer:
        with directory.open_run(path, config.to_dict()):
            screen.say(jobs.ending(path, results.read(path)))
            jobs.mend(config, path)
            return
    check.check_overrides(config, settings.overrides)
    job = stop.wait_for(lambda: jobs.prepare(config, path, screen, stop))
    extended = extension.check(job, path, extend) if longer else None
    with directory.open_run(path, config.to_dict(), extended):
        screen.say(jobs.begin(job, path))
        with contextlib.closing(loop.Trainer(job, path, screen, stop)) as trainer:
            state = trainer.run()
            screen.begin('scoring')
            result = stop.wait_for(
                lambda: jobs.finish(
                    job,
                    path,
                    state,
                    trainer.evaluator,
                    trainer.checkpoints,
                    trainer.figures.progress,
                    trainer.log,
                    screen.say,
                )
            )
        files.write_json(path / RESULT, result)
        screen.say(jobs.ending(path, result))


def _import_jax() -> None:
    """What comes after the flags, for it imports JAX: a mistyped flag is answered at once."""
    from experiments.training import loop  # noqa: F401


def _leave(saved: str, path: Path, stop: Stop, screen: Screen) -> NoReturn:
    """Says what goes on from where, and ends the process."""
    checkpoints = (path / 'checkpoints').glob('[0-9]*')
    steps = [int(folder.name) for folder in checkpoints if folder.name.isdigit()]
    goes_on = f'goes on from step {max(steps):,}' if steps else 'begins again'
    if saved:
        print(f'stopped and {saved}; the same command goes on from there')
    else:
        print(
            f'stopped while {screen.phase}; nothing was lost: the same command '
            f'{goes_on}'
        )
    stop.leave()


if __name__ == '__main__':
    malloc.use_huge_pages()
    flags.main(main)
