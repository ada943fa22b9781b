"""Scores a trained run on whole sets: loss, and BLEU and chrF of its translations.

python -m experiments.evaluate --workdir=runs/wmt_small [--set=test]
"""

import sys
from pathlib import Path

from experiments.command_line import flags
from experiments.data import sources
from experiments.evaluation import scores, sets
from experiments.evaluation.evaluator import Evaluator
from experiments.runs import trained_run
from experiments.runtime import compilation, memory


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('--workdir', type=Path, required=True, help='of the run')
    parser.add_argument(
        '--set', default='', help='comma-separated; all of the data without it'
    )
    args = parser.parse_args()

    compilation.use_cache()
    memory.keep_freed()
    run = trained_run.open_trained(args.workdir)
    source = sources.load(run.config.data)
    chosen = sets.chosen(source.evaluation(), args.set, '--set')
    variables, steps, _ = trained_run.average(run.config, run.checkpoints, run.model)
    evaluator = Evaluator(
        run.model,
        run.tokenizer,
        run.config,
        args.workdir,
        direction=f'{source.source}-{source.target}',
        warn=lambda text: print(text, file=sys.stderr),
    )
    print(f'{args.workdir}, mean of the checkpoints {", ".join(map(str, steps))}')
    print(scores.table(evaluator.every(variables, chosen, steps)))


if __name__ == '__main__':
    flags.main(main)
