"""Makes a run of a checkpoint that Transformers saved, or the other way round.

python -m experiments.convert opus-mt-en-de --workdir=runs/opus-mt-en-de
python -m experiments.convert nllb --workdir=runs/n --source=eng_Latn --target=fra_Latn
python -m experiments.convert runs/wmt_small --to=huggingface --out=wmt_small_hf

Other commands take the directory of the first as any run: translate, evaluate, report,
demo; and run takes it as --config.init_from. The last writes what a run has trained as
  huggingface: a folder that Transformers opens;
  ctranslate2: a model of CTranslate2.
What a setting stands in the way of is named before anything is written.
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
            parser.error('a checkpoint takes --workdir; a run takes --to and --out')
    elif args.out is None or args.workdir or args.source or args.target:
        parser.error('--to takes --out, and nothing that says how a run is made')
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
        help='of a checkpoint: config.json, weights, tokenizer; with --to of a run',
    )
    made = parser.add_argument_group('a checkpoint becomes a run')
    made.add_argument('--workdir', type=Path, help='of the run, which must not exist')
    made.add_argument(
        '--data', default=ExperimentConfig().data, help='what evaluate scores it on'
    )
    for side in ('source', 'target'):
        made.add_argument(
            f'--{side}', default='', help=f'language of {side}s, where it is a token'
        )
    written = parser.add_argument_group('what a run has trained is written')
    written.add_argument('--to', choices=FORMATS, help='for which program')
    written.add_argument('--out', type=Path, help='a new folder')
    written.add_argument(
        '--quantization', choices=('float32', 'int8'), help='of --to=ctranslate2'
    )
    flags.add_trust_code(parser)
    return parser


# What imports JAX is imported after the flags: a mistyped flag is answered at once.


def _write_export(args: argparse.Namespace) -> str:
    """Writes a run for another program, and says where."""
    from experiments.conversion import export

    export.export(args.folder, args.to, args.out, args.quantization, args.trust_code)
    return f'{args.out}: {args.folder} for {args.to}'


def _make_run(args: argparse.Namespace) -> str:
    """Makes a run of a checkpoint, and says what it is."""
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
