"""A trained run translates standard input, a line each: order is kept, blank lines stay blank.

python -m experiments.translate --workdir=runs/wmt_small <in.en >out.de
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from experiments import check, devices, flags, memory, trained, translator
from experiments.errors import UserError


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('--workdir', type=Path, required=True, help='of the run')
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
    check.check_value('--seed', check.FIELDS['train.seed'], args.seed)

    devices.keep_programs()
    memory.keep()
    run = trained.open_trained(args.workdir)
    settings = run.config.evaluation
    names = ('beams', 'alpha', 'decode', 'temperature', 'top_k', 'top_p')
    given = [name for name in names if getattr(args, name) is not None]
    for name in given:
        settings[name] = getattr(args, name)
    check.check(run.config)
    check.check_overrides(run.config, (f'evaluation.{name}' for name in given))
    most = settings.beams if settings.decode == 'beam' else 1
    if not 1 <= args.n_best <= most:
        raise UserError(
            f'--n_best={args.n_best} must be from 1 to the {most} that are searched for'
        )
    variables = run.checkpoints.average(
        trained.average_steps(run.config, run.checkpoints),
        trained.abstract_variables(run.model),
    )
    translate = translator.Translator(
        run.model, run.tokenizer, settings, seed=args.seed, best=args.n_best
    )
    for hypotheses in translate(variables, _lines()):
        # A line always has as many lines of output, so that they can be told apart.
        padding = [translator.Hypothesis('', float('-inf'))] * (
            args.n_best - len(hypotheses)
        )
        for text, score in [*hypotheses[: args.n_best], *padding]:
            print(f'{score:.4f}\t{text}' if args.scores else text, flush=False)


def _lines() -> Iterator[str]:
    """Standard input's lines, ended by \\n alone, as UTF-8 whatever the locale."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode('utf-8').rstrip('\n').rstrip('\r')
        except UnicodeDecodeError as error:
            raise UserError(
                f'standard input, line {number}: not UTF-8 ({error.reason})'
            ) from None


if __name__ == '__main__':
    flags.main(main)
