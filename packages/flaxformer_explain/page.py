"""Writes a page that shows how a trained run translates standard input.

python -m flaxformer_explain.page --workdir=runs/wmt_small --out=page.html <in.en

The page shows the search, the alternatives of each token, the logit lens and the
attention for the first lines, as in `flaxformer_explain.demo`. It works offline.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('flaxformer_explain.page')

import dataclasses
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import storage
from experiments.command_line import console, flags, screen
from experiments.errors import UserError, warn

if TYPE_CHECKING:
    from experiments.evaluation.opened_run import OpenedRun
    from flaxformer_lite.decoding.strategies.base import Strategy

MOST_SENTENCES = 20


def main() -> None:
    args = _parser().parse_args()
    _check_out(args.out)
    # Import JAX only after the flags, so that errors in flags show at once.
    from experiments.config.decoding import decoding_options
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.runtime import compilation

    compilation.use_cache()
    with screen.on_stderr('opening the run') as shown:
        run = OpenedRun(args.workdir, args.trust_code, args.step, args.dtype)
        usual = run.config.evaluation
        settings = dataclasses.replace(usual, decode=args.decode or usual.decode)
        strategy = decoding_options(settings).strategy
        if strategy.draws:
            raise UserError(
                f'--decode={settings.decode} draws samples. Pass a deterministic '
                "strategy, such as 'beam(beams=4)'."
            )
        shown.begin('translating')
        sentences = _sentences()
        if not sentences:
            raise UserError('standard input has no text. Pass a sentence per line.')
        _write(args.out, run, sentences, strategy)
    print(f'saved as {args.out}')


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir', type=Path, required=True, help='directory of the run'
    )
    parser.add_argument(
        '--out',
        type=Path,
        required=True,
        metavar='FILE',
        help=f'file of the page about the first {MOST_SENTENCES} lines',
    )
    parser.add_argument('--decode', default='', help=flags.DECODE_HELP)
    flags.add_step(parser)
    flags.add_dtype(parser)
    flags.add_trust_code(parser)
    return parser


def _check_out(path: Path) -> None:
    if path.is_dir():
        raise UserError(f'--out={path}: is a directory. Pass a file.')
    reason = storage.obstacle(path.parent)
    if reason:
        raise UserError(
            f'--out={path}: its folder cannot be written, {reason}. Pass another.'
        )


def _sentences() -> list[str]:
    """Returns the first lines of standard input that aren't blank."""
    windows = console.line_windows(sys.stdin.fileno(), MOST_SENTENCES)
    lines = filter(str.strip, itertools.chain.from_iterable(windows))
    return list(itertools.islice(lines, MOST_SENTENCES))


def _write(
    path: Path, run: 'OpenedRun', sentences: Sequence[str], strategy: 'Strategy'
) -> None:
    from flaxformer_explain.browser import page
    from flaxformer_explain.explainer import Explainer

    explainer = Explainer(run)
    answers = []
    for text in sentences:
        try:
            answers.append({'text': text, **explainer.explain(text, strategy)})
        except UserError as error:
            warn(f'skipped {text[:40]!r}… ({error})')
    storage.write_output(path, page.html([explainer], answers=answers))
