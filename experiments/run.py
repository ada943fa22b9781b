"""Trains the model of a config and scores it.

Run the same command again to resume the run, or to show its result if it has ended.

python -m experiments.run --config=configs/wmt_small.py --config.model.num_heads=2
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.run')

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from experiments.command_line import console, flags, stopping
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stopped
from experiments.errors import UserError, warn
from experiments.runs import directory, environment, reading
from experiments.runtime import processes


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir',
        type=Path,
        help='directory of the run; default: runs/<config>,<overrides>',
    )
    parser.add_argument(
        '--accept_changed_code',
        action='store_true',
        help='resume with user modules that have changed since the run started',
    )
    parser.add_argument(
        '--dry_run',
        action='store_true',
        help='show the config and its costs without training',
    )
    processes.add_flags(parser)
    args, settings = flags.parse(parser)
    name = directory.run_name(settings.name, settings.overrides)
    path = args.workdir or directory.RUNS / name
    if args.dry_run:
        _show_plan(settings, path, args)
        return
    processes.initialize(args)
    with processes.errors_end_all():
        _run(settings, path, args)
        processes.leave()


def _show_plan(settings: flags.ConfigFlags, path: Path, args: Any) -> None:
    from experiments import describe
    from experiments.config import check
    from experiments.costs.ledger import ledger
    from experiments.sweeps import progress
    from experiments.training import setup

    config = settings.config
    # These raise as in the run itself, such as for missing files or untrusted code.
    processes.from_flags(args)
    state = directory.check_directory(path, config.to_dict())
    if state != directory.COMPLETE:  # the run would only show its result
        environment.check_modules(path, warn, args.accept_changed_code)
        check.check_overrides(config, settings.overrides)
        setup.check_plan(config, path, state)
    costs = ledger(config)
    steps = config.train.steps or f'of {config.train.epochs} epochs'
    facts = {'run': f'{path} {state}', 'data': config.data, 'steps': steps}
    print(console.facts(facts), describe.text(costs), sep='\n\n')
    spent = []
    for sibling in reading.runs_in(path.parent):
        with contextlib.suppress(UserError):  # skip unreadable runs
            run = reading.read_run(sibling)
            if run.finished:
                seconds = run.result['train_seconds']
                spent.append(
                    progress.Work(run.training_flops, run.batch_flops, seconds)
                )
    if config.train.steps:
        planned = progress.Work(costs['flops']['training'], costs['flops']['batch'])
        print(progress.total_cost([planned], spent))


def _run(settings: flags.ConfigFlags, path: Path, args: Any) -> None:
    with (
        _standard_output() as out,
        contextlib.redirect_stdout(out),
        contextlib.closing(Screen()) as screen,
    ):
        # Import JAX only after the flags, so that errors in flags show at once.
        from experiments.training import loop

        try:
            loop.run(
                settings.config,
                path,
                settings.overrides,
                screen,
                args.accept_changed_code,
            )
            screen.close()
            console.say_next(f'python -m experiments.translate --workdir={path}')
        except Stopped as stopped:
            screen.say(f'Stopped; {stopped}. Rerun the command to continue.')
            screen.close()
            processes.leave()
            stopping.end()


def _standard_output() -> contextlib.AbstractContextManager[TextIO]:
    if processes.is_first():
        return contextlib.nullcontext(sys.stdout)
    return open(os.devnull, 'w', encoding='utf-8')
