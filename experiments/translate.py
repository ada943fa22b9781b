"""Translates standard input with a trained run, line by line, in order.

python -m experiments.translate --workdir=runs/wmt_small <in.en >out.de

Blank lines stay blank. A line that comes alone is answered at once. Several --workdir
are an ensemble of runs that share a tokenizer: each token is chosen by the mean of
their probabilities, and the first run's config says how to decode. --html writes a page
of the first lines: search, alternatives and attention, as experiments.demo shows them.
"""

if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.translate')

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.browser import page
from experiments.command_line import flags, lines, screen
from experiments.config import schema, search
from experiments.errors import UserError, warn
from experiments.evaluation.explainer import Explainer
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.translator import Hypothesis, Translator
from experiments.runtime import memory
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.ensembling import ensemble, ensemble_variables

_MOST_SENTENCES = 20  # of a page


def main() -> None:
    args = _parser().parse_args()
    schema.check_value('--seed', schema.fields()['train.seed'].kind, args.seed)

    memory.keep_freed()
    with screen.on_stderr('opening the run') as shown:
        runs = _open_runs(args.workdir)
        settings = search.with_decode(runs[0].config.evaluation, args.decode)
        strategy = search.make(settings).strategy
        _check_n_best(args.n_best, strategy)
        if args.html:
            _check_page(args.html, runs, strategy)
        if sys.stdin is None:
            raise UserError('there is no standard input to translate')
        model, variables = _model(runs)
        translate = Translator(
            model, runs[0].tokenizer, settings, seed=args.seed, n_best=args.n_best
        )
        shown.begin('translating')
        if sys.stdin.isatty():
            shown.close()
            print('reading lines from here; Ctrl-D ends', file=sys.stderr)
        number = 0
        sentences: list[str] = []
        for texts in lines.line_windows(sys.stdin.fileno()):
            for hypotheses in translate(
                variables, texts, number, lambda done: shown.count(done, None, 'lines')
            ):
                if sys.stdout.isatty():
                    shown.close()
                _show(hypotheses, args.n_best, args.scores)
            # Who sent a line may wait for the answer before sending the next one.
            sys.stdout.flush()
            number += len(texts)
            sentences += filter(str.strip, texts[:_MOST_SENTENCES])
        if args.html:
            shown.begin('looking inside')
            _write_page(args.html, runs[0], sentences[:_MOST_SENTENCES], strategy)


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir',
        type=Path,
        required=True,
        action='append',
        help='of the run; several runs are an ensemble',
    )
    parser.add_argument(
        '--n_best', type=int, default=1, help='translations of each line'
    )
    parser.add_argument(
        '--scores', action='store_true', help='put "score<TAB>" before each'
    )
    parser.add_argument('--decode', default='', help=search.HELP)
    parser.add_argument(
        '--html',
        type=Path,
        metavar='FILE',
        help=f'write a page that shows how the first {_MOST_SENTENCES} came about, too',
    )
    parser.add_argument('--seed', type=int, default=0, help='of sampling')
    return parser


def _open_runs(paths: Sequence[Path]) -> list[OpenedRun]:
    """The runs in some directories, which must share a tokenizer."""
    runs = [OpenedRun(path) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if run.tokenizer.digest != runs[0].tokenizer.digest:
            raise UserError(
                f'--workdir={path}: its tokenizer is another than that of {paths[0]}, '
                'and only runs that share one can be an ensemble'
            )
    return runs


def _check_n_best(n_best: int, strategy: Strategy) -> None:
    """Refuses more translations of a line than the search finds."""
    most = strategy.drawn(n_best) if strategy.draws else strategy.hypotheses
    if not 1 <= n_best <= most:
        raise UserError(
            f"--n_best={n_best} must be from 1 to {most}: give --decode='beam(beams=…)'"
            ' more beams, or use --decode=sample'
        )


def _model(runs: Sequence[OpenedRun]) -> tuple[Any, Any]:
    """The model and the variables of one run, or of an ensemble."""
    if len(runs) == 1:
        return runs[0].model, runs[0].variables
    model = ensemble([run.model for run in runs])
    return model, ensemble_variables([run.variables for run in runs])


def _show(hypotheses: Sequence[Hypothesis], n_best: int, scores: bool) -> None:
    """Prints `n_best` lines, so that the lines of different texts can be told apart."""
    missing = n_best - len(hypotheses)
    padding = [Hypothesis('', float('-inf'))] * missing
    for text, score in [*hypotheses[:n_best], *padding]:
        print(f'{score:.4f}\t{text}' if scores else text, flush=False)


def _check_page(path: Path, runs: Sequence[OpenedRun], strategy: Strategy) -> None:
    """Refuses a page that cannot be made, before anything is translated."""
    if len(runs) > 1 or strategy.draws:
        raise UserError(
            f'--html={path} shows how one run searches: give one --workdir, and a '
            "--decode that draws nothing, such as 'beam(beams=4)'"
        )


def _write_page(
    path: Path, run: OpenedRun, sentences: Sequence[str], strategy: Strategy
) -> None:
    """Writes the page; a sentence that is too long is left out."""
    explainer = Explainer(run)
    answers = []
    for text in sentences:
        try:
            answers.append({'text': text, **explainer.explain(text, strategy)})
        except UserError as error:
            warn(f'--html leaves {text[:40]!r} … out: {error}')
    storage.write(path, page.html([explainer], answers=answers))
