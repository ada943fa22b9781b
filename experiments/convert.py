"""Converts a checkpoint of Transformers to a run, or a run to other formats.

python -m experiments.convert opus-mt-en-de --workdir=runs/opus-mt-en-de
python -m experiments.convert nllb --workdir=runs/n --source=eng_Latn --target=fra_Latn
python -m experiments.convert runs/wmt_small --to=huggingface --out=wmt_small_hf

The other commands accept the new directory like any run: translate, evaluate, report
and demo. To train from it, pass it to run as --config.init_from. A trained run can be
exported to these formats:
  huggingface: a folder for Transformers;
  ctranslate2: a model for CTranslate2.
Unsupported settings are reported before anything is written.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.convert')

import argparse
from pathlib import Path

from experiments.command_line import console, flags, screen
from experiments.config.schema import ExperimentConfig

FORMATS = ('ctranslate2', 'huggingface')


def main() -> None:
    parser = _parser()
    args = parser.parse_args()
    if args.to is None:
        if args.workdir is None or args.out or args.quantization:
            parser.error(
                'to convert a checkpoint, pass --workdir; to export a run, pass --to '
                'and --out'
            )
    elif args.out is None or args.workdir or args.source or args.target:
        parser.error('--to: needs --out, and excludes --workdir, --source and --target')
    with screen.on_stderr('converting'):
        text = _write_export(args) if args.to else _make_run(args)
    print(text)
    if args.workdir:
        console.say_next(f'python -m experiments.translate --workdir={args.workdir}')


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        'folder',
        type=Path,
        help='directory of a checkpoint (config.json, weights, tokenizer), or of a run',
    )
    made = parser.add_argument_group('convert a checkpoint to a run')
    made.add_argument('--workdir', type=Path, help='directory of the new run')
    made.add_argument(
        '--data', default=ExperimentConfig().data, help='data source for evaluation'
    )
    for side in ('source', 'target'):
        made.add_argument(
            f'--{side}',
            default='',
            help=f'{side} language, for multilingual checkpoints',
        )
    written = parser.add_argument_group('export a run')
    written.add_argument('--to', choices=FORMATS, help='export format')
    written.add_argument('--out', type=Path, help='new directory to write to')
    written.add_argument(
        '--quantization',
        choices=('float32', 'int8'),
        help='number format of --to=ctranslate2',
    )
    flags.add_trust_code(parser)
    return parser


# These functions import JAX, so that flags are checked without waiting for it.


def _write_export(args: argparse.Namespace) -> str:
    from experiments.conversion import export

    export.export(args.folder, args.to, args.out, args.quantization, args.trust_code)
    return f'{args.out}: {args.folder} for {args.to}'


def _make_run(args: argparse.Namespace) -> str:
    from experiments.conversion import converted
    from experiments.training.result import count_parameters

    conversion = converted.read_checkpoint(
        args.folder, args.data, args.source, args.target
    )
    variables = converted.write_run(conversion, args.workdir)
    facts = {
        'run': args.workdir,
        'family': conversion.model_type,
        'parameters': count_parameters(variables['params']),
    }
    return console.facts(facts)
