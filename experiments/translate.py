"""Translates standard input with a trained run, line by line, in order.

python -m experiments.translate --workdir=runs/wmt_small <in.en >out.de

Blank lines stay blank. A single line is answered at once.

Several --workdir form an ensemble of runs with the same tokenizer. Each step averages
their token probabilities. The first run's config sets the decoding.

--html writes a page about the first lines with search, alternatives and attention, as
in experiments.demo.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.translate')

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import storage
from experiments.command_line import console, flags, screen
from experiments.config import schema
from experiments.errors import UserError, warn
from experiments.runtime import memory

if TYPE_CHECKING:
    from experiments.config.search import Decoding
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.evaluation.translator import Hypothesis
    from flaxformer_lite.decoding.strategies.base import Strategy

_MOST_SENTENCES = 20  # on a page


def main() -> None:
    args = _parser().parse_args()
    if args.html:
        _check_html(args.html)
    schema.check_value('--seed', schema.fields()['train.seed'].kind, args.seed)

    # Import JAX only after the flags, so that errors in flags show at once.
    from experiments.config import search
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.evaluation.translator import LONGEST, Translator
    from experiments.runtime import compilation

    memory.keep_freed()
    compilation.use_cache()
    with screen.on_stderr('opening the run') as shown:
        runs = [
            OpenedRun(x, args.trust_code, args.step, args.dtype) for x in args.workdir
        ]
        _check_tokenizers(runs)
        usual = runs[0].config.evaluation
        settings = dataclasses.replace(usual, decode=args.decode or usual.decode)
        decoding = search.make(settings)
        _check_decoding(args, decoding)
        model, variables = _model_of(runs)
        translator = Translator(
            model,
            runs[0].tokenizer,
            decoding,
            seed=args.seed,
            n_best=args.n_best,
            longest=max(LONGEST, settings.batch_tokens),
        )
        shown.begin('translating')
        if sys.stdin.isatty():
            shown.close()
        first = _translate_input(args, functools.partial(translator, variables), shown)
        if args.html:
            shown.begin('writing the page')
            _write_page(args.html, runs[0], first, decoding.strategy)


def _translate_input(
    args: Any, translate: Callable[..., Any], shown: screen.Screen
) -> list[str]:
    """Prints the translations of standard input. Returns the sentences for a page."""
    from experiments.evaluation.translator import WINDOW

    number = short = 0
    sentences: list[str] = []
    for texts in console.line_windows(sys.stdin.fileno(), WINDOW):
        found = translate(texts, number, lambda done: shown.count(done, None, 'lines'))
        for text, hypotheses in zip(texts, found, strict=True):
            if sys.stdout.isatty():
                shown.close()
            _show(hypotheses, args.n_best, args.scores)
            short += bool(text.strip()) and len(hypotheses) < args.n_best
        # An interactive caller may wait for this answer before it sends a line.
        sys.stdout.flush()
        number += len(texts)
        room = _MOST_SENTENCES - len(sentences)
        sentences += itertools.islice(filter(str.strip, texts), room)
    if short:
        warn(
            f'--n_best={args.n_best}: {short:,} lines have fewer distinct '
            "translations. Use more beams: --decode='beam(beams=…)'."
        )
    return sentences


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir',
        type=Path,
        required=True,
        action='append',
        help='directory of a run; repeat for an ensemble',
    )
    parser.add_argument(
        '--n_best',
        type=int,
        default=1,
        help='translations per line; missing ones are blank lines',
    )
    parser.add_argument(
        '--scores', action='store_true', help='print score<TAB>translation'
    )
    parser.add_argument('--decode', default='', help=flags.DECODE_HELP)
    parser.add_argument(
        '--html',
        type=Path,
        metavar='FILE',
        help=f'also write a page with the search for the first {_MOST_SENTENCES} lines',
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of sampling')
    flags.add_step(parser)
    flags.add_dtype(parser)
    flags.add_trust_code(parser)
    return parser


def _check_html(path: Path) -> None:
    if path.is_dir():
        raise UserError(f'--html={path}: is a directory. Pass a file.')
    reason = storage.obstacle(path.parent)
    if reason:
        raise UserError(
            f'--html={path}: its folder cannot be written, {reason}. Pass another.'
        )


def _model_of(runs: 'Sequence[OpenedRun]') -> tuple[Any, Any]:
    from flaxformer_lite.ensembling import ensemble, ensemble_variables

    models = [run.model for run in runs]
    variables = [run.variables for run in runs]
    if len(runs) == 1:
        return models[0], variables[0]
    return ensemble(models), ensemble_variables(variables)


def _check_tokenizers(runs: 'Sequence[OpenedRun]') -> None:
    for run in runs:
        if run.tokenizer.digest != runs[0].tokenizer.digest:
            raise UserError(
                f'--workdir={run.path}: its tokenizer differs from that of '
                f'{runs[0].path}. Runs of an ensemble must share a tokenizer.'
            )


def _check_decoding(args: Any, decoding: 'Decoding') -> None:
    strategy = decoding.strategy
    samples = decoding.count_samples(args.n_best)
    most = samples if strategy.draws else strategy.hypotheses
    if not 1 <= args.n_best <= most:
        raise UserError(
            f'--n_best={args.n_best} must be from 1 to {most}. Use more beams, as in '
            "--decode='beam(beams=…)', or --decode=sample."
        )
    if args.html and (len(args.workdir) > 1 or strategy.draws):
        raise UserError(
            f'--html={args.html} shows the search of a single run. Pass one '
            "--workdir, and a deterministic --decode such as 'beam(beams=4)'."
        )


def _show(hypotheses: 'Sequence[Hypothesis]', n_best: int, scores: bool) -> None:
    missing = n_best - len(hypotheses)
    padding = [('', float('-inf'))] * missing
    for text, score in [*hypotheses[:n_best], *padding]:
        console.print_data(f'{score:.4f}\t{text}' if scores else text)


def _write_page(
    path: Path, run: 'OpenedRun', sentences: Sequence[str], strategy: 'Strategy'
) -> None:
    from experiments.browser import page
    from experiments.evaluation.explainer import Explainer

    explainer = Explainer(run)
    answers = []
    for text in sentences:
        try:
            answers.append({'text': text, **explainer.explain(text, strategy)})
        except UserError as error:
            warn(f'--html: skipped {text[:40]!r}… ({error})')
    storage.write_output(path, page.html([explainer], answers=answers))
