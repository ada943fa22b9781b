"""Tests a component against the contracts of this project.

The exit status is 1 if a contract is broken.

python -m experiments.check 'my_parts.Near(width=3)'
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.check')

import os
import sys

from experiments import registries
from experiments.command_line import console, flags
from experiments.errors import UserError, own_traceback, user_errors
from flaxformer_lite.config import spec, variants
from flaxformer_lite.config.spec import Folder

# Keyed by the last word of the config field. 'optimizer' has no registry.
EXPERIMENT_FOLDERS = {
    x.rpartition('.')[2]: folder for x, folder in registries.FOLDERS.items()
}
KINDS: dict[str, Folder] = EXPERIMENT_FOLDERS | variants.FOLDERS
WORDS = {True: 'yes', False: 'NO', None: '-'}


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('part', help='spec of the component, such as local(window=3)')
    parser.add_argument(
        '--kind',
        choices=['optimizer', *KINDS],
        help='config field of the component, if several match',
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help='only the contracts that a run checks for user components (1-2 seconds)',
    )
    args = parser.parse_args()
    _make_devices()
    # They import JAX, so they come after the flags.
    from experiments import contracts
    from flaxformer_lite import testing

    with user_errors():
        kind = args.kind or spec.kind_of(args.part, KINDS)
        try:
            if kind in variants.FOLDERS:
                findings = testing.findings(args.part, kind, args.quick)
            else:
                findings = contracts.findings(args.part, kind)
        except (AttributeError, TypeError) as error:
            if own_traceback(error):
                raise
            raise UserError(
                f'{args.part}: a method returned a wrong type '
                f'({type(error).__name__}: {error}). Follow the annotations of '
                'its base class.'
            ) from None
    rows = [[x.contract, WORDS[x.holds], x.detail or None] for x in findings]
    print(console.table(['contract', 'holds', 'counterexample'], rows))
    if testing.broken(findings):
        sys.exit(1)


def _make_devices() -> None:
    flag = '--xla_force_host_platform_device_count'
    given = os.environ.get('XLA_FLAGS', '')
    if flag not in given:
        os.environ['XLA_FLAGS'] = f'{given} {flag}=2'
