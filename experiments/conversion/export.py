from pathlib import Path

from experiments import storage
from experiments.command_line import flags
from experiments.conversion import huggingface, to_ctranslate2
from experiments.conversion.trained import Trained
from experiments.data.tokenizers.huggingface import HuggingfaceTokenizer
from experiments.data.tokenizers.sentencepiece import SentencePiece
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runtime import compilation

# Format → the package that writes it, and the extra that installs the package.
_NEEDED = {
    'ctranslate2': ('ctranslate2', 'ctranslate2'),
    'huggingface': ('safetensors', 'export'),
}


def export(
    workdir: Path,
    to: str,
    out: Path,
    quantization: str | None = None,
    trust_code: bool = False,
) -> None:
    """Exports a trained run to a new folder `out`, atomically.

    Args:
      to: 'ctranslate2' or 'huggingface'.
      quantization: 'int8' or 'float32' matrices, for ctranslate2.

    Raises:
      UserError: The folder exists, a package is missing, or the format doesn't support
        a field's value.
    """
    if storage.exists(out):
        raise UserError(f'--out={out} already exists. Choose a new folder.')
    if quantization is not None and to != 'ctranslate2':
        raise UserError(
            f'--quantization={quantization} is for --to=ctranslate2, not --to={to}. '
            'Leave it out.'
        )
    package, extra = _NEEDED[to]
    flags.require_packages(f'--to={to}', [package], extra)
    compilation.use_cache()
    run = OpenedRun(workdir, trust_code)
    trained = Trained(run.config, run.tokenizer, run.model, run.variables)
    if to != 'huggingface' and not isinstance(trained.tokenizer, SentencePiece):
        raise UserError(
            f'--to={to}: tokenizer={trained.config.tokenizer} is not supported. It '
            'must be a sentencepiece. For a Hugging Face tokenizer, use '
            '--to=huggingface.'
        )
    with storage.replacing(out) as folder:
        folder.mkdir()
        if to == 'ctranslate2':
            to_ctranslate2.write(trained, folder, quantization)
        elif isinstance(trained.tokenizer, HuggingfaceTokenizer):
            huggingface.write_published(trained, folder)
        else:
            huggingface.write(trained, folder)
