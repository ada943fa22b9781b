"""Scores given translations with a trained run, token by token.

python -m experiments.score --workdir=runs/wmt_small <pairs.tsv >scores.jsonl

Each line of standard input is a source, a tab and a target. The output has a line of
JSON for each pair, in order:
  log_p: Log-probability of the whole target, in nats.
  tokens: One entry for each target token and the end token. It has the token's log_p,
    its rank (1 for the most likely token) and the entropy of the distribution. A
    language token that translation forces has probability 1, as in `translate`.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.score')

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command_line import console, flags, screen
from experiments.errors import UserError

if TYPE_CHECKING:
    from experiments.evaluation.scorer import ScoredToken


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--workdir', type=Path, required=True, help='directory of the run'
    )
    flags.add_trust_code(parser)
    args = parser.parse_args()
    pairs = _read_pairs()
    # Import JAX only after the flags, so that errors in flags show at once.
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.evaluation.scorer import Scorer
    from experiments.evaluation.translator import LONGEST
    from experiments.runtime import compilation

    compilation.use_cache()
    with screen.on_stderr('opening the run') as shown:
        run = OpenedRun(args.workdir, args.trust_code)
        tokens = run.config.evaluation.batch_tokens
        longest = max(LONGEST, tokens)
        score = Scorer(run.model, run.tokenizer, tokens, longest=longest)
        shown.begin('scoring')
        for number, tokens in enumerate(score(run.variables, pairs), 1):
            shown.count(number, len(pairs), 'pairs')
            if sys.stdout.isatty():
                shown.close()
            console.print_data(_line(tokens))


def _read_pairs() -> list[tuple[str, str]]:
    pairs = []
    for window in console.line_windows(sys.stdin.fileno()):
        for line in window:
            source, tab, target = line.partition('\t')
            if not (source.strip() and tab and target.strip()) or '\t' in target:
                raise UserError(
                    f'standard input, line {len(pairs) + 1}: invalid pair '
                    f'{line[:60]!r}. Write source, tab, target.'
                )
            pairs.append((source, target))
    return pairs


def _line(tokens: 'list[ScoredToken]') -> str:
    found = {
        'log_p': math.fsum(token.log_p for token in tokens),
        'tokens': [token._asdict() for token in tokens],
    }
    return json.dumps(found, ensure_ascii=False)
