"""Holds a part to the contracts that every part of this project keeps.

The exit status is 1 where one does not hold.

python -m experiments.check 'my_parts.Near(width=3)'
"""

import contextlib
import os
import sys

from experiments.command_line import console, flags
from experiments.errors import user_errors
from flaxformer_lite.config import variants

WORDS = {True: 'yes', False: 'NO', None: '-'}


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('part', help='as a config names it: local(window=3)')
    parser.add_argument(
        '--kind',
        choices=['data', 'loss', *variants.FOLDERS],
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
    from experiments.data import contracts, sources
    from flaxformer_lite import testing

    findings_of = {
        'data': lambda part: contracts.source_findings(sources.load(part)),
        'loss': testing.loss_findings,
    }
    kind = args.kind or _kind_beside_models(args.part)
    with user_errors():
        if kind in findings_of:
            findings = findings_of[kind](args.part)
        else:
            findings = testing.findings(args.part, kind, args.quick)
    rows = [[x.contract, WORDS[x.holds], x.detail or None] for x in findings]
    print(console.table(['contract', 'holds', 'where it does not'], rows))
    if testing.broken(findings):
        sys.exit(1)


def _kind_beside_models(part: str) -> str | None:
    """The field that can name a part, where that is none of a model."""
    from experiments.data import sources

    for kind, folder in {'data': sources.SOURCES, 'loss': variants.LOSSES}.items():
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
