"""Export of runs."""

import dataclasses
from pathlib import Path

from experiments import storage
from experiments.command_line import flags
from experiments.data.tokenizers.sentencepiece import SentencePiece
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runtime import compilation
from flaxformer_checkpoints.exports import huggingface, to_ctranslate2, to_peft
from flaxformer_checkpoints.exports.trained import Trained
from flaxformer_checkpoints.tokenizer import HuggingfaceTokenizer
from flaxformer_lite import adapters
from flaxformer_lite.config import builder
from flaxformer_lite.config.spec import Component

# Format → the package that writes it, and the extra that installs the package.
_REQUIREMENTS = {
    'ctranslate2': ('ctranslate2', 'ctranslate2'),
    'huggingface': ('safetensors', 'export'),
    'peft': ('safetensors', 'export'),
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
      to: 'ctranslate2', 'huggingface' or 'peft'.
      quantization: 'int8' or 'float32' matrices, for ctranslate2.
    """
    if storage.exists(out):
        raise UserError(f'--out={out} already exists. Choose a new folder.')
    if quantization is not None and to != 'ctranslate2':
        raise UserError(
            f'--quantization={quantization} is for --to=ctranslate2, not --to={to}. '
            'Leave it out.'
        )
    package, extra = _REQUIREMENTS[to]
    flags.require_packages(f'--to={to}', [package], extra)
    compilation.use_cache()
    run = OpenedRun(workdir, trust_code)
    trained = _as_exported(run)
    if to == 'ctranslate2' and not isinstance(trained.tokenizer, SentencePiece):
        raise UserError(
            f'--to=ctranslate2: tokenizer={trained.config.tokenizer} is not '
            'supported. It must be a sentencepiece. For a Hugging Face tokenizer, use '
            '--to=huggingface.'
        )
    with storage.replacing(out) as folder:
        folder.mkdir()
        if to == 'ctranslate2':
            to_ctranslate2.write(trained, folder, quantization)
        elif to == 'peft':
            to_peft.write(run, trained, folder)
        elif isinstance(trained.tokenizer, HuggingfaceTokenizer):
            huggingface.write_published(trained, folder)
        else:
            huggingface.write(trained, folder)


def _as_exported(run: OpenedRun) -> Trained:
    """Returns a run with merged adapters, and without later heads."""
    config, model = run.config, run.model
    variables = run.variables
    fields = {}
    if config.model.dense is not None:
        variables = adapters.merge(model, variables)
        fields['dense'] = None
    architecture = config.model.architecture
    if architecture.name == 'multi_token':
        others = {k: x for k, x in architecture.arguments.items() if k != 'heads'}
        fields['architecture'] = Component('', 'encoder_decoder').with_arguments(
            **others
        )
        params = variables['params'].items()
        used = {k: x for k, x in params if not k.startswith('decoder_heads_')}
        variables = variables | {'params': used}
    if not fields:
        return Trained(config, run.tokenizer, model, variables)
    config = dataclasses.replace(config, model=config.model.with_values(fields))
    plain = builder.build(
        config.model, model.vocab_size, model.special_tokens, model.source_vocab_size
    )
    return Trained(config, run.tokenizer, plain, variables)
