"""Scores a trained run on whole sets: its loss, and its translations.

python -m experiments.evaluate --workdir=runs/wmt_small [--set=test]
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.evaluate')

import dataclasses
from pathlib import Path

from experiments.command_line import flags, screen
from experiments.runtime import memory


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('--workdir', type=Path, required=True, help='of the run')
    parser.add_argument(
        '--set', default='', help='comma-separated; all of the data without it'
    )
    parser.add_argument(
        '--metrics', default='', help="in place of those of the run's config"
    )
    parser.add_argument('--decode', default='', help=flags.DECODE_HELP)
    flags.add_step(parser)
    flags.add_trust_code(parser)
    args = parser.parse_args()
    # These import JAX, so they come after the flags: a mistake is answered at once.
    from experiments.evaluation import scores, sets
    from experiments.evaluation.evaluator import Evaluator
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.runtime import compilation

    memory.keep_freed()
    compilation.use_cache()
    with screen.on_stderr('opening the run') as shown:
        run = OpenedRun(args.workdir, args.trust_code, args.step)
        source = run.data
        chosen = sets.chosen(source.evaluation(), args.set, '--set')
        usual = run.config.evaluation
        evaluation = dataclasses.replace(
            usual,
            decode=args.decode or usual.decode,
            metrics=args.metrics or usual.metrics,
        )
        evaluator = Evaluator(
            run.model,
            run.tokenizer,
            dataclasses.replace(run.config, evaluation=evaluation),
            args.workdir,
            (source.source, source.target),
            on_progress=shown.count,
        )
        mean = run.mean
        shown.begin('scoring')
        found = evaluator.every(mean.variables, chosen, mean.steps)
    steps = ', '.join(map(str, mean.steps))
    print(f'{args.workdir}, mean of the checkpoints {steps}')
    print(scores.table(found))
