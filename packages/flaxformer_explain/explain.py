"""Explains reference translations on a page, or scores explanations against gold.

python -m flaxformer_explain.explain --workdir=runs/wmt_tiny
python -m flaxformer_explain.explain --workdir=runs/wmt_tiny --score [--set=test]

The page `explanations.<set>.html` in the run's directory shows how the run would write
references of the set: heat maps from their words to source words, and the logit lens.

--score needs data of the grammar, which knows the source words that each target word
translates, and the words that decide its form. The scores are means over target words:
  p@1: Share of words for which the source word with the highest weight is right.
  ap: Average precision, the area under the precision-recall curve.
  aer: Alignment error rate; lower is better.
The scores are saved as `explanations.<set>.csv`, with intervals over sentences.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('flaxformer_explain.explain')

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import storage
from experiments.command_line import console, flags, screen
from experiments.errors import UserError

if TYPE_CHECKING:
    from experiments.data.sources.base import Pair
    from experiments.evaluation.opened_run import OpenedRun
    from flaxformer_explain.gold_scores import Measured, Score
    from parallel_grammar import Gold

    Scores = Mapping[str, Mapping[Measured, Score]]  # by method

SHOWN, SCORED = 5, 200  # sentences
COLUMNS = 'method side phenomenon metric score low high chance cases'.split()


def main() -> None:
    args = _parser().parse_args()
    if not args.score:
        flags.require_packages(
            'explain', flags.REPORT_PACKAGES, 'report', 'or use --score'
        )
    # Import JAX only after the flags, so that errors in flags show at once.
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.runtime import compilation

    compilation.use_cache()
    with screen.on_stderr('opening the run') as shown:
        run = OpenedRun(args.workdir, args.trust_code, args.step)
        if args.score:
            pairs = gold_pairs(run, args.set)[: args.sentences or SCORED]
            shown.begin('scoring')
            scores = score(run, pairs, shown.count)
            found, text, kind = table(scores), csv_text(scores), 'csv'
        else:
            from flaxformer_explain import explained

            pairs = _pairs(run, args.set)[: args.sentences or SHOWN]
            shown.begin('explaining')
            text, kind = explained.html(run, pairs, shown.count), 'html'
            found = f'explained {console.count_noun(len(pairs), "reference")}'
    file = args.workdir / f'explanations.{args.set}.{kind}'
    storage.write(file, text)
    print(found)
    print(f'saved as {file}')


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir', type=Path, required=True, help='directory of the run'
    )
    parser.add_argument(
        '--score', action='store_true', help='score the methods against gold'
    )
    parser.add_argument('--set', default='test', help='name of a set; default: test')
    parser.add_argument(
        '--sentences',
        type=lambda text: flags.whole_number(text, least=1),
        help='number of sentences, the first of the set; default: '
        f'{SHOWN}, or {SCORED} with --score',
    )
    flags.add_step(parser)
    flags.add_trust_code(parser)
    return parser


def gold_pairs(run: 'OpenedRun', name: str) -> 'list[tuple[Pair, Gold]]':
    golds = run.data.gold()
    return list(zip(_pairs(run, name), golds[name], strict=True))


def _pairs(run: 'OpenedRun', name: str) -> 'list[Pair]':
    from experiments.evaluation import sets

    pairs = sets.select(run.data.evaluation(), name, '--set')
    if list(pairs) != [name]:
        raise UserError(f'--set: {name!r} is not one set. Name one.')
    return sets.first_references(pairs[name])


def score(
    run: 'OpenedRun',
    pairs: 'Sequence[tuple[Pair, Gold]]',
    on_progress: Callable[[int, int, str], None],
) -> 'Scores':
    """Scores all methods on pairs, and a baseline that knows only positions."""
    from flaxformer_explain.attributions import Attributor
    from flaxformer_explain.gold_scores import (
        position_maps,
        sentence_counts,
        total,
    )

    explain = Attributor(run)
    counts = {
        'position': [sentence_counts(gold, position_maps(gold)) for _, gold in pairs]
    }
    for number, (pair, gold) in enumerate(pairs, 1):
        for method, maps in explain(pair).items():
            counts.setdefault(method, []).append(sentence_counts(gold, maps))
        on_progress(number, len(pairs), 'pairs')
    return {method: total(of_method) for method, of_method in counts.items()}


def csv_text(scores: 'Scores') -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(COLUMNS)
    for method, by_key in scores.items():
        for key, found in by_key.items():
            *values, cases = found
            cells = [f'{value:.4f}' for value in values]
            writer.writerow([method, *key, *cells, f'{cases:g}'])
    return file.getvalue()


def table(scores: 'Scores') -> str:
    """Returns the scores of the source side: the alignment, then p@1 by phenomenon."""
    keys = [key for key in next(iter(scores.values())) if key.side == 'source']
    keys = [key for key in keys if key.metric in ('aer', 'p@1')]
    keys.sort(key=lambda key: (key.phenomenon != 'alignment', key.metric))
    rows = []
    for key in keys:
        found = [by_key[key] for by_key in scores.values()]
        name = f'{key.phenomenon}, {key.metric}'
        rows.append([name, *(x.value for x in found), found[0].chance])
    return console.table(['source words', *scores, 'chance'], rows)
