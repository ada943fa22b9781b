"""Puts a report together: index.html, report.md, tables and figures, in one folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import storage
from experiments.reports import conditions, findings, scores, texts
from experiments.reports.arms import Study
from experiments.reports.display import curves, document, paper, tables
from experiments.reports.display.charts import Figure
from experiments.reports.display.document import Section
from experiments.reports.display.tables import Table
from experiments.reports.inside import pictures, sections

if TYPE_CHECKING:
    from experiments.reports.inside.gradients import FirstGradients
    from experiments.reports.inside.heads import Inspection

_ALSO = 'They are in the folder figures/.'  # where there is no JavaScript


def write(
    study: Study,
    folder: Path,
    inspection: 'Inspection | None',
    gradients: Sequence['FirstGradients'],
    notes: Sequence[str],
) -> None:
    """Writes a report.

    Args:
      study: what is compared.
      folder: is made where it is not there.
      inspection: of a run's attention, if it was looked into.
      gradients: of the arms at initialisation, if they were measured.
      notes: what else a reader must know, such as runs that cannot be read.

    Raises:
      UserError: a file cannot be written, or translations cannot be read.
    """
    shown = _sections(study, inspection, gradients, notes)
    for section in shown:
        for table in [*section.tables, *section.more]:
            _write_table(folder / 'tables', table)
        for figure in section.figures():
            _write_figure(folder / 'figures', figure)
    title = _title(study)
    storage.write(folder / 'report.md', document.markdown(title, shown))
    storage.write(folder / 'index.html', document.html(title, shown, _ALSO))


def _write_table(folder: Path, table: Table) -> None:
    storage.write(folder / f'{table.name}.csv', tables.as_csv(table))
    storage.write(folder / f'{table.name}.tex', tables.latex(table))


def _write_figure(folder: Path, figure: Figure) -> None:
    for form, data in paper.draw(figure).items():
        storage.write(folder / f'{figure.name}.{form}', data)


def _title(study: Study) -> str:
    if study.sweep is not None:
        return study.sweep.question
    return f'{len(study.arms)} arms by {study.measure}'


def _sections(
    study: Study,
    inspection: 'Inspection | None',
    gradients: Sequence['FirstGradients'],
    notes: Sequence[str],
) -> list[Section]:
    found = [
        _answer(study, notes),
        _compared(study),
        _cost(study),
        _scores(study),
        sections.curves(study),
        _first_gradients(gradients),
        *_translations(study),
    ]
    if inspection is not None:
        found += sections.of_run(inspection)
    return [section for section in found if section is not None]


def _answer(study: Study, notes: Sequence[str]) -> Section:
    compared = findings.comparisons(study)
    text = findings.answer(study, compared)
    shown = [findings.ranking(study, compared)]
    bootstrap = findings.bootstrap(study)
    if bootstrap is not None:
        shown.append(bootstrap)
    doubts = [*conditions.warnings(study), *notes]
    return Section('Answer', text, shown, doubts=doubts)


def _compared(study: Study) -> Section:
    shown = [conditions.facts(study)]
    published = scores.published(study)
    if published is not None:
        shown.append(published)
    text = []
    if study.sweep is not None:
        text.append(f'Source: {study.sweep.source}')
        text.append(f'What differs here: {study.sweep.differs}')
    return Section('What was compared', text, shown)


def _cost(study: Study) -> Section:
    charts = curves.against_cost(study)
    labels = {scores.COSTS[entry]: chart for entry, chart in charts.items()}
    choices: list[dict[str, Figure]] = [{**labels}] if labels else []
    return Section('Cost', [], [scores.costs(study)], choices)


def _scores(study: Study) -> Section:
    choices: list[dict[str, Figure]] = []
    for chart in curves.fields(study):
        choices.append({chart.x_label: chart})
    return Section('Scores', [], [scores.scores(study)], choices)


def _first_gradients(found: Sequence['FirstGradients']) -> Section | None:
    if not found:
        return None
    text = (
        "The norm of the gradient of each layer's last feed-forward matrix before the "
        'first step, on the first batch and without dropout: mean over seeds. An arm '
        'that begins as another does, and differs in its optimizer alone, is left out. '
        'For the last layer Xiong et al. (2020, theorem 1) bound it by the order of '
        'd √(ln d) with post-norm, whatever the depth L, and of d √(ln d / L) with '
        'pre-norm.'
    )
    charts = {figure.title: figure for figure in pictures.first_gradients(found)}
    table = pictures.last_gradients(found)
    return Section('Gradients at initialisation', [text], [table], [{**charts}])


def _translations(study: Study) -> list[Section]:
    runs = [run for arm in study.arms for run in arm.scored]
    sets = dict.fromkeys(name for run in runs for name in run.evaluations)
    where = Section('Where the score comes from')
    charts: dict[str, Figure] = {}
    read = None
    for name in sorted(sets, key=lambda name: name != study.measure.set):
        found = texts.translated(study, name)
        if found is None:
            continue
        shown = where.more
        if name == study.measure.set:
            read = found
            shown = where.tables
        by_length = texts.by_length(found, name)
        if by_length is not None:
            shown.append(by_length[0])
            charts[name] = by_length[1]
        shown += texts.by_phenomenon(study, found, name)
    if charts:
        where.choices.append(charts)
    sections = [where] if where.tables or where.more else []
    if read is not None:
        text = (
            f'Set {study.measure.set}; of each arm, its first seed. Marked: what the '
            'reference does not have, and what of the reference is missing.'
        )
        examples = texts.examples(read)
        sections.append(Section('Translations', [text], sentences=examples))
    return sections
