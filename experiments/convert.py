"""Makes the directory of a run of a checkpoint that Hugging Face Transformers saved.

python -m experiments.convert opus-mt-en-de --workdir=runs/opus-mt-en-de

Other commands take it as any run: translate, evaluate, report, look.
"""

from pathlib import Path

from experiments.command_line import console, flags
from experiments.config.schema import ExperimentConfig


def main() -> None:
    args = _parser().parse_args()
    # These import JAX, so they come after the flags: a mistyped flag is answered at
    # once.
    from experiments.runs import converted
    from experiments.training.result import count_parameters

    conversion = converted.read(args.folder, args.data, args.source, args.target)
    variables = converted.write(conversion, args.workdir)
    facts = {
        'run': args.workdir,
        'family': conversion.model_type,
        'data': conversion.config.data,
        'vocabulary': conversion.tokenizer.vocab_size,
        'parameters': count_parameters(variables['params']),
    }
    print(console.facts(facts))


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        'folder', type=Path, help='of the checkpoint: config.json, weights, tokenizer'
    )
    parser.add_argument(
        '--workdir',
        type=flags.directory,
        required=True,
        help='of the run, which must not exist',
    )
    parser.add_argument(
        '--data',
        default=ExperimentConfig().data,
        help='what evaluate scores it on, as in a config (default: %(default)s)',
    )
    parser.add_argument(
        '--source', default='', help='language of sources, where it is a token'
    )
    parser.add_argument(
        '--target', default='', help='language of targets, where it is a token'
    )
    return parser


if __name__ == '__main__':
    flags.main(main)
