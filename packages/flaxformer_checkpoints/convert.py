"""Converts a checkpoint of Transformers to a run, or a run to other formats.

python -m flaxformer_checkpoints.convert opus-mt-en-de --workdir=runs/opus-mt-en-de
python -m flaxformer_checkpoints.convert --from=google-t5/t5-small --workdir=runs/t5
python -m flaxformer_checkpoints.convert nllb --workdir=runs/n --source=eng_Latn \\
    --target=fra_Latn
python -m flaxformer_checkpoints.convert runs/wmt_small --to=huggingface --out=small_hf

The other commands accept the new directory like any run: translate, evaluate, report
and demo. To train from it, pass it to run as --config.init_from. A trained run can be
exported to these formats:
  huggingface: a folder for Transformers;
  ctranslate2: a model for CTranslate2;
  peft: the adapters of model.dense alone, for PEFT.
Unsupported settings are reported before anything is written.
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('flaxformer_checkpoints.convert')

import argparse
from pathlib import Path

from experiments.command_line import console, flags, screen
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from flaxformer_checkpoints.loading import adaptation

FORMATS = ('ctranslate2', 'huggingface', 'peft')
_LOADERS = {  # Python that loads an exported folder
    'ctranslate2': 'ctranslate2.Translator({})',
    'huggingface': 'transformers.AutoModelForSeq2SeqLM.from_pretrained({}), or '
    'AutoModelForCausalLM for a decoder-only model',
    'peft': 'peft.PeftModel.from_pretrained(published_model, {})',
}
CHECKPOINT_FLAGS = ('workdir', 'source', 'target', 'hub', 'to_encoder_decoder')


def main() -> None:
    parser = _parser()
    args = parser.parse_args()
    if args.to is None:
        if args.workdir is None or args.out or args.quantization or args.push:
            parser.error(
                'to convert a checkpoint, pass --workdir; to export a run, pass --to '
                'and --out'
            )
    elif args.out is None or any(getattr(args, name) for name in CHECKPOINT_FLAGS):
        parser.error(
            '--to: needs --out, and excludes --workdir, --from, --source, --target and '
            '--to_encoder_decoder'
        )
    if (args.folder is None) == (args.hub is None):
        parser.error('pass a directory, or the name of a checkpoint as --from')
    if args.push:
        _check_push(args)
    if args.hub:
        args.folder = _downloaded(args.hub)
    with screen.on_stderr('converting'):
        text = _write_export(args) if args.to else _make_run(args)
    print(text)
    if args.workdir:
        console.say_next(_next_command(args))


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        'folder',
        type=Path,
        nargs='?',
        help='directory of a checkpoint (config.json, weights, tokenizer), or of a run',
    )
    to_run = parser.add_argument_group('convert a checkpoint to a run')
    to_run.add_argument(
        '--from',
        dest='hub',
        metavar='NAME',
        help='name on the Hugging Face Hub, OWNER/NAME or OWNER/NAME@REVISION',
    )
    to_run.add_argument('--workdir', type=Path, help='directory of the new run')
    to_run.add_argument(
        '--data', default=ExperimentConfig().data, help='data source for evaluation'
    )
    for side in ('source', 'target'):
        to_run.add_argument(
            f'--{side}',
            default='',
            help=f'{side} language, for multilingual checkpoints',
        )
    to_run.add_argument(
        '--to_encoder_decoder',
        choices=adaptation.CROSS_ATTENTION,
        help='copy the layers of a decoder-only checkpoint to an encoder and a '
        'decoder, with cross-attention merged with self-attention or separate',
    )
    written = parser.add_argument_group('export a run')
    written.add_argument('--to', choices=FORMATS, help='export format')
    written.add_argument('--out', type=Path, help='new directory to write to')
    written.add_argument(
        '--quantization',
        choices=('float32', 'int8'),
        help='number format of --to=ctranslate2',
    )
    written.add_argument(
        '--push',
        metavar='NAME',
        help='also upload the folder of --to=huggingface to the Hugging Face Hub',
    )
    flags.add_trust_code(parser)
    return parser


# These functions import JAX, so that flags are checked without waiting for it.


def _check_push(args: argparse.Namespace) -> None:
    from flaxformer_checkpoints import hub

    if args.to != 'huggingface':
        raise UserError(f'--push={args.push}: needs --to=huggingface.')
    hub.check_push(args.push)


def _downloaded(name: str) -> Path:
    from flaxformer_checkpoints import hub

    return hub.checkpoint(name)


def _write_export(args: argparse.Namespace) -> str:
    from flaxformer_checkpoints import hub
    from flaxformer_checkpoints.exports import export

    export.export(args.folder, args.to, args.out, args.quantization, args.trust_code)
    text = f'exported {args.folder} for {args.to} to {args.out}'
    text += f'\nload it with {_LOADERS[args.to].format(repr(str(args.out)))}'
    if args.push:
        text += f'\n{hub.push(args.out, args.push, args.folder)}'
    return text


def _next_command(args: argparse.Namespace) -> str:
    if args.to_encoder_decoder:  # it can't translate before it is trained
        run = args.workdir
        return (
            f'python -m experiments.run --config={run}/config.json '
            f'--config.init_from={run} --workdir=NEW'
        )
    return f'python -m experiments.translate --workdir={args.workdir}'


def _make_run(args: argparse.Namespace) -> str:
    from experiments.training.result import count_parameters
    from flaxformer_checkpoints import converted

    conversion = converted.read_checkpoint(
        args.folder, args.data, args.source, args.target, args.to_encoder_decoder
    )
    variables = converted.write_run(conversion, args.workdir)
    facts = {
        'run': args.workdir,
        'family': conversion.model_type,
        'parameters': count_parameters(variables['params']),
    }
    return console.facts(facts)
