"""Translates standard input with a trained run, line by line, in order.

python -m experiments.translate --workdir=runs/wmt_small <in.en >out.de

Blank lines stay blank. A line that comes alone is answered at once. Several --workdir
are an ensemble of runs that share a tokenizer: each token is chosen by the mean of
their probabilities, and the first run's config says how to decode.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.command_line import flags
from experiments.config import check, schema
from experiments.config.schema import EvaluationConfig, ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation.translator import Hypothesis, Translator
from experiments.runs import trained_run
from experiments.runs.trained_run import TrainedRun
from experiments.runtime import compilation, memory
from flaxformer_lite.ensembling import ensemble, ensemble_variables

_BLOCK = 1 << 20  # bytes to read at once, which only files give
# Flags that stand for the fields of these names in a config's `evaluation`.
_FIELDS = {
    'beams': int,
    'alpha': float,
    'temperature': float,
    'top_k': int,
    'top_p': float,
    'decode': str,
}


def main() -> None:
    args = _parser().parse_args()
    schema.check_value('--seed', schema.fields()['train.seed'].kind, args.seed)

    compilation.use_cache()
    memory.keep_freed()
    runs = _open_runs(args.workdir)
    settings = _settings(runs[0].config, args)
    _check_n_best(args.n_best, settings)
    if sys.stdin is None:
        raise UserError('there is no standard input to translate')
    model, variables = _model(runs)
    translate = Translator(
        model, runs[0].tokenizer, settings, seed=args.seed, n_best=args.n_best
    )
    number = 0
    for texts in line_windows(sys.stdin.fileno()):
        for hypotheses in translate(variables, texts, number):
            _show(hypotheses, args.n_best, args.scores)
        # Who sent a line may wait for the answer before sending the next one.
        sys.stdout.flush()
        number += len(texts)


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
    for name, kind in _FIELDS.items():
        parser.add_argument(
            f'--{name}', type=kind, help=f'instead of the config’s evaluation.{name}'
        )
    parser.add_argument('--seed', type=int, default=0, help='of sampling')
    return parser


def _open_runs(paths: Sequence[Path]) -> list[TrainedRun]:
    """The runs in some directories, which must share a tokenizer."""
    runs = [trained_run.open_trained(path) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if run.tokenizer.digest != runs[0].tokenizer.digest:
            raise UserError(
                f'--workdir={path}: its tokenizer is another than that of {paths[0]}, '
                'and only runs that share one can be an ensemble'
            )
    return runs


def _settings(config: ExperimentConfig, args: Any) -> EvaluationConfig:
    """The config's `evaluation`, with the fields that the flags set."""
    given = {}
    for name in _FIELDS:
        value = getattr(args, name)
        if value is not None:
            given[name] = value
    settings = dataclasses.replace(config.evaluation, **given)
    changed = dataclasses.replace(config, evaluation=settings)
    check.check_config(changed)
    check.check_overrides(changed, (f'evaluation.{name}' for name in given))
    return settings


def _check_n_best(n_best: int, settings: EvaluationConfig) -> None:
    """Refuses more translations of a line than the search finds."""
    most = {'beam': settings.beams, 'greedy': 1}.get(settings.decode, n_best)
    if not 1 <= n_best <= most:
        raise UserError(
            f'--n_best={n_best} must be from 1 to {most}: raise --beams, or use '
            '--decode=sample'
        )


def _model(runs: Sequence[TrainedRun]) -> tuple[Any, Any]:
    """The model and the variables of one run, or of an ensemble."""
    variables = []
    for run in runs:
        mean = trained_run.average(run.config, run.checkpoints, run.model)
        variables.append(mean.variables)
    if len(runs) == 1:
        return runs[0].model, variables[0]
    model = ensemble([run.model for run in runs])
    return model, ensemble_variables(variables)


def line_windows(descriptor: int) -> Iterator[list[str]]:
    """The lines of a file, a pipe or a terminal: each time those that have arrived.

    Only a line feed ends a line; what follows the last one is one, too. They are UTF-8
    whatever the locale.

    Raises:
      UserError: a line is not UTF-8; those before it were yielded.
    """
    number = 0
    rest = b''
    # Not by a file object, which would wait until a block is full.
    while block := os.read(descriptor, _BLOCK):
        *lines, rest = (rest + block).split(b'\n')
        yield from _decoded(lines, number)
        number += len(lines)
    if rest:
        yield from _decoded([rest], number)


def _decoded(lines: Sequence[bytes], before: int) -> Iterator[list[str]]:
    """The lines as one list of texts; those before one that is not UTF-8."""
    texts = []
    for line in lines:
        try:
            texts.append(line.decode().rstrip('\r'))
        except UnicodeDecodeError:
            yield texts
            where = f'standard input, line {before + len(texts) + 1}'
            raise UserError(f'{where}: not UTF-8') from None
    if texts:
        yield texts


def _show(hypotheses: Sequence[Hypothesis], n_best: int, scores: bool) -> None:
    """Prints `n_best` lines, so that the lines of different texts can be told apart."""
    missing = n_best - len(hypotheses)
    padding = [Hypothesis('', float('-inf'))] * missing
    for text, score in [*hypotheses[:n_best], *padding]:
        print(f'{score:.4f}\t{text}' if scores else text, flush=False)


if __name__ == '__main__':
    flags.main(main)
