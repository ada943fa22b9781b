"""Reports as a page and as files."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import vl_convert

from experiments import storage
from experiments.command_line import console
from experiments.reports import (
    conditions,
    designs,
    equal_time,
    figures,
    findings,
    forecasts,
    json_answer,
    tables,
    texts,
)
from experiments.reports.arms import Study
from experiments.reports.figures import Figure
from experiments.reports.tables import Table
from experiments.reports.texts import Sentence
from experiments.sweeps.analysis import Contrast
from experiments.sweeps.schema import Sweep

_EMBED = 'window.vegaEmbed = vegaEmbed;'  # called by the page's script
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=jinja2.select_autoescape(['html.jinja']),
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters['text'] = tables.escape_markdown
_TEMPLATES.filters['table'] = tables.markdown


class ReportSection(NamedTuple):
    """A section of the report, with figures above text and tables."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    sentences: Sequence[Sentence] = ()
    warnings: Sequence[str] = ()


def write(
    study: Study, folder: Path, notes: Sequence[str] = (), against: str = 'step'
) -> None:
    """Writes a report to a folder, which needn't exist.

    Args:
      notes: Further warnings, such as runs that can't be read.
      against: The x-axis of curves, one of `figures.AXES`.
    """
    sections = _nonempty(
        _answer_section(study, notes),
        _setup(study),
        _tuning(study),
        _costs(study),
        ReportSection('Scores', tables=[findings.scores(study)]),
        _curves(study, against),
        *translations(study),
    )
    files = section_files(sections)
    files['tables/runs.csv'] = tables.as_csv(findings.runs(study))
    files[findings.ANSWER] = json_answer.text(study, notes) + '\n'
    number = console.count_noun(len(study.arms), 'arm')
    title = study.sweep.question or f'{number} by {study.measure}'
    files['report.md'] = markdown(title, sections)
    files['index.html'] = html(title, sections)
    write_files(files, folder)


def section_files(sections: Sequence[ReportSection]) -> dict[str, str | bytes]:
    """Returns the tables and figures of sections, by path within a report."""
    files: dict[str, str | bytes] = {}
    for section in sections:
        for table in section.tables:
            files[f'tables/{table.name}.csv'] = tables.as_csv(table)
            files[f'tables/{table.name}.tex'] = tables.latex(table)
        for figure in section.figures:
            for form, data in figures.files(figure).items():
                files[f'figures/{figure.name}.{form}'] = data
    return files


def write_files(files: Mapping[str, str | bytes], folder: Path) -> None:
    for name, data in files.items():
        storage.write(folder / name, data)


def _nonempty(*found: Any) -> list[Any]:
    return [part for part in found if part is not None]


def _answer_section(study: Study, notes: Sequence[str]) -> ReportSection:
    contrasts = findings.from_base(study)
    declared = findings.declared_contrasts(study)
    shown_contrasts = declared or list(contrasts.values())
    of_arms = [findings.arms(study), findings.exploratory(study, contrasts)]
    return ReportSection(
        'Answer',
        [*_terms(study, shown_contrasts), *findings.answer(study, declared)],
        _nonempty(
            findings.answer_table(study, contrasts, declared),
            *findings.further_answers(study),
            *(of_arms if declared else ()),
            findings.over_sentences(study, shown_contrasts),
            equal_time.table(study),
            forecasts.table(study),
            designs.effects(study),
            designs.across_data(study),
        ),
        _nonempty(_forest(study, shown_contrasts), figures.scores_over_sizes(study)),
        warnings=[*designs.warnings(study), *conditions.warnings(study), *notes],
    )


def _terms(study: Study, contrasts: Sequence[Contrast]) -> list[str]:
    """Returns the unit and direction of the measure, further ones, and margins."""
    measure = study.measure
    score = figures.axis_title(measure.score, measure.set)
    lines = [f'Measure: {score}; {measure.direction}.']
    if study.further:
        others = ', '.join(map(str, study.further))
        lines[0] += f' It decides. Further measures: {others}.'
    by_base = {x.base: x.margin for x in contrasts if x.margin is not None}
    if by_base:
        lines.append(
            f'Equivalence margin: {_margin(study.sweep, by_base)}. An arm is '
            'equivalent if its whole interval lies within.'
        )
    return lines


def _margin(sweep: Sweep, by_base: Mapping[str, float]) -> str:
    if not sweep.margin_share:
        return f'± {console.cell(sweep.margin)}'
    numbers = [f'± {console.cell(x)} for {base}' for base, x in by_base.items()]
    return f'{sweep.margin_text} of each base, {", ".join(numbers)}'


def _forest(study: Study, contrasts: Sequence[Contrast]) -> Figure | None:
    score = figures.axis_title(study.measure.score, study.measure.set)
    factor = study.sweep.factor_of_data
    if factor is None:
        return figures.forest(contrasts, score)
    data = {arm: levels[factor] for arm, levels in study.sweep.levels.items()}
    return figures.forest(contrasts, score, study.sweep.without_factor(factor), data)


def _setup(study: Study) -> ReportSection:
    text = []
    if study.sweep.source:
        text.append(f'Source: {study.sweep.source}')
    if study.sweep.differs:
        text.append(f'Differences from the source: {study.sweep.differs}')
    shown = _nonempty(
        conditions.facts(study),
        findings.departures(study),
        findings.published(study),
    )
    return ReportSection('Setup', text, shown)


def _tuning(study: Study) -> ReportSection | None:
    tried = designs.tried(study)
    if not tried:
        return None
    text = 'All arms tried the same number of values. Reported runs use other seeds.'
    shown = [designs.trials(study, tried), designs.expected_best(study, tried)]
    curve = designs.tuning_curve(study, tried)
    return ReportSection('Tuning', [text], shown, _nonempty(curve))


def _costs(study: Study) -> ReportSection:
    costs = _nonempty(findings.costs(study), designs.time_to_target(study))
    spreads = {
        arm.name: (arm.cost('training_flops'), arm.spread(study.measure))
        for arm in study.arms
    }
    drawn = _nonempty(figures.score_by_cost(spreads, study.measure))
    return ReportSection('Cost', tables=costs, figures=drawn)


def _curves(study: Study, against: str) -> ReportSection | None:
    drawn = figures.curves(study, against)
    if not drawn:
        return None
    text = (
        'A line is the mean over seeds, at steps that all seeds of an arm have. '
        'Missing token counts and times are interpolated from the totals of the run.'
    )
    return ReportSection('Training curves', [text], figures=drawn)


def translations(study: Study) -> list[ReportSection]:
    translated = texts.find_translations(study)
    if translated is None:
        return []
    sentences = texts.differing_sentences(translated)
    text = f"Sentences of {translated.name}, with each arm's first seed."
    if texts.differ(sentences[0]):
        text = (
            f'Sentences of {translated.name} that the arms translate differently, with '
            "each arm's first seed."
        )
    elif len(translated.outputs) > 1:
        text += ' All arms translate all sentences alike.'
    found = [ReportSection('Translations', [text], sentences=sentences)]
    by_group = texts.by_group(translated)
    if by_group is not None:
        found.insert(0, ReportSection('Scores by group', tables=[by_group]))
    return found


def html(title: str, sections: Sequence[ReportSection]) -> str:
    """Renders a self-contained page; every text is escaped."""
    drawn = [figure for section in sections for figure in section.figures]
    template = _TEMPLATES.get_template('page.html.jinja')
    return template.render(
        title=title,
        sections=sections,
        figures={figure.name: figure.spec() for figure in drawn},
        theme=figures.THEME,
        library=_library(),
    )


@functools.cache
def _library() -> str:
    """Returns the script that draws figures, which takes seconds to bundle."""
    return vl_convert.javascript_bundle(_EMBED)


def markdown(title: str, sections: Sequence[ReportSection]) -> str:
    """Renders Markdown with separate figures; every text is escaped."""
    template = _TEMPLATES.get_template('page.md.jinja')
    return template.render(title=title, sections=sections)
