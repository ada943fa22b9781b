"""A page of sections: text, tables, figures; as one HTML file and as Markdown."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jinja2

from experiments.reports.display import interactive, tables, themes
from experiments.reports.display.charts import Figure
from experiments.reports.display.tables import Table
from experiments.reports.texts import Sentence

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


def html(title: str, sections: Sequence[Section], also: str = '') -> str:
    """The page, with all that it needs inside; every text is escaped.

    Args:
      title: of the page.
      sections: of at least one figure together.
      also: where the figures are for those who have no JavaScript.
    """
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
        also=also,
        figures={figure.name: interactive.draw(figure) for figure in figures},
        widths={figure.name: interactive.least_width(figure) for figure in figures},
        themes=themes.templates(),
        papers=themes.PAPER,
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
