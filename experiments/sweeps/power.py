"""The power of a planned sweep, from the scores of finished runs or of a pilot."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from experiments import storage
from experiments.command_line import console
from experiments.errors import UserError
from experiments.sweeps import analysis, planning, progress
from experiments.sweeps.analysis import Scores
from experiments.sweeps.schema import Sweep
from experiments.sweeps.score_files import read_scores


def read_pilot(folder: Path, sweep: Sweep) -> Scores:
    """Returns the scores of a report's folder.

    Raises UserError if another measure than the sweep's decides there.
    """
    if not storage.exists(folder / 'tables/runs.csv'):
        raise UserError(
            f"--pilot={folder}: no tables/runs.csv. Pass a report's directory."
        )
    for name in ('arms.csv', 'answer.csv'):
        file = folder / 'tables' / name
        if storage.exists(file) and str(sweep.measure) in _columns(file):
            return read_scores(folder / 'tables/runs.csv')
    raise UserError(
        f'--pilot={folder}: its scores are not {str(sweep.measure)!r}, the measure of '
        'this sweep. Pass another report.'
    )


def _columns(file: Path) -> list[str]:
    with storage.as_user_error('read', file), file.open(encoding='utf-8') as lines:
        return next(csv.reader(lines), [])


def text(sweep: Sweep, pilot: Scores | None = None, source: str = '') -> str:
    """Formats the power on each data set, the margin and the error of tuning.

    Args:
      pilot: Scores that estimate the error variance. Defaults to the finished runs'.
      source: Where the pilot comes from.
    """
    scores = planning.scores(sweep.runs) if pilot is None else pilot
    bases = sweep.bases(sweep.base)
    pairs = sweep.contrasts or analysis.pairs_with(bases, bases)
    families = analysis.families(pairs, bases)
    design = planning.design(sweep)
    design = design._replace(looks=design.looks * len(families))
    lines = []
    for data, of_data in families.items():
        arms = [arm for arm in bases if bases[arm] in data]
        seeds = {arm: len(sweep.seeds_of(arm)) for arm in arms}
        # Arms of a pilot may have other names if all share their data.
        known = {
            arm: of_arm
            for arm, of_arm in scores.items()
            if arm in arms or (pilot is not None and len(families) == 1)
        }
        where = f' for the data of {of_data[0][1]}' if len(families) > 1 else ''
        least = analysis.minimum_detectable(known, of_data, seeds, design)
        lines.append(f'power{where}: {_power(sweep, least, known, source)}')
        lines += _margin_lines(sweep, of_data, known)
        lines += _tuning_error(sweep, of_data, seeds)
    return '\n'.join(lines)


def _power(sweep: Sweep, least: float | None, scores: Scores, source: str) -> str:
    if least is None:
        return 'unknown until an arm has finished two seeds; --pilot reads a report'
    runs = sum(map(len, scores.values()))
    of_runs = f'{runs} runs of {source}' if source else f'{runs} finished runs'
    return (
        f'minimum detectable difference {console.cell(least)} (80% power, '
        f'{progress.seeds(sweep)}, error variance from {of_runs})'
    )


def _margin_lines(
    sweep: Sweep, pairs: Sequence[tuple[str, str]], scores: Scores
) -> list[str]:
    if not sweep.margin_share:
        return []
    lines = []
    for base in dict.fromkeys(base for _, base in pairs):
        if base in scores:
            mean = fmean(scores[base].values())
            number = console.cell(planning.margin(sweep, mean))
            lines.append(
                f'margin: {sweep.margin_text} of {base} is {number}, at a mean of '
                f'{console.cell(mean)}'
            )
    return lines or [f'margin: {sweep.margin_text}, unknown without scores of the base']


def _tuning_error(
    sweep: Sweep, pairs: Sequence[tuple[str, str]], seeds: Mapping[str, int]
) -> list[str]:
    tune = sweep.tune
    if tune is None or min(seeds.values()) < 2:
        return []
    trials = len(tune.seeds)
    share = analysis.error_rate_of_tuning(
        pairs, seeds, len(tune.tried), trials, not sweep.base_seeds
    )
    return [
        f'tuning: with {console.count_noun(trials, "trial")} per value, intervals that '
        f'ignore the choice of {tune.field} report an effect in up to {share:.0%} of '
        'sweeps without one. The reported intervals include it, which keeps 5%.'
    ]
