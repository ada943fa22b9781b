"""Compares runs by their directories, as a table or as a report.

python -m experiments.report runs/wmt_small* [--csv | --json | --out=DIR]
python -m experiments.report --scores=scores.csv [--base=ARM]
python -m experiments.report --recompute=results/scan_splits [--json | --out=DIR]

Runs that differ only in their seeds are one arm, shown as mean ± standard deviation.

--out writes a folder with a self-contained index.html, and the same text as report.md.
It also contains the tables as CSV and LaTeX, the figures as SVG and PDF, and the answer
as answer.json.

--json prints the answer of a report for programs.

--scores compares scores from elsewhere: the columns arm, seed and score.

--recompute computes a report's answer again from answer.json and tables/runs.csv in
its folder. The exit status is 1 if the answer or its tables differ. --out writes the
tables and figures that follow from them; training curves need the runs. With
--other=DIR it also tests whether contrasts differ between two reports, such as of two
widths.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.report')

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import errors, storage
from experiments.command_line import console, flags, screen
from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.metrics.base import score_decimals
from experiments.reports import arms, external_scores, tables
from experiments.reports.arms import Arm
from experiments.reports.tables import Table, column_decimals
from experiments.runs import directory, reading
from experiments.runs.reading import Run
from experiments.sweeps import analysis, looks, planning

_NUMBERS = ('step', 'parameters', 'tokens_per_second')  # numeric entries of a result
_RUN_FLAGS = ('runs', '--sweep', '--measure')


def main() -> None:
    args = _parser().parse_args()
    if args.recompute is not None:
        other_flags = (*_RUN_FLAGS, '--base', '--csv', '--scores')
        _reject_flags(args, other_flags, 'with --recompute. Leave one of them out.')
        if args.other is not None:
            _reject_flags(args, ('--json',), 'with --other. Leave one of them out.')
        _recompute(args.recompute, args.json, args.out)
        if args.other is not None:
            _compare_answers(args.recompute, args.other)
    elif args.other is not None:
        raise UserError('--other: has no effect without --recompute. Add it.')
    elif args.scores is not None:
        _reject_flags(args, _RUN_FLAGS, 'with --scores. Leave one of them out.')
        print(tables.text(external_scores.compare_scores(args.scores, args.base)))
    else:
        if args.out is not None:
            _check_out(args.out)
        elif args.json:
            flags.require_packages(
                '--json', flags.REPORT_PACKAGES, 'report', 'or use --csv'
            )
        else:
            of_reports = ('--base', '--measure', '--trust_code')
            _reject_flags(
                args, of_reports, 'without a report. Add --out=DIR or --json.'
            )
        _compare(args)


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument('runs', nargs='*', type=Path, help='directories of runs')
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        '--csv', action='store_true', help='print CSV with one row per run'
    )
    form.add_argument(
        '--json', action='store_true', help='print the answer of a report as JSON'
    )
    form.add_argument('--out', type=Path, help='directory to write a report to')
    form.add_argument(
        '--scores', type=Path, help='CSV file of scores to compare: arm, seed, score'
    )
    parser.add_argument(
        '--recompute', type=Path, help='directory of a report whose answer to recompute'
    )
    parser.add_argument(
        '--other',
        type=Path,
        help='directory of a report whose contrasts to compare with those of '
        '--recompute: whether they differ',
    )
    parser.add_argument(
        '--base', default='', help='arm to compare with; default: the first'
    )
    parser.add_argument(
        '--measure',
        type=Measure.parse,
        help="deciding score; default: 'test bleu'",
    )
    parser.add_argument('--sweep', type=Path, help='sweep file that the runs belong to')
    parser.add_argument(
        '--against',
        choices=('step', 'tokens', 'seconds'),
        default='step',
        help='x-axis of the training curves; default: step',
    )
    parser.add_argument(
        '--trust_code',
        action='store_true',
        help='run the commands of metrics that configs of the runs name',
    )
    return parser


def _reject_flags(args: Any, flags: Sequence[str], why: str) -> None:
    for flag in flags:
        if getattr(args, flag.lstrip('-')):
            raise UserError(f'{flag}: has no effect {why}')


def _check_out(folder: Path) -> None:
    without = 'or leave out --out'
    flags.require_packages('--out', flags.REPORT_PACKAGES, 'report', without)
    if storage.exists(folder / directory.CONFIG):
        raise UserError(f'--out={folder}: directory of a run. Pass another.')
    reason = storage.obstacle(folder)
    if reason:
        raise UserError(f'--out={folder}: cannot be written, {reason}. Pass another.')


def _recompute(folder: Path, as_json: bool, out: Path | None) -> None:
    flags.require_packages('--recompute', ('scipy',), 'report')
    if out is not None:
        _check_out(out)
        if out.resolve() == folder.resolve():
            raise UserError(f'--out={out}: directory of the report. Pass another.')
    from experiments.reports import findings, recomputation

    found = recomputation.recompute(folder)
    answer, contrasts, mismatches, _ = found
    if out is not None:
        from experiments.reports import redrawing

        redrawing.write(found, folder, out)
    if as_json:
        differs = [mismatch._asdict() for mismatch in mismatches]
        console.print_data(json.dumps(answer | {'differs': differs}, indent=2))
    else:
        print(tables.text(external_scores.as_table(contrasts)))
    for file, row, column, stored, found in mismatches:
        stated = f'{console.cell(stored)} instead of {console.cell(found)}'
        errors.note(f'{folder}/{file}: {row}: {column} is {stated}')
    if mismatches:
        sys.exit(1)
    if not as_json:
        print(f'matches {folder}/{findings.ANSWER} and its tables')
        if out is not None:
            print(f'{out}/ (tables/, figures/)')


def _compare_answers(folder: Path, other: Path) -> None:
    from experiments.reports import interactions, recomputation

    first, second = (recomputation.recompute(x).contrasts for x in (folder, other))
    found = interactions.interactions(first, second)
    if not found:
        raise UserError(
            f'--other={other}: has no contrast with a test in common with {folder}. '
            'Pass the report of a sweep with the same arms.'
        )
    print(tables.text(interactions.table(found, (folder.name, other.name))))


def _compare(args: Any) -> None:
    sweep = None if args.sweep is None else planning.load(args.sweep)
    paths = []
    for path in args.runs:
        paths += reading.runs_in(path) or [path]
    if sweep is not None and not paths:
        paths = [run.path for run in sweep.runs if storage.exists(run.path)]
    score = '' if sweep is None else sweep.measure.score
    with screen.on_stderr('reading runs') as shown:
        runs, notes = _read_runs(paths)
        answer = ''
        if args.out is not None or args.json:
            from experiments.reports import json_answer, page

            study = arms.study(runs, sweep, args.base, args.measure)
            study = study._replace(trust_code=args.trust_code)
            study = study.as_look()
            shown.begin('writing the report')
            if args.out is None:
                answer = json_answer.text(study, notes)
            else:
                page.write(study, args.out, notes, args.against)
            looks.record(study.sweep)
    if args.json:
        console.print_data(answer)
    elif args.out is not None:
        print(f'{args.out}/ (index.html, report.md, tables/, figures/)')
    elif args.csv:
        run_arms = [Arm(str(run.path), (run,)) for run in runs]
        fields = arms.differing_fields(runs, ())
        table = overview(run_arms, fields, score)
        console.print_data(tables.as_csv(table).removesuffix('\n'))
    else:
        print(as_table(runs, score))


def _read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    runs = []
    notes = []
    for path in paths:
        try:
            runs.append(reading.read_run(path))
        except UserError as error:
            if len(paths) == 1:
                raise
            notes.append(f'skipped: {errors.line(error)}')
            errors.note(notes[-1])
    if not runs:
        raise UserError(
            'runs: no readable run. Pass directories of runs, such as runs/*.'
        )
    return runs, notes


def as_table(runs: Sequence[Run], score: str = '') -> str:
    """Formats the arms as a table, followed by signatures and differences in text."""
    table = overview(arms.group(runs), arms.differing_fields(runs), score)
    notes = [*_signatures(runs, score), *arms.different_text(runs)]
    return '\n'.join([tables.text(table), *notes])


def overview(of_arms: Sequence[Arm], fields: Sequence[str], score: str = '') -> Table:
    """Returns the config fields and the means over finished runs of each arm.

    If no run of an arm has finished, the means cover what its runs have so far.

    Args:
      score: The score to show of each set. Defaults to the deciding metric.
    """
    runs = [run for arm in of_arms for run in arm.runs]
    sets = dict.fromkeys(name for run in runs for name in run.evaluations)
    score = score or runs[0].metrics[0]
    rows = []
    for arm in of_arms:
        counted = arm.scored or arm.runs
        values = [counted[0].config.get(field) for field in fields]
        for name in _NUMBERS:
            values.append(_mean([run.result.get(name) for run in counted]))
        for name in sets:
            of_set = [run.evaluations.get(name, {}) for run in counted]
            values.append(_mean([scored.get(score) for scored in of_set]))
        path = arms.common_path(arm.runs)
        rows.append((path, len(counted), _statuses(arm), *values))
    scored = [f'{name} {score}' for name in sets]
    columns = ('run', 'seeds', 'status', *fields, *_NUMBERS, *scored)
    decimals = column_decimals(columns, rows)
    decimals = {name: decimals[name] for name in _NUMBERS}
    decimals |= dict.fromkeys(scored, score_decimals(score)[score])
    return Table('runs', 'Runs', columns, rows, decimals)


def _statuses(arm: Arm) -> str:
    counts = Counter(run.status for run in arm.runs)
    if len(counts) == 1:
        return arm.runs[0].status
    return ', '.join(f'{count} {status}' for status, count in counts.items())


def _mean(values: Sequence[float | None]) -> Any:
    there = {value for value in values if value is not None}
    return there.pop() if len(there) == 1 else analysis.spread(values)


def _signatures(runs: Sequence[Run], score: str) -> list[str]:
    metric = score or runs[0].metrics[0]
    sets_by_signature = defaultdict(dict)  # each set once
    for run in runs:
        for name, scored in run.evaluations.items():
            signature = scored.get(f'{metric}_signature')
            if signature:
                sets_by_signature[signature][name] = None
    lines = []
    for signature, names in sorted(sets_by_signature.items()):
        of_sets = f' ({", ".join(names)})' if len(sets_by_signature) > 1 else ''
        lines.append(f'{metric}{of_sets}: {signature}')
    if len(lines) > 1:
        lines.append('Scores with different signatures are not comparable.')
    if metric in arms.lower_is_better(runs):
        lines.append(f'{metric}: lower is better')
    return lines
