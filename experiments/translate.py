"""A trained run translates standard input, a line each: order is kept, blank lines stay blank.

python -m experiments.translate --workdir=runs/wmt_small <in.en >out.de

A line that comes alone is answered at once. Several --workdir are an ensemble, whose runs share a
tokenizer: tokens are chosen by the mean of their probabilities, as the first run's config decodes.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.command_line import flags, lines
from experiments.command_line.errors import UserError
from experiments.config import check, schema
from experiments.config.schema import EvaluationConfig
from experiments.evaluation import translator
from experiments.runs import trained_run
from experiments.runs.trained_run import Trained
from experiments.runtime import devices, malloc
from flaxformer_lite.ensembling import ensemble, ensemble_variables


def main() -> None:
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
    parser.add_argument(
        '--beams', type=int, help='instead of the config’s evaluation.beams'
    )
    parser.add_argument('--alpha', type=float, help='instead of evaluation.alpha')
    parser.add_argument(
        '--decode', choices=('beam', 'greedy', 'sample'), help='likewise'
    )
    parser.add_argument('--temperature', type=float, help='of sampling, likewise')
    parser.add_argument('--top_k', type=int, help='of sampling, likewise')
    parser.add_argument('--top_p', type=float, help='of sampling, likewise')
    parser.add_argument('--seed', type=int, default=0, help='of sampling')
    args = parser.parse_args()
    schema.check_value('--seed', schema.fields()['train.seed'].kind, args.seed)

    devices.keep_programs()
    malloc.keep()
    runs = _runs(args.workdir)
    config = runs[0].config
    names = ('beams', 'alpha', 'decode', 'temperature', 'top_k', 'top_p')
    given = {name: getattr(args, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(config.evaluation, **given)
    config = dataclasses.replace(config, evaluation=settings)
    check.check(config)
    check.check_overrides(config, (f'evaluation.{name}' for name in given))
    _check_number(args.n_best, settings)
    if sys.stdin is None:
        raise UserError('there is no standard input to translate')
    model, variables = _model(runs)
    translate = translator.Translator(
        model, runs[0].tokenizer, settings, seed=args.seed, best=args.n_best
    )
    number = 0
    for texts in lines.windows(sys.stdin.fileno(), translator.WINDOW):
        for hypotheses in translate(variables, texts, number):
            _show(hypotheses, args.n_best, args.scores)
        # Who sent a line may wait for the answer before the next one.
        sys.stdout.flush()
        number += len(texts)


def _runs(paths: Sequence[Path]) -> list[Trained]:
    """The runs in some directories, which have one tokenizer."""
    runs = [trained_run.open_trained(path) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if run.tokenizer.digest != runs[0].tokenizer.digest:
            raise UserError(
                f'--workdir={path}: its tokenizer is another than that of {paths[0]}, and only '
                'runs that share one can be an ensemble'
            )
    return runs


def _check_number(number: int, settings: EvaluationConfig) -> None:
    """Refuses more translations of a line than the search finds."""
    if number < 1:
        raise UserError(f'--n_best={number} must be at least 1')
    if settings.decode == 'beam' and number > settings.beams:
        raise UserError(
            f'--n_best={number} must be from 1 to the {settings.beams} that are searched for: '
            'raise --beams'
        )
    if settings.decode == 'greedy' and number > 1:
        raise UserError(
            f'--n_best={number}: greedy decoding finds 1; use --decode=beam or --decode=sample'
        )


def _model(runs: Sequence[Trained]) -> tuple[Any, Any]:
    """The model and the variables of one run, or of an ensemble."""
    variables = [
        trained_run.average(run.config, run.checkpoints, run.model).variables
        for run in runs
    ]
    if len(runs) == 1:
        return runs[0].model, variables[0]
    model = ensemble([run.model for run in runs])
    return model, ensemble_variables(variables)


def _show(
    hypotheses: Sequence[translator.Hypothesis], number: int, scores: bool
) -> None:
    # A line always has as many lines of output, so that they can be told apart.
    padding = [translator.Hypothesis('', float('-inf'))] * (number - len(hypotheses))
    for text, score in [*hypotheses[:number], *padding]:
        print(f'{score:.4f}\t{text}' if scores else text, flush=False)


if __name__ == '__main__':
    flags.main(main)
