"""Runs one command of a page in short: `python shrunk.py -m experiments.run …`.

Training is a few steps of a small model; what needs data or machines that are not here
is described, or shown by --dry_run. Everything else is as the page has it.
"""

import os
import re
import sys
from pathlib import Path

import small_runs

from experiments.command_line import flags
from experiments.runs import directory

SMALL = small_runs.FIELDS | {
    'data': 'grammar(pairs=150)',
    'batch.max_length': 64,
    'batch.packed': True,
    'train.log_every': 1,
    'evaluation.every': 2,
    'evaluation.sets': 'val',
    'evaluation.average': 1,
    'evaluation.decode': 'greedy',
    'checkpoint.every': 2,
}
# What is small whatever the page says.
ALWAYS = ('batch.tokens', 'tokenizer.vocab_size', 'evaluation.every', 'model.dtype')


OF_A_MODEL = ('model.', 'tokenizer.')


def shrunk(argv):
    """The arguments of Python for a command in short."""
    module = argv[1]
    if module == 'experiments.run' and '--help' not in argv:
        return _shrunk_run(argv)
    if module == 'experiments.sweep' and 'my_sweep' not in ' '.join(argv):
        return [*argv, '--dry_run'] if '--dry_run' not in argv else argv
    return argv


def _shrunk_run(argv):
    given = dict(re.findall(r'--config\.([\w.]+)=(.*)', '\n'.join(argv)))
    config = next(x for x in argv if x.startswith('--config='))
    overrides = [x for x in argv if x.startswith('--config.')]
    settings = flags.settings(config.partition('=')[2], overrides)
    if settings.config.data.startswith('tfds'):
        return ['-m', 'experiments.describe', config, *overrides]
    steps = settings.config.train.steps
    fields = SMALL | {k: v for k, v in given.items() if k not in ALWAYS}
    if config.endswith('.json'):  # whose model is one that is there
        fields = {k: v for k, v in fields.items() if not k.startswith(OF_A_MODEL)}
    # A run that is to go on further has more of them.
    fields['train.steps'] = 4 if steps <= 1_300 else 6
    if 'train.profile' in fields:
        fields['train.profile'] = '2:3'
    name = directory.run_name(settings.name, settings.overrides)
    workdir = [x for x in argv if x.startswith('--workdir')]
    others = [x for x in argv[2:] if not x.startswith(('--config', '--workdir'))]
    return [
        *('-m', 'experiments.run', config, *small_runs.flags(fields)),
        *(workdir or [f'--workdir={Path("runs") / name}']),
        *others,
    ]


if __name__ == '__main__':
    os.execv(sys.executable, [sys.executable, *shrunk(sys.argv[1:])])
