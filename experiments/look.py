"""Shows what a trained run does inside when it translates a sentence, as one page.

python -m experiments.look --workdir=runs/wmt_small --text='My box.' --out=page.html

--text may be repeated. The page works from a file and offline: attention of every layer
and head, alignments, what each head is worth, and the curves of training.
"""

if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.look')

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import storage
from experiments.command_line import flags, screen
from experiments.errors import UserError

if TYPE_CHECKING:
    from experiments.reports.looking import Look

NEEDED = ('scipy', 'altair', 'vl_convert', 'jinja2')
_ENDINGS = ('.html', '.htm')


def main() -> None:
    args = _parser().parse_args()
    flags.require_packages('experiments.look', NEEDED, 'report')
    targets = _targets(args)
    _check_out(args.out)
    with screen.on_stderr('opening the run') as shown:
        # These import JAX, so they come after the flags: a mistake is answered at once.
        from experiments.reports import looking
        from experiments.runtime import memory

        memory.keep_freed()
        run = looking.open_run(args.workdir, args.pairs)
        run.on_progress = shown.count
        for text in args.text:
            run.check_text(text, '--text')
        for target in filter(None, targets):
            run.check_text(target, '--target')
        shown.begin('looking inside')
        storage.write(args.out, page_of_run(run, args.text, targets))
    print(args.out)


def page_of_run(run: 'Look', sources: Sequence[str], targets: Sequence[str]) -> str:
    """The page of a run and of sentences that it translates.

    Args:
      run: of which it is.
      sources: the sentences.
      targets: what the decoder writes of each, for its attention; empty: the run's own
        translation.

    Raises:
      UserError: a sentence or a file of the run cannot be read.
    """
    from experiments.reports import findings, page, pictures, texts

    own = run.translate_all(sources)
    translations = page.Section('Translations')
    if any(targets):
        translations.text.append(
            'Attention and alignment are of the given target. Marked in the own '
            'translation: what the target does not have, and what of it is missing.'
        )
    sentences = []
    for source, target, found in zip(sources, targets, own, strict=True):
        shown = {'own translation': texts.marked(found, target or found)}
        if target:
            shown['given target'] = texts.marked(target, target)
        sentences.append(texts.Sentence(source, '', shown))
    translations.sentences[''] = sentences
    written = [target or found for target, found in zip(targets, own, strict=True)]
    study = run.study()
    sections = [
        translations,
        *pictures.sections(run.inspect(list(zip(sources, written, strict=True)))),
        page.Section('Scores', tables=[findings.scores(study)]),
        *page.of_training(study),
    ]
    return page.html(str(run.path), sections)


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument('--workdir', type=Path, required=True, help='of the run')
    parser.add_argument(
        '--text', action='append', required=True, help='a sentence to translate'
    )
    parser.add_argument(
        '--target',
        action='append',
        help='whose writing is shown instead of the own translation; one for each '
        '--text, empty for the own',
    )
    parser.add_argument('--out', type=Path, required=True, help='the page to write')
    parser.add_argument(
        '--pairs',
        type=flags.whole_number,
        default=100,
        metavar='N',
        help='of the evaluation set, for the figures of heads; 0 for none',
    )
    return parser


def _targets(args: Any) -> list[str]:
    """What the decoder is to write of each text; empty for its own translation."""
    if args.target is None:
        return [''] * len(args.text)
    if len(args.target) != len(args.text):
        raise UserError(
            f'--target is given {len(args.target)} times and --text {len(args.text)} '
            "times: give one for each, --target='' for the run's own translation"
        )
    return [target if target.strip() else '' for target in args.target]


def _check_out(path: Path) -> None:
    """Refuses a page that cannot be written, before anything is computed."""
    if path.suffix.lower() not in _ENDINGS:
        raise UserError(f'--out={path} must end in .html: it is a page')
    if storage.exists(path) and not path.is_file():
        raise UserError(f'--out={path} is not a file: give another')
    obstacle = storage.obstacle(path.parent)
    if obstacle:
        raise UserError(f'--out={path} cannot be written: {obstacle}')
