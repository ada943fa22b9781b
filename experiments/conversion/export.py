"""A run's directory → a new folder in the format of another program."""

from pathlib import Path

from experiments import storage
from experiments.command_line import flags
from experiments.conversion import huggingface, stablehlo, to_ctranslate2
from experiments.conversion.trained import Trained
from experiments.data.tokenizers.huggingface import Huggingface
from experiments.data.tokenizers.sentencepiece import SentencePiece
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runtime import compilation

# The package that writes a format, and the extra that has it.
_NEEDED = {
    'ctranslate2': ('ctranslate2', 'ctranslate2'),
    'huggingface': ('safetensors', 'export'),
    'stablehlo': ('flatbuffers', 'export'),
}


def export(
    workdir: Path,
    to: str,
    out: Path,
    quantization: str | None = None,
    trust_code: bool = False,
) -> None:
    """Writes what a run has trained, in another format; all of it or nothing.

    Args:
      workdir: the run's directory.
      to: 'ctranslate2', 'huggingface' or 'stablehlo'.
      out: a folder that is not there yet.
      quantization: of matrices, 'int8' or 'float32'; of ctranslate2 alone.
      trust_code: as `OpenedRun`.

    Raises:
      UserError: the folder is there, a package is missing, or the format does
        not know a field's value; names the field.
    """
    if storage.exists(out):
        raise UserError(f'--out={out} is there already: give a new folder')
    if quantization is not None and to != 'ctranslate2':
        raise UserError(
            f'--quantization={quantization} is for --to=ctranslate2, not --to={to}'
        )
    package, extra = _NEEDED[to]
    flags.require_packages(f'--to={to}', [package], extra)
    compilation.use_cache()
    run = OpenedRun(workdir, trust_code)
    trained = Trained(run.config, run.tokenizer, run.model, run.variables)
    if to != 'huggingface' and not isinstance(trained.tokenizer, SentencePiece):
        raise UserError(
            f'--to={to} writes tokenizers of sentencepiece, and this run has '
            f'tokenizer={trained.config.tokenizer}; one of huggingface is written by '
            '--to=huggingface'
        )
    with storage.replacing(out) as folder:
        folder.mkdir()
        if to == 'ctranslate2':
            to_ctranslate2.write(trained, folder, quantization)
        elif to == 'stablehlo':
            stablehlo.write(trained, folder)
        elif isinstance(trained.tokenizer, Huggingface):
            huggingface.write_published(trained, folder)
        else:
            huggingface.write(trained, folder)
