"""Holds a part to the contracts that every part of this project keeps.

The exit status is 1 where one does not hold.

python -m experiments.check 'my_parts.Near(width=3)'
"""

import contextlib
import itertools
import os
import sys
from typing import TYPE_CHECKING

from experiments.command_line import console, flags
from experiments.errors import user_errors
from flaxformer_lite.config import variants

if TYPE_CHECKING:  # it imports JAX
    from flaxformer_lite.testing.finding import Finding

NO_MODEL = ('data', 'tokenizer', 'loss', 'metric', 'schedule')
TEXT = 'grammar(pairs=500)'  # of which a tokenizer learns
WORDS = {True: 'yes', False: 'NO', None: '-'}


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('part', help='as a config names it: local(window=3)')
    parser.add_argument(
        '--kind',
        choices=[*NO_MODEL, 'optimizer', *variants.FOLDERS],
        help='the field of the config that names it, where several could',
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help='only what a run asks of parts from elsewhere: a second or two',
    )
    args = parser.parse_args()
    _make_devices()
    # It imports JAX, so it comes after the flags.
    from flaxformer_lite import testing

    kind = args.kind or _kind_beside_models(args.part)
    with user_errors():
        if kind in (*NO_MODEL, 'optimizer'):
            findings = _findings(args.part, kind)
        else:
            findings = testing.findings(args.part, kind, args.quick)
    rows = [[x.contract, WORDS[x.holds], x.detail or None] for x in findings]
    print(console.table(['contract', 'holds', 'where it does not'], rows))
    if testing.broken(findings):
        sys.exit(1)


def _findings(part: str, kind: str) -> 'list[Finding]':
    """Of a part that is none of a model."""
    from experiments import metrics
    from experiments.data import contracts, sources, tokenizers
    from experiments.evaluation import metric_contracts
    from experiments.optimizers import optax_specs
    from flaxformer_lite import testing

    if kind == 'data':
        return contracts.source_findings(sources.load(part))
    if kind == 'schedule':
        return testing.schedule_findings(part)
    if kind == 'optimizer':
        return optax_specs.findings(part)
    if kind == 'tokenizer':
        texts = itertools.chain.from_iterable(sources.load(TEXT).train())
        return contracts.tokenizer_findings(tokenizers.make(part), texts)
    if kind == 'metric':
        (metric,) = metrics.make(part).values()
        metric.check_installed()
        return metric_contracts.metric_findings(metric)
    return testing.loss_findings(part)


def _kind_beside_models(part: str) -> str | None:
    """The field that can name a part, where that is none of a model."""
    from experiments import metrics
    from experiments.data import sources, tokenizers
    from flaxformer_lite.training.schedules import SCHEDULES

    ours = sources.SOURCES, tokenizers.TOKENIZERS
    folders = *ours, variants.LOSSES, metrics.METRICS, SCHEDULES
    for kind, folder in zip(NO_MODEL, folders, strict=True):
        with contextlib.suppress(ValueError):
            folder.find(part)
            return kind
    return None


def _make_devices() -> None:
    """Two of a CPU, where nothing else is said: as few as can be several."""
    flag = '--xla_force_host_platform_device_count'
    given = os.environ.get('XLA_FLAGS', '')
    if flag not in given:
        os.environ['XLA_FLAGS'] = f'{given} {flag}=2'


if __name__ == '__main__':
    flags.main(main)
