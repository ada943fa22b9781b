"""Writes what a run has trained in the format of another program.

python -m experiments.convert runs/wmt_small --to=huggingface --out=wmt_small_hf

huggingface: a folder that Transformers opens. ctranslate2: a model of CTranslate2.
stablehlo: programs that JAX alone runs. A setting of the run that the format does not
know is named before anything is written.
"""

from pathlib import Path

from experiments.command_line import flags
from experiments.export import export


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('workdir', type=Path, help='of the run')
    parser.add_argument('--to', required=True, choices=sorted(export.FORMATS))
    parser.add_argument('--out', type=Path, required=True, help='a new folder')
    parser.add_argument(
        '--quantization', choices=('float32', 'int8'), help='of --to=ctranslate2'
    )
    args = parser.parse_args()
    export.export(args.workdir, args.to, args.out, args.quantization)
    print(f'{args.out}: {args.workdir} for {args.to}')


if __name__ == '__main__':
    flags.main(main)
