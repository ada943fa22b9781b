"""Translates standard input with a trained run, line by line, in order.

python -m experiments.translate --workdir=runs/wmt_small <in.en >out.de

Blank lines stay blank. A single line is answered at once.

Several --workdir form an ensemble of runs with the same tokenizer. Each step averages
their token probabilities. The first run's config sets the decoding.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.translate')

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command_line import console, flags, screen
from experiments.config import schema
from experiments.errors import UserError, warn

if TYPE_CHECKING:
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.evaluation.translator import Hypothesis
    from flaxformer_lite.generation import DecodingOptions


def main() -> None:
    args = _parser().parse_args()
    if args.html is not None:
        raise UserError(
            '--html: moved; run python -m flaxformer_explain.page --out=FILE'
        )
    schema.check_value('--seed', schema.fields()['train.seed'].kind, args.seed)

    # Import JAX only after the flags, so that errors in flags show at once.
    from experiments.config.decoding import decoding_options
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.evaluation.translator import LONGEST, Translator
    from experiments.runtime import compilation

    compilation.use_cache()
    with screen.on_stderr('opening the run') as shown:
        runs = [
            OpenedRun(x, args.trust_code, args.step, args.dtype) for x in args.workdir
        ]
        _check_tokenizers(runs)
        usual = runs[0].config.evaluation
        settings = dataclasses.replace(usual, decode=args.decode or usual.decode)
        decoding = decoding_options(settings)
        _check_decoding(args, decoding)
        model, variables = _model_of(runs)
        translator = Translator(
            model,
            runs[0].tokenizer,
            decoding,
            settings.batch_tokens,
            seed=args.seed,
            n_best=args.n_best,
            longest=max(LONGEST, settings.batch_tokens),
        )
        shown.begin('translating')
        if sys.stdin.isatty():
            shown.close()
        _translate_input(args, functools.partial(translator, variables), shown)


def _translate_input(
    args: Any, translate: Callable[..., Any], shown: screen.Screen
) -> None:
    """Prints the translations of standard input."""
    from experiments.evaluation.translator import WINDOW

    number = short = 0
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
    if short:
        warn(
            f'--n_best={args.n_best}: {short:,} lines have fewer distinct '
            "translations. Use more beams: --decode='beam(beams=…)'."
        )


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
    parser.add_argument('--html', help=argparse.SUPPRESS)
    parser.add_argument('--seed', type=int, default=0, help='seed of sampling')
    flags.add_step(parser)
    flags.add_dtype(parser)
    flags.add_trust_code(parser)
    return parser


def _model_of(runs: 'Sequence[OpenedRun]') -> tuple[Any, Any]:
    from flaxformer_lite.ensembling import Ensemble

    members = [(run.model, run.variables) for run in runs]
    if len(members) == 1:
        return members[0]
    ensemble = Ensemble(members)
    return ensemble.model, ensemble.variables


def _check_tokenizers(runs: 'Sequence[OpenedRun]') -> None:
    for run in runs:
        if run.tokenizer.digest != runs[0].tokenizer.digest:
            raise UserError(
                f'--workdir={run.path}: its tokenizer differs from that of '
                f'{runs[0].path}. Runs of an ensemble must share a tokenizer.'
            )


def _check_decoding(args: Any, decoding: 'DecodingOptions') -> None:
    strategy = decoding.strategy
    most = max(args.n_best, 1) if strategy.draws else strategy.hypotheses
    if not 1 <= args.n_best <= most:
        raise UserError(
            f'--n_best={args.n_best} must be from 1 to {most}. Use more beams, as in '
            "--decode='beam(beams=…)', or --decode=sample."
        )


def _show(hypotheses: 'Sequence[Hypothesis]', n_best: int, scores: bool) -> None:
    missing = n_best - len(hypotheses)
    padding = [('', float('-inf'))] * missing
    for text, score in [*hypotheses[:n_best], *padding]:
        console.print_data(f'{score:.4f}\t{text}' if scores else text)
