"""Shows what a trained run does inside when it translates a sentence, as one page.

python -m experiments.look --workdir=runs/wmt_small --text='My box.' --out=page.html

--text may be repeated. The page works from a file and offline: translations, the
attention of every layer and head that writes them, and alignments.
"""

if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.look')

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import storage
from experiments.command_line import flags, screen
from experiments.errors import UserError

if TYPE_CHECKING:
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.reports.figures import Figure
    from experiments.reports.page import Section

_MOST_TOKENS = 128  # of a text whose attention is drawn
_WEIGHTS = (
    'An attention that does not hold its weights, such as the blockwise one, is not '
    'shown. Point at a weight, and click on a head to see it large.'
)
_ALIGNMENT = (
    'Each row is a piece of the translation, at the step that writes it: the mean of '
    'all heads. This is no word alignment in the strict sense: weights need not show '
    'what an output follows from (Jain and Wallace 2019), and layers differ: in Garg '
    'et al. (2019) the last but one of six came nearest to word alignments.'
)


def main() -> None:
    args = _parser().parse_args()
    flags.require_packages('experiments.look', flags.OF_REPORTS, 'report')
    obstacle = storage.obstacle(args.out.parent)
    if obstacle:
        raise UserError(f'--out={args.out} cannot be written: {obstacle}')
    with screen.on_stderr('opening the run') as shown:
        # These import JAX, so they come after the flags: a mistake is answered at once.
        from experiments.evaluation.opened_run import OpenedRun
        from experiments.reports import page
        from experiments.runtime import memory

        memory.keep_freed()
        run = OpenedRun(args.workdir)
        for text in args.text:
            _check_text(run, text)
        shown.begin('looking inside')
        translations = run.translate(args.text)
        sections = [
            _of_sentence(run, text, translation, f'Sentence {number}')
            for number, (text, translation) in enumerate(
                zip(args.text, translations, strict=True), 1
            )
        ]
        steps = ', '.join(map(str, run.mean.steps))
        title = f'{args.workdir}, checkpoint of step {steps}'
        storage.write(args.out, page.html(title, sections))
    print(args.out)


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument('--workdir', type=Path, required=True, help='of the run')
    parser.add_argument(
        '--text', action='append', required=True, help='a sentence to translate'
    )
    parser.add_argument('--out', type=Path, required=True, help='the page to write')
    return parser


def _check_text(run: 'OpenedRun', text: str) -> None:
    """Refuses what is no sentence, or too long to be shown."""
    if not text.strip():
        raise UserError(f'--text={text!r} is blank: give a sentence')
    count = len(run.tokenizer.encode([text])[0]) + 1
    most = min(_MOST_TOKENS, run.model.max_length or _MOST_TOKENS)
    if count > most:
        raise UserError(
            f'--text={text[:60]!r} has {count} tokens with its end, more than the '
            f'{most} that can be shown: give a shorter one'
        )


def _of_sentence(
    run: 'OpenedRun', source: str, translation: str, title: str
) -> 'Section':
    """A translation, and the attention that writes it."""
    from experiments.reports import looking, page

    drawn = _figures(title, looking.attention(run, source, translation), _WEIGHTS)
    alignments = looking.alignment(run, source, translation)
    drawn += _figures(f'{title}, alignment', alignments, _ALIGNMENT)
    return page.Section(title, [source, translation], figures=drawn)


def _figures(title: str, charts: Mapping[str, Any], note: str) -> list['Figure']:
    """Charts as figures; the note stands below the last."""
    from experiments.reports.figures import Figure

    found = []
    for name, chart in charts.items():
        whole = f'{title}: {name}'
        found.append(Figure(re.sub(r'\W+', '_', whole), whole, chart))
    if found:
        found[-1] = found[-1]._replace(note=note)
    return found
