"""Tables and figures that follow from the tables of a stored report.

Training curves need the logs of the runs, and scores over sizes the sweep file.
"""

import collections
from pathlib import Path

from experiments import storage
from experiments.evaluation.measure import Measure
from experiments.reports import figures, findings, page
from experiments.reports.figures import Figure
from experiments.reports.recomputation import RecomputedAnswer
from experiments.reports.tables import Table
from experiments.runs.reading import Entries
from experiments.sweeps import score_files
from experiments.sweeps.analysis import Contrast, Spread


def write(found: RecomputedAnswer, report: Path, folder: Path) -> None:
    """Writes the tables of differences, and figures of differences, trials and costs.

    Args:
      report: The folder of the stored report.
      folder: Receives the files.
    """
    drawn = (_forest(found), _tuning_curve(report), _score_by_cost(found))
    section = page.ReportSection(
        'Answer', tables=_differences(found.answer), figures=list(filter(None, drawn))
    )
    page.write_files(page.section_files([section]), folder)


def _differences(answer: Entries) -> list[Table]:
    decides = Measure(**answer['measure'])
    found = []
    for part in (answer, *answer['further']):
        measure = Measure(**part['measure'])
        contrasts = [
            Contrast(*map(entries.get, Contrast._fields))
            for entries in part['contrasts']
        ]
        table = findings.differences(measure, contrasts)
        table = findings.with_design(table, part.get('margin'), answer['looks'])
        if part is not answer:
            table = table._replace(name=findings.answer_name(decides, measure))
        found.append(table)
    return found


def _forest(found: RecomputedAnswer) -> Figure | None:
    measure = Measure(**found.answer['measure'])
    score = figures.axis_title(measure.score, measure.set)
    data = {row['arm']: row['data'] for row in found.runs if 'data' in row}
    levels = {arm['name']: arm['levels'] for arm in found.answer['arms']}
    names = {}
    for arm in data:
        factors = [x for x in levels[arm] if all(levels[y][x] == data[y] for y in data)]
        others = [level for x, level in levels[arm].items() if x not in factors]
        names[arm] = ', '.join(others)
    return figures.forest(found.contrasts, score, names, data)


def _tuning_curve(report: Path) -> Figure | None:
    """Draws the means of trials; the table has no range over seeds."""
    file = report / 'tables/tuning.csv'
    if not storage.exists(file):
        return None
    trials = collections.defaultdict(dict)
    field = measure = ''
    for row in score_files.read_rows(file, ('arm', 'chosen')):
        _, field, measure, *_ = row
        try:
            value = float(row[field])
        except ValueError:
            return None
        trials[row['arm']][value] = [float(row[measure])]
    return figures.tuning_curve(trials, field, Measure.parse(measure))


def _score_by_cost(found: RecomputedAnswer) -> Figure | None:
    by_arm = {arm['name']: arm for arm in found.answer['arms']}
    spreads = {}
    for row in found.runs:  # in the order of the sweep
        arm = by_arm[row['arm']]
        cost = arm['costs'].get('training_flops')
        spreads[arm['name']] = (_spread(cost), _spread(arm['score']))
    return figures.score_by_cost(spreads, Measure(**found.answer['measure']))


def _spread(entries: Entries | None) -> Spread | None:
    return None if entries is None else Spread(**entries)
