"""Trains what a config describes and scores it.

The same command again resumes the run, or shows its result if it has ended.

python -m experiments.run --config=configs/wmt_small.py --config.model.num_heads=2
"""

import contextlib
import sys
from pathlib import Path
from typing import Any, NoReturn

from experiments.command_line import flags
from experiments.command_line.screen import Output, Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.runs import directory, result_file
from experiments.runtime import malloc
from experiments.storage import files


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
    args, settings = flags.parse(parser)
    path = args.workdir
    if path is None:
        path = Path('runs') / directory.run_name(settings.name, settings.overrides)
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
    """Trains, or shows the result of a run that has ended."""
    config = settings.config
    directory.check(path, config.to_dict())
    stop.wait_for(_import_jax)
    from experiments.config import check
    from experiments.training import extension, result, setup, start

    extends = directory.asks_for_more(path, config.to_dict())
    if files.exists(path / directory.RESULT) and not extends:
        with directory.open_run(path, config.to_dict()):
            screen.say(result.summary(path, result_file.read(path)))
            start.mend_tokenizer(config, path)
        return
    check.check_overrides(config, settings.overrides)
    run_setup = stop.wait_for(lambda: setup.prepare(config, path, screen, stop))
    extended = extension.check(run_setup, path, extend) if extends else None
    with directory.open_run(path, config.to_dict(), extended):
        screen.say(start.begin(run_setup, path))
        scored = _train(run_setup, path, stop, screen)
        files.write_json(path / directory.RESULT, scored)
        screen.say(result.summary(path, scored))


def _import_jax() -> None:
    """Imports JAX, and only after the flags: a mistyped flag is answered at once."""
    from experiments.training import loop  # noqa: F401


def _train(run_setup: Any, path: Path, stop: Stop, screen: Screen) -> dict[str, Any]:
    """Trains to the end, then scores the chosen sets: the run's result."""
    from experiments.training import loop, result

    with contextlib.closing(loop.Trainer(run_setup, path, screen, stop)) as trainer:
        state = trainer.run()
        screen.begin('scoring')
        return stop.wait_for(lambda: result.finish(trainer, state))


def _leave(saved: str, path: Path, stop: Stop, screen: Screen) -> NoReturn:
    """Says from where the same command goes on, and ends the process."""
    if saved:
        print(f'stopped and {saved}; the same command goes on from there')
    else:
        checkpoints = (path / 'checkpoints').glob('[0-9]*')
        steps = [int(folder.name) for folder in checkpoints if folder.name.isdigit()]
        goes_on = f'goes on from step {max(steps):,}' if steps else 'begins again'
        print(
            f'stopped while {screen.phase}; nothing was lost: the same command '
            f'{goes_on}'
        )
    stop.leave()


if __name__ == '__main__':
    malloc.use_huge_pages()
    flags.main(main)
