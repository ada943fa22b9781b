"""Compares runs by their directories, as a table or as a report.

python -m experiments.report runs/wmt_small* [--csv | --out=DIR]
python -m experiments.report --scores=scores.csv [--base=ARM]
python -m experiments.report --recompute=results/scan_splits

Runs that differ only in their seeds are one arm, shown as mean ± standard deviation.
--out writes a folder: index.html, which holds all it needs, the same as report.md, the
tables as CSV and LaTeX, and the figures as SVG and PDF. --scores compares numbers that
came from elsewhere: the columns arm, seed and score. --recompute makes the answer of a
report again, of the scores that it ships, and ends with status 1 if it is another.
"""

if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.report')

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import storage
from experiments.command_line import flags, screen
from experiments.command_line.screen import Screen
from experiments.errors import UserError
from experiments.reports import arms, scores, statistics, tables
from experiments.reports.arms import Arm, Study
from experiments.reports.tables import Table
from experiments.runs import directory, reading
from experiments.runs.reading import Run
from experiments.sweeps import planning

if TYPE_CHECKING:
    from experiments.reports.page import Section

NEEDED = ('scipy', 'altair', 'vl_convert', 'jinja2')  # by --out
_NUMBERS = ('parameters', 'tokens_per_second')  # of a result
_LONGEST = 14  # words of a sentence whose attention is shown


def as_table(runs: Sequence[Run]) -> str:
    """The arms as text, and below the signatures of the scores."""
    table = overview(arms.group(runs), arms.differing(runs))
    return '\n'.join([tables.text(table), *_signatures(runs)])


def overview(of_arms: Sequence[Arm], fields: Sequence[str]) -> Table:
    """A row for each arm: its numbers are means over its finished runs.

    Where none has finished, they are means over what the others have so far.

    Args:
      of_arms: the arms.
      fields: of the config, to be shown.
    """
    runs = [run for arm in of_arms for run in arm.runs]
    sets = dict.fromkeys(name for run in runs for name in run.evaluations)
    metric = runs[0].metrics[0]
    rows = []
    for arm in of_arms:
        counted = arm.scored or arm.runs
        first = counted[0]
        is_trained = first.status != reading.CONVERTED
        steps = first.config.get('train.steps') if is_trained else None
        numbers = [[run.result.get(name) for run in counted] for name in _NUMBERS]
        numbers.append([_dev_loss(run) for run in counted])
        for name in sets:
            of_set = [run.evaluations.get(name, {}) for run in counted]
            numbers.append([of_run.get(metric) for of_run in of_set])
        rows.append(
            (
                arms.common_path(arm.runs),
                len(counted),
                _statuses(arm),
                _span([run.result.get('step') for run in counted]),
                steps or None,  # none where epochs end the run
                *(first.config.get(field) for field in fields),
                *map(_mean, numbers),
            )
        )
    scored = [f'{name} {metric}' for name in sets]
    names = ('run', 'seeds', 'status', 'step', 'steps', *fields)
    columns = (*names, *_NUMBERS, 'dev_loss', *scored)
    return Table('runs', 'Runs', columns, rows, scored)


def _dev_loss(run: Run) -> float | None:
    losses = [row.get('loss') for row in run.dev_rows()]
    return losses[-1] if losses else None


def _statuses(arm: Arm) -> str:
    """How runs ended: 'finished', or '2 finished, 1 diverged'."""
    counts = Counter(run.status for run in arm.runs)
    if len(counts) == 1:
        return arm.runs[0].status
    return ', '.join(f'{count} {status}' for status, count in counts.items())


def _span(steps: Sequence[int | None]) -> Any:
    """The one step that all have come to, or the first and the last of several."""
    there = {step for step in steps if step is not None}
    if len(there) < 2:
        return max(there, default=None)
    return f'{min(there):,}–{max(there):,}'


def _mean(values: Sequence[float | None]) -> Any:
    """The mean over seeds; a number of its own where there is one, or all are equal."""
    there = {value for value in values if value is not None}
    return there.pop() if len(there) == 1 else statistics.spread(values)


def _signatures(runs: Sequence[Run]) -> list[str]:
    """The signature of the metric that is shown, or which runs have which."""
    metric = runs[0].metrics[0]
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for of_set in run.evaluations.values():
            signature = of_set.get(f'{metric}_signature')
            if signature is not None:
                found.setdefault(signature, {})[str(run.path)] = None
    if len(found) <= 1:
        return [f'{metric}: {signature}' for signature in found]
    lines = [
        f'Not all of these scores of {metric} can be compared, for their signatures '
        'differ:'
    ]
    return lines + [f'{name}: {", ".join(found[name])}' for name in sorted(found)]


def main() -> None:
    args = _parser().parse_args()
    if args.scores is not None:
        _refuse_beside(args, '--scores', 'runs', 'sweep', 'measure', 'attention_of')
        found = scores.as_table(scores.read(args.scores), args.base)
        print(tables.text(found))
        return
    if args.recompute is not None:
        others = ('runs', 'base', 'sweep', 'measure', 'attention_of')
        _refuse_beside(args, '--recompute', *others)
        _recompute(args.recompute)
        return
    if args.out is None:
        _refuse_without_out(args)
    else:
        _check_out(args.out)
    sweep = None if args.sweep is None else planning.load(args.sweep)
    paths = list(map(Path, args.runs))
    if sweep is not None and not paths:
        paths = [run.path for run in sweep.runs if storage.exists(run.path)]
    with screen.on_stderr('reading runs') as shown:
        runs, notes = _read_runs(paths)
        for note in notes:
            print(note, file=sys.stderr)
        if not runs:
            raise UserError(
                'there is no run to report: give the directories of runs, such as '
                'runs/*'
            )
        if args.out is not None:
            study = arms.study(runs, sweep, args.base, args.measure)
            _write(args, study, notes, shown)
    if args.out is not None:
        print(f'{args.out}/ (index.html, report.md, tables/, figures/)')
    elif args.csv:
        of_each = [Arm(str(run.path), (run,)) for run in runs]
        print(tables.as_csv(overview(of_each, arms.differing(runs, ()))), end='')
    else:
        print(as_table(runs))


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument('runs', nargs='*', help='directories of runs')
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        '--csv', action='store_true', help='a row a run, for a spreadsheet'
    )
    form.add_argument('--out', type=Path, help='folder to write a report to')
    form.add_argument(
        '--scores', type=Path, help='a CSV file to compare: arm, seed and score'
    )
    form.add_argument(
        '--recompute', type=Path, help='folder of a report whose answer is made again'
    )
    parser.add_argument(
        '--base', default='', help='the arm to compare with; default: the first'
    )
    parser.add_argument(
        '--measure', default='', help="what decides, such as 'test bleu', the default"
    )
    parser.add_argument(
        '--sweep', type=Path, help='the file of the sweep whose runs these are'
    )
    parser.add_argument(
        '--attention',
        type=flags.whole_number,
        default=3,
        metavar='N',
        help='sentences whose attention is shown, of the best arm; 0 for none',
    )
    parser.add_argument(
        '--attention_of', type=Path, help='the run whose attention is shown instead'
    )
    return parser


def _recompute(folder: Path) -> None:
    found, others = scores.recompute(folder)
    print(tables.text(found))
    if others:
        names = ', '.join(others)
        print(f'{folder}/tables/answer.csv says otherwise of {names}', file=sys.stderr)
        sys.exit(1)
    print(f'as {folder}/tables/answer.csv has it')


def _refuse_beside(args: Any, flag: str, *names: str) -> None:
    for name in names:
        if getattr(args, name):
            raise UserError(f'{flag} has scores of its own: leave {name} out')


def _refuse_without_out(args: Any) -> None:
    for name in ('base', 'measure', 'attention_of'):
        if getattr(args, name):
            raise UserError(f'--{name} is for a report: give --out=DIR too')


def _check_out(folder: Path) -> None:
    """Refuses what a report cannot be written to, and says which packages it needs."""
    without = 'without --out the table needs none of them'
    flags.require_packages('--out', NEEDED, 'report', without)
    if storage.exists(folder / directory.CONFIG):
        raise UserError(f'--out={folder} is the directory of a run: give another')
    if storage.exists(folder) and not folder.is_dir():
        raise UserError(f'--out={folder} is not a folder: give another')


def _read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """What is known of each run, and a line for each that is none or is damaged."""
    runs = []
    notes = []
    for path in paths:
        try:
            runs.append(reading.read_run(path))
        except UserError as error:
            notes.append(f'left out: {error}')
    return runs, notes


def _write(args: Any, study: Study, notes: list[str], shown: Screen) -> None:
    from experiments.reports import page

    inside: list[Section] = []
    if args.attention:
        try:
            shown.begin('looking inside')
            inside = _look_inside(args, study, shown)
        except UserError as error:
            notes.append(f'Attention is not shown: {error}')
    shown.begin('comparing and drawing')
    page.write(study, args.out, inside, notes)


def _look_inside(args: Any, study: Study, shown: Screen) -> list['Section']:
    """The attention of the run that was asked for, or else of the best arm's first."""
    if args.attention_of is not None:
        run = reading.read_run(args.attention_of)
    else:
        scored = study.ranked()[0].scored
        if not scored:
            raise UserError('no run has finished')
        run = scored[0]
    found = reading.read_translations(run, study.measure.set)
    if found is None:
        raise UserError(f'{run.path} has no translations of {study.measure.set}')
    sources, _, outputs = found
    short = [i for i, text in enumerate(sources) if len(text.split()) <= _LONGEST]
    chosen = short[:: max(1, len(short) // args.attention)][: args.attention]
    from experiments.reports import looking, pictures

    look = looking.open_run(run.path)
    look.on_progress = shown.count
    return pictures.sections(look.inspect([(sources[i], outputs[i]) for i in chosen]))
