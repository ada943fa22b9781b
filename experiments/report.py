"""Compares runs by their directories, as a table or as a report.

python -m experiments.report runs/wmt_small* [--csv | --json | --out=DIR]

Runs that differ only in their seeds are one arm, shown as mean ± standard deviation.
--out writes a folder: index.html, which holds all it needs, the same as report.md, the
tables as CSV and LaTeX, and the figures as SVG and PDF.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import storage
from experiments.command_line import flags
from experiments.errors import UserError
from experiments.reports import arms, overview, tables
from experiments.reports.arms import Study
from experiments.runs import directory, reading
from experiments.runs.reading import Run
from experiments.sweeps import schema

if TYPE_CHECKING:
    from experiments.reports.page import Section

NEEDED = ('scipy', 'altair', 'vl_convert', 'jinja2')  # by --out
_LONGEST = 14  # words of a sentence whose attention is shown


def read_run(path: Path) -> dict[str, Any]:
    """What is known of a run, finished or not.

    Raises:
      UserError: this is not the directory of a run, or a file of it cannot be read.
    """
    return overview.entry(reading.read_run(path))


def as_table(runs: Sequence[Run]) -> str:
    """The arms as text, and below the signatures of the BLEU scores."""
    lines = [tables.text(overview.table(arms.group(runs)))]
    return '\n'.join([*lines, *overview.signatures(runs)])


def main() -> None:
    args = _parser().parse_args()
    if args.out is None:
        _refuse_without_out(args)
    else:
        _check_out(args.out)
    sweep = None if args.sweep is None else schema.load(args.sweep)
    paths = list(map(Path, args.runs))
    if sweep is not None and not paths:
        paths = [run.path for run in sweep.runs if storage.exists(run.path)]
    runs, notes = _read_runs(paths, with_texts=args.out is not None)
    for note in notes:
        print(note, file=sys.stderr)
    if not runs:
        raise UserError('there is no run to report')
    if args.out is not None:
        _write(args, arms.study(runs, sweep, args.base, args.measure), notes)
    elif args.json:
        print(storage.json_text([overview.entry(run) for run in runs]), end='')
    elif args.csv:
        _write_csv(overview.columns(runs))
    else:
        print(as_table(runs))


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument('runs', nargs='*', help='directories of runs')
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        '--csv', action='store_true', help='a row a run, for a spreadsheet'
    )
    form.add_argument(
        '--json', action='store_true', help='with the whole configs and results'
    )
    form.add_argument('--out', type=Path, help='folder to write a report to')
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
        type=_count,
        default=3,
        metavar='N',
        help='sentences whose attention is shown, of the best arm; 0 for none',
    )
    parser.add_argument(
        '--attention_of', type=Path, help='the run whose attention is shown instead'
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f'{text!r} must be a whole number from 0')
    return int(text)


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


def _read_runs(paths: Iterable[Path], with_texts: bool) -> tuple[list[Run], list[str]]:
    """What is known of each run, and a line for each that is none or is damaged.

    Args:
      with_texts: whether a run is left out for its translations too.
    """
    runs = []
    notes = []
    for path in paths:
        try:
            run = reading.read_run(path)
            for name in run.evaluations if with_texts else ():
                reading.read_translations(run, name)
            runs.append(run)
        except UserError as error:
            notes.append(f'left out: {error}')
    return runs, notes


def _write_csv(table: dict[str, list[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))


def _write(args: Any, study: Study, notes: list[str]) -> None:
    from experiments.reports import page

    inside: list[Section] = []
    if args.attention:
        try:
            inside = _look_inside(args, study)
        except UserError as error:
            notes.append(f'Attention is not shown: {error}')
    page.write(study, args.out, inside, notes)
    print(f'{args.out}/ (index.html, report.md, tables/, figures/)')


def _look_inside(args: Any, study: Study) -> list['Section']:
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

    look = looking.open_run(run.path, of=study.measure.set)
    return pictures.sections(look.inspect([(sources[i], outputs[i]) for i in chosen]))


if __name__ == '__main__':
    flags.main(main)
