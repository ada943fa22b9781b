"""Puts a report together: index.html, report.md, tables and figures, in one folder."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from experiments.reports import conditions, findings, scores, texts
from experiments.reports.arms import Study
from experiments.reports.display import curves, interactive, paper, tables
from experiments.reports.display.charts import Figure
from experiments.reports.display.tables import Table
from experiments.reports.inside import pictures
from experiments.reports.texts import Sentence
from experiments.storage import files

if TYPE_CHECKING:
    from experiments.reports.inside.gradients import FirstGradients
    from experiments.reports.inside.heads import Inspection

TEMPLATE = Path(__file__).with_name('page.html.jinja')


@dataclasses.dataclass
class Section:
    """A part of the report.

    Attributes:
      title: its heading.
      text: paragraphs.
      tables: below them.
      choices: groups of figures of which one is shown at a time: a label for each.
      sentences: translations to read, by heading.
      doubts: what a reader must know before believing the rest.
      more: further tables, which a page shows when asked.
    """

    title: str
    text: list[str] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)
    choices: list[dict[str, Figure]] = dataclasses.field(default_factory=list)
    sentences: dict[str, list[Sentence]] = dataclasses.field(default_factory=dict)
    doubts: list[str] = dataclasses.field(default_factory=list)
    more: list[Table] = dataclasses.field(default_factory=list)

    def figures(self) -> list[Figure]:
        return [figure for choice in self.choices for figure in choice.values()]


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
    sections = _sections(study, inspection, gradients, notes)
    for section in sections:
        for table in [*section.tables, *section.more]:
            files.write(folder / 'tables' / f'{table.name}.csv', tables.as_csv(table))
            files.write(folder / 'tables' / f'{table.name}.tex', tables.latex(table))
        for figure in section.figures():
            for form, data in paper.draw(figure).items():
                files.write(folder / 'figures' / f'{figure.name}.{form}', data)
    files.write(folder / 'report.md', markdown(_title(study), sections))
    files.write(folder / 'index.html', html(_title(study), sections))


def _title(study: Study) -> str:
    if study.question is not None:
        return study.question.text
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
        _curves(study),
        _first_gradients(gradients),
        *_translations(study),
        *_attention(inspection),
    ]
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
    if study.question is not None:
        text.append(f'Source: {study.question.source}')
        text.append(f'What differs here: {study.question.differs}')
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


def _curves(study: Study) -> Section | None:
    choices: list[dict[str, Figure]] = []
    for charts in curves.curves(study).values():
        choices.append({f'against {axis}': chart for axis, chart in charts.items()})
    if not choices:
        return None
    text = (
        'A line is the mean over seeds at the steps that all of an arm have; the band '
        'goes from the lowest seed to the highest. Tokens and time of a row are its '
        "share of the run's, by steps, where the row does not tell them."
    )
    return Section('Curves', [text], choices=choices)


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


def _attention(found: 'Inspection | None') -> list[Section]:
    if found is None:
        return []
    text = [f'Run {found.path}, checkpoint of step {", ".join(map(str, found.steps))}.']
    if found.note:
        text.append(f'The weights cannot be shown: {found.note}.')
    sections = []
    shown: dict[str, Figure] = {}
    for number, sentence in enumerate(found.sentences, 1):
        for figure in pictures.weights(sentence, number):
            shown[f'{number}. {sentence.source} · {figure.title}'] = figure
    if shown:
        text.append(
            'The weights are those of the run that writes its own translation. Choose '
            'a sentence, point at a weight, and click on a head to see it large.'
        )
    sections.append(Section('Attention', text, choices=[shown] if shown else []))
    heads = Section('Heads')
    important = pictures.importance(found)
    if important is not None:
        heads.choices.append({important.title: important})
        heads.tables.append(pictures.table(found))
    statistics = {figure.title: figure for figure in pictures.statistics(found)}
    if statistics:
        heads.choices.append({**statistics})
    return [*sections, heads] if heads.choices else sections


def html(title: str, sections: Sequence[Section]) -> str:
    """The page, with all that it needs inside; every text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [figure for section in sections for figure in section.figures()]
    return environment.get_template(TEMPLATE.name).render(
        title=title,
        sections=sections,
        figures={figure.name: interactive.draw(figure) for figure in figures},
        template=interactive.template(),
        library=interactive.library(),
    )


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The same as Markdown, with the figures beside it."""
    escape = tables.escape_markdown
    blocks = [f'# {escape(title)}']
    for section in sections:
        blocks.append(f'## {escape(section.title)}')
        blocks += map(escape, section.text)
        if section.doubts:
            blocks.append('\n'.join(f'- {escape(line)}' for line in section.doubts))
        for table in [*section.tables, *section.more]:
            blocks.append(f'### {escape(table.title)}')
            blocks.append(tables.markdown(table))
            blocks += [escape(table.note)] if table.note else []
        for figure in section.figures():
            blocks.append(f'![{escape(figure.title)}](figures/{figure.name}.svg)')
            blocks += [escape(figure.note)] if figure.note else []
        for heading, sentences in section.sentences.items():
            blocks.append(f'### {escape(heading)}')
            blocks += [_sentence_markdown(sentence) for sentence in sentences]
    return '\n\n'.join(blocks) + '\n'


def _sentence_markdown(sentence: Sentence) -> str:
    escape = tables.escape_markdown
    lines = [f'- {escape(sentence.source)}', f'  - *{escape(sentence.reference)}*']
    for arm, parts in sentence.translations.items():
        words = []
        for part in parts:
            form = {'': '{}', 'added': '**{}**', 'missing': '~~{}~~'}[part.mark]
            words.append(form.format(escape(part.text)))
        lines.append(f'  - {escape(arm)}: {" ".join(words)}')
    return '\n'.join(lines)
