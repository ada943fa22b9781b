"""Trains what a config describes and scores it; the same command again resumes, or shows the end.

python -m experiments.run --config=configs/wmt_small.py --config.model.num_heads=2
"""

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from experiments import files, flags, memory, workdir

RESULT = workdir.RESULT


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
    config = settings.config
    path = args.workdir or Path('runs') / workdir.run_name(
        settings.name, settings.overrides
    )
    stopping = _signals()
    # From here on, for it imports JAX: a mistyped flag is answered at once.
    from experiments import check, extension, train
    from experiments import job as jobs

    longer = workdir.asks_for_more(path, config.to_dict())
    if (path / RESULT).exists() and not longer:
        with workdir.open_run(path, config.to_dict()):
            print(jobs.ending(path, files.read_json(path / RESULT)))
            jobs.mend(config, path)
            return
    check.check_overrides(config, settings.overrides)
    job = jobs.prepare(config, path)
    extended = extension.check(job, path, args.extend) if longer else None
    with workdir.open_run(path, config.to_dict(), extended):
        jobs.begin(job, path)
        try:
            with contextlib.closing(train.Trainer(job, path, stopping)) as trainer:
                state = trainer.run()
                progress = trainer.figures.progress
                result = jobs.finish(
                    job, path, state, trainer.checkpoints, progress, trainer.log
                )
        except train.Stopped as stopped:
            print(
                f'stopped and saved at step {stopped}; the same command goes on from there'
            )
            sys.exit(128 + signal.SIGTERM)
        files.write_json(path / RESULT, result)
        print(jobs.ending(path, result))


def _signals() -> Callable[[], bool]:
    """Has SIGTERM, and the first Ctrl-C, ask the run to stop; → whether it was asked."""
    asked = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return lambda: bool(asked)


if __name__ == '__main__':
    memory.use_huge_pages()
    flags.main(main)
