"""Scores a trained run on whole sets: its loss, and its translations.

python -m experiments.evaluate --workdir=runs/wmt_small [--set=test]
python -m experiments.evaluate --workdir=runs/wmt_small --source=in.en --reference=in.de

The scores of sets are saved with their translations and appear in reports. Scores of
files, or with --dtype or another --decode than the run's, are only printed.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.evaluate')

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command_line import flags, screen
from experiments.errors import UserError

if TYPE_CHECKING:
    from experiments.data.sources.base import Source
    from experiments.data.tokenizers.base import Tokenizer
    from experiments.evaluation.sets import Pairs


def main() -> None:
    args = _parser().parse_args()
    _check_files(args)
    # Import JAX only after the flags, so that errors in flags show at once.
    from experiments import metrics, registries
    from experiments.config import user_modules
    from experiments.config.decoding import decoding_options
    from experiments.evaluation import scores
    from experiments.evaluation.evaluator import Evaluator
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.runtime import compilation

    compilation.use_cache()
    with screen.on_stderr('opening the run') as shown:
        run = OpenedRun(args.workdir, args.trust_code, args.step, args.dtype)
        source = run.data
        chosen = _chosen(args, source)
        if args.source:
            (pairs,) = chosen.values()
            source = _select_files(pairs, source, run.tokenizer)
        else:
            _check_texts(args.workdir, chosen, source)
        defaults = run.config.evaluation
        evaluation = dataclasses.replace(
            defaults,
            decode=args.decode or defaults.decode,
            metrics=args.metrics or defaults.metrics,
        )
        if not args.metrics:
            user_modules.check_commands(defaults.metrics, args.workdir, args.trust_code)
        is_same_decode = evaluation.decode == defaults.decode
        saves = is_same_decode and not args.source and not args.dtype
        objective = registries.make('objective', run.config.objective, pieces=())
        targets = [target for _, target in source.directions()]
        evaluator = Evaluator(
            run.model,
            run.tokenizer,
            decoding_options(evaluation),
            evaluation.batch_tokens,
            scores.installed_metrics(
                metrics.make(evaluation.metrics), source.target, *targets
            ),
            args.workdir if saves else None,
            source,
            objective=objective and objective.with_tokenizer(run.tokenizer),
            on_progress=shown.count,
        )
        mean = run.mean
        shown.begin('scoring')
        found = evaluator.every(mean.variables, chosen, mean.steps)
    steps = ', '.join(map(str, mean.steps))
    print(f'{args.workdir}, average of checkpoints {steps}')
    print(scores.table(found))
    if not is_same_decode:
        print(f'not saved: --decode differs from the run, {defaults.decode}')
    if args.dtype:
        print("not saved: --dtype replaces the run's")


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir', type=Path, required=True, help='directory of the run'
    )
    parser.add_argument(
        '--set', default='', help='names of sets, separated by commas; default: all'
    )
    parser.add_argument(
        '--source',
        type=Path,
        help='file to translate and score instead, one sentence per line',
    )
    parser.add_argument(
        '--reference',
        type=Path,
        action='append',
        default=[],
        help='reference translations of --source; repeat for more references',
    )
    parser.add_argument(
        '--metrics', default='', help="metrics; default: the run's evaluation.metrics"
    )
    parser.add_argument('--decode', default='', help=flags.DECODE_HELP)
    flags.add_step(parser)
    flags.add_dtype(parser)
    flags.add_trust_code(parser)
    return parser


def _check_files(args: Any) -> None:
    if args.source and not args.reference:
        raise UserError('--source: has no reference. Add --reference=FILE.')
    if args.reference and not args.source:
        raise UserError('--reference: has no source. Add --source=FILE.')
    if args.source and args.set:
        raise UserError('--set: has no effect with --source. Leave one of them out.')


def _select_files(pairs: 'Pairs', data: 'Source', tokenizer: 'Tokenizer') -> 'Source':
    """Returns a source without documents, with the languages that tags of lines name.

    Lines without a tag have the languages of the data.
    """
    from experiments.data.sources.base import Source

    by_tag = defaultdict(list)
    for source, target in data.directions() if data.tags else ():
        tag = f'<{source if data.tags == "both" else ""}2{target}>'
        by_tag[tag].append((source, target))
    directions = {}  # each once
    for text, _ in pairs:
        known = tokenizer.direction(text)
        tag = text.partition(' ')[0]
        default = (data.source, data.target)
        directions |= dict.fromkeys([known] if known else by_tag.get(tag, [default]))
    files = Source()
    files.source, files.target = [
        '+'.join(dict.fromkeys(side)) for side in zip(*directions, strict=True)
    ]
    return files


def _check_texts(path: Path, chosen: 'dict[str, Pairs]', data: 'Source') -> None:
    """Raises UserError if a set has other text than in earlier scores of the run."""
    from experiments.evaluation import sets
    from experiments.runs import reading

    earlier = reading.scored_texts(path)
    for name, pairs in chosen.items():
        digest = sets.digest(pairs, data.documents(name))
        if earlier.get(f'text of {name}', digest) != digest:
            raise UserError(
                f'--set: the text of {name} changed since {path} was scored on it. '
                'Restore it, or pass the new text as --source and --reference.'
            )


def _chosen(args: Any, data: 'Source') -> 'dict[str, Pairs]':
    from experiments.data.sources import text
    from experiments.evaluation import sets

    if args.source:
        pairs = text.read_set(args.source, args.reference)
        return sets.select({args.source.name: pairs}, '', '--source')
    return sets.select(data.evaluation(), args.set, '--set')
