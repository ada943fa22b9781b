"""A report: sections of text, tables and figures, as a page and as files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jinja2
import vl_convert

from experiments import storage
from experiments.reports import (
    conditions,
    designs,
    figures,
    findings,
    tables,
    texts,
)
from experiments.reports.arms import Study
from experiments.reports.figures import Figure
from experiments.reports.tables import Table
from experiments.reports.texts import Sentence

_EMBED = 'window.vegaEmbed = vegaEmbed;'  # the page's script calls it
TEMPLATE = Path(__file__).with_name('page.html.jinja')


@dataclasses.dataclass
class Section:
    """A part of the report.

    Attributes:
      title: its heading.
      text: paragraphs.
      tables: below the figures.
      choices: groups of figures of which one is shown at a time: a label for each.
      sentences: translations to read, by heading.
      doubts: what a reader must know before believing the rest.
    """

    title: str
    text: list[str] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)
    choices: list[dict[str, Figure]] = dataclasses.field(default_factory=list)
    sentences: dict[str, list[Sentence]] = dataclasses.field(default_factory=dict)
    doubts: list[str] = dataclasses.field(default_factory=list)

    def figures(self) -> list[Figure]:
        return [figure for choice in self.choices for figure in choice.values()]


def write(
    study: Study, folder: Path, inside: Sequence[Section], notes: Sequence[str]
) -> None:
    """Writes a report.

    Args:
      study: what is compared.
      folder: is made where it is not there.
      inside: sections of a run that was looked into.
      notes: what else a reader must know, such as runs that cannot be read.

    Raises:
      UserError: a file cannot be written, or translations cannot be read.
    """
    sections = [
        _answer(study, notes),
        _compared(study),
        *_tuning(study),
        *_costs_and_scores(study),
        *of_training(study),
        *_translations(study),
        *inside,
    ]
    for section in sections:
        for table in section.tables:
            storage.write(folder / f'tables/{table.name}.csv', tables.as_csv(table))
            storage.write(folder / f'tables/{table.name}.tex', tables.latex(table))
        for figure in section.figures():
            for form, data in figures.files(figure).items():
                storage.write(folder / 'figures' / f'{figure.name}.{form}', data)
    storage.write(folder / 'tables/runs.csv', tables.as_csv(findings.runs(study)))
    title = f'{len(study.arms)} arms by {study.measure}'
    title = study.sweep.question if study.sweep else title
    storage.write(folder / 'report.md', markdown(title, sections))
    storage.write(folder / 'index.html', html(title, sections))


def _answer(study: Study, notes: Sequence[str]) -> Section:
    compared = findings.comparisons(study)
    shown = [
        findings.ranking(study, compared),
        designs.effects(study),
        designs.across_data(study),
        findings.over_sentences(study),
    ]
    declared = findings.declared(study)
    of_base = [x.contrast for x in compared if x.contrast is not None]
    forest = figures.forest(declared or of_base, str(study.measure))
    return Section(
        'Answer',
        findings.answer(study, compared, declared),
        [table for table in shown if table is not None],
        [] if forest is None else [{forest.title: forest}],
        doubts=[
            *designs.doubts(study, designs.tried(study)),
            *conditions.warnings(study),
            *notes,
        ],
    )


def _tuning(study: Study) -> list[Section]:
    """What each arm tried before; none where nothing was tuned."""
    found = designs.tried(study)
    if not found:
        return []
    of_trials, drawn = designs.tuning(study, found)
    choices = [{figure.title: figure} for figure in drawn]
    text = (
        'All arms tried equally many values; what is reported are runs of other seeds.'
    )
    return [Section('Tuning', [text], of_trials, choices)]


def _compared(study: Study) -> Section:
    section = Section('What was compared', tables=[conditions.facts(study)])
    published = findings.published(study)
    if published is not None:
        section.tables.append(published)
    if study.sweep is not None:
        section.text.append(f'Source: {study.sweep.source}')
        section.text.append(f'What differs here: {study.sweep.differs}')
    return section


def of_training(study: Study) -> list[Section]:
    """The curves of training as one section; none where no run has any.

    Each curve is shown against steps, tokens or time, one at a time.
    """
    choices = []
    for by_axis in figures.curves(study).values():
        choices.append({f'against {axis}': figure for axis, figure in by_axis.items()})
    text = (
        'A line is the mean over seeds at the steps that all of an arm have; the band '
        'goes from the lowest seed to the highest. Tokens and time of a row are its '
        "share of the run's, by steps, where the row does not tell them."
    )
    return [Section('Curves', [text], choices=choices)] if choices else []


def _costs_and_scores(study: Study) -> list[Section]:
    shown = [findings.costs(study), designs.time_to_target(study)]
    cost = Section('Cost', tables=[table for table in shown if table is not None])
    figure = figures.score_by_cost(study)
    if figure is not None:
        cost.choices.append({figure.title: figure})
    return [cost, Section('Scores', tables=[findings.scores(study)])]


def _translations(study: Study) -> list[Section]:
    """Scores by length and phenomenon, and sentences, of the set that decides."""
    name = study.measure.set
    translated = texts.translated(study, name)
    if translated is None:
        return []
    by_group = texts.by_group(translated, name)
    text = (
        f'Set {name}; of each arm, its first seed. Marked: what the reference '
        'does not have, and what of the reference is missing.'
    )
    sentences = texts.examples(translated)
    found = [Section('Translations', [text], sentences=sentences)]
    if by_group is not None:
        found.insert(0, Section('Where the score comes from', tables=[by_group]))
    return found


def html(title: str, sections: Sequence[Section]) -> str:
    """The page, with all that it needs inside; every text is escaped.

    Args:
      title: of the page.
      sections: of at least one figure together.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = {}
    for section in sections:
        for figure in section.figures():
            drawn[figure.name] = {'title': figure.title, 'spec': figure.spec()}
    return environment.get_template(TEMPLATE.name).render(
        title=title,
        sections=sections,
        figures=drawn,
        theme=figures.THEME,
        library=vl_convert.javascript_bundle(_EMBED),
    )


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The same as Markdown, with the figures beside it.

    Args:
      title: of the report.
      sections: as `html` has them; every text is escaped.
    """
    escape = tables.escape_markdown
    blocks = [f'# {escape(title)}']
    for section in sections:
        blocks.append(f'## {escape(section.title)}')
        blocks += map(escape, section.text)
        if section.doubts:
            blocks.append('\n'.join(f'- {escape(line)}' for line in section.doubts))
        for figure in section.figures():
            blocks.append(f'![{escape(figure.title)}](figures/{figure.name}.svg)')
            blocks.append(escape(figure.note))
        for table in section.tables:
            blocks.append(f'### {escape(table.title)}')
            blocks.append(tables.markdown(table))
            blocks.append(escape(table.note))
        for heading, sentences in section.sentences.items():
            blocks.append(f'### {escape(heading)}')
            blocks += map(_sentence_markdown, sentences)
    return '\n\n'.join(filter(None, blocks)) + '\n'


def _sentence_markdown(sentence: Sentence) -> str:
    escape = tables.escape_markdown
    lines = [f'- {escape(sentence.source)}', f'  - *{escape(sentence.reference)}*']
    for arm, parts in sentence.translations.items():
        words = [part.text for part in parts if part.mark != 'missing']
        lines.append(f'  - {escape(arm)}: {escape(" ".join(words))}')
    return '\n'.join(lines)
