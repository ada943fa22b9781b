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
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=jinja2.select_autoescape(['html.jinja']),
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters['text'] = tables.escape_markdown
_TEMPLATES.filters['table'] = tables.markdown


@dataclasses.dataclass
class Section:
    """A part of the report.

    Attributes:
      title: its heading.
      text: paragraphs.
      tables: of numbers.
      figures: above the text and the tables.
      sentences: translations to read.
      doubts: what a reader must know before believing the rest.
    """

    title: str
    text: list[str] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)
    figures: list[Figure] = dataclasses.field(default_factory=list)
    sentences: list[Sentence] = dataclasses.field(default_factory=list)
    doubts: list[str] = dataclasses.field(default_factory=list)


def write(
    study: Study, folder: Path, notes: Sequence[str] = (), against: str = 'step'
) -> None:
    """Writes a report.

    Args:
      study: what is compared.
      folder: is made where it is not there.
      notes: what else a reader must know, such as runs that cannot be read.
      against: what curves are drawn against, of `figures.AXES`.

    Raises:
      UserError: a file cannot be written, or translations cannot be read.
    """
    sections = [
        _answer(study, notes),
        _compared(study),
        *_tuning(study),
        _costs(study),
        Section('Scores', tables=[findings.scores(study)]),
        *_curves(study, against),
        *_translations(study),
    ]
    for section in sections:
        for table in section.tables:
            storage.write(folder / f'tables/{table.name}.csv', tables.as_csv(table))
            storage.write(folder / f'tables/{table.name}.tex', tables.latex(table))
        for figure in section.figures:
            for form, data in figures.files(figure).items():
                storage.write(folder / f'figures/{figure.name}.{form}', data)
    storage.write(folder / 'tables/runs.csv', tables.as_csv(findings.runs(study)))
    title = f'{len(study.arms)} arms by {study.measure}'
    title = study.sweep.question if study.sweep else title
    storage.write(folder / 'report.md', markdown(title, sections))
    storage.write(folder / 'index.html', html(title, sections))


def _answer(study: Study, notes: Sequence[str]) -> Section:
    contrasts = findings.from_base(study)
    declared = findings.declared(study)
    section = Section('Answer', findings.answer(study, declared))
    section.tables += filter(
        None,
        [
            findings.ranking(study, contrasts),
            designs.effects(study),
            designs.across_data(study),
            findings.over_sentences(study, contrasts),
        ],
    )
    forest = figures.forest(declared or list(contrasts.values()), str(study.measure))
    section.figures += filter(None, [forest, figures.scores_over_sizes(study)])
    section.doubts += designs.doubts(study)
    section.doubts += conditions.warnings(study)
    section.doubts += notes
    return section


def _compared(study: Study) -> Section:
    section = Section('What was compared', tables=[conditions.facts(study)])
    section.tables += filter(None, [findings.published(study)])
    if study.sweep is not None:
        section.text += [
            f'Source: {study.sweep.source}',
            f'What differs here: {study.sweep.differs}',
        ]
    return section


def _tuning(study: Study) -> list[Section]:
    """What each arm tried before; none where nothing was tuned."""
    tried = designs.tried(study)
    if not tried:
        return []
    text = (
        'All arms tried equally many values; what is reported are runs of other seeds.'
    )
    shown = [designs.trials(study, tried), designs.expected_best(study, tried)]
    section = Section('Tuning', [text], shown)
    section.figures += filter(None, [designs.tuning_curve(study, tried)])
    return [section]


def _costs(study: Study) -> Section:
    section = Section('Cost', tables=[findings.costs(study)])
    section.tables += filter(None, [designs.time_to_target(study)])
    section.figures += filter(None, [figures.score_by_cost(study)])
    return section


def _curves(study: Study, against: str) -> list[Section]:
    """The curves of training; none where no run has any."""
    drawn = figures.curves(study, against)
    text = (
        'A line is the mean over seeds at the steps that all of an arm have. Tokens '
        "and time that a row does not tell are its share of the run's, by steps."
    )
    return [Section('Curves', [text], figures=drawn)] if drawn else []


def _translations(study: Study) -> list[Section]:
    """Scores by length and phenomenon, and sentences, of the set that decides."""
    translated = texts.translated(study)
    if translated is None:
        return []
    by_group = texts.by_group(translated)
    text = (
        f'Set {translated.name}: sentences that the arms translate differently, if '
        'any; of each arm, its first seed.'
    )
    sentences = texts.differing(translated)
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
    drawn = {
        figure.name: figure.spec() for section in sections for figure in section.figures
    }
    return _TEMPLATES.get_template('page.html.jinja').render(
        title=title,
        sections=sections,
        figures=drawn,
        theme=figures.THEME,
        library=vl_convert.javascript_bundle(_EMBED),
    )


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The same as Markdown, with the figures beside it; every text is escaped."""
    template = _TEMPLATES.get_template('page.md.jinja')
    return template.render(title=title, sections=sections)
