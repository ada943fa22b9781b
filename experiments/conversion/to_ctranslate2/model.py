"""A model of CTranslate2, by its own description of a Transformer.

`ctranslate2.specs.transformer_spec` says what an array is called and writes the file.
Matrices are outputs × inputs there; queries, keys and values are one matrix.
"""

# CTranslate2 is of an extra, which need not be installed.
# pyright: reportMissingImports=false

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.command_line import flags
from experiments.conversion import rewrite
from experiments.conversion.rewrite import Expressed
from experiments.conversion.to_ctranslate2 import fields, scores, stack
from experiments.conversion.trained import Trained
from experiments.data.tokenizer import BOS, EOS, PAD, UNK
from flaxformer_lite.config import spec
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.models.base import Model

# A logit that no token is chosen by, in any type of number that it computes with.
_NEVER = -1e4
# Rows of a table of positions, at least: it refuses longer sentences.
_POSITIONS = 2048


def prepare(
    trained: Trained, quantization: str | None = None
) -> Callable[[Path], None]:
    """What writes a folder that `ctranslate2.Translator` opens, with the tokenizer.

    Args:
      trained: the model.
      quantization: of matrices, 'int8' or 'float32'; None for the latter.

    Raises:
      UserError: the package is missing, or a field's value is not computed there; and
        what writes raises it where the scores of what is written are others.
    """
    flags.require_packages('--to=ctranslate2', ['ctranslate2'], 'ctranslate2')
    model = rewrite.plain(trained.model, trained.config.model, trained.variables)
    fields.check(model.config)

    def write(folder: Path) -> None:
        _save(_described(model, trained), folder, 'float32')
        scores.check(folder, trained)
        if quantization == 'int8':
            _save(_described(model, trained), folder, quantization)
        (folder / 'tokenizer.model').write_bytes(trained.tokenizer.model)

    return write


def _save(described: Any, folder: Path, quantization: str) -> None:
    described.validate()
    described.optimize(quantization=quantization)
    described.save(str(folder))


def _described(model: Expressed, trained: Trained) -> Any:
    """The whole model, described and with its arrays."""
    from ctranslate2.specs import transformer_spec

    config = model.config
    params = jax.tree.map(np.array, model.variables['params'])
    given = trained.config
    longest = given.batch.max_length + given.evaluation.extra_length
    longest = max(_POSITIONS, longest)
    encoder = stack.described('encoder', params['encoder'], config, longest)
    decoder = stack.described('decoder', params['decoder'], config, longest)
    shared = params['embedding']
    encoder.embeddings[0].weight = params.get('source_embedding', shared)
    decoder.embeddings.weight = shared
    encoder.scale_embeddings = decoder.scale_embeddings = config.scale_embeddings
    decoder.projection.weight = params.get('output', shared)
    decoder.projection.bias = _output_bias(trained, params)
    decoder.scale_outputs = _output_scale(trained.model, config)
    whole = transformer_spec.TransformerSpec(encoder, decoder)
    pieces = trained.tokenizer.pieces(list(range(trained.model.vocab_size)))
    whole.register_source_vocabulary(pieces)
    whole.register_target_vocabulary(pieces)
    whole.config.unk_token = pieces[UNK]
    whole.config.bos_token = whole.config.decoder_start_token = pieces[BOS]
    whole.config.eos_token = pieces[EOS]
    whole.config.add_source_eos = True
    _, norm = spec.parse(config.norm)
    whole.config.layer_norm_epsilon = norm.get('epsilon', 1e-6)
    return whole


def _output_scale(model: Model, config: ModelConfig) -> np.float32:
    """What hidden states are multiplied by before the logits."""
    scale = model.dense.kernel_init.logit_scale
    if config.scale_logits:
        scale *= model.d_model**-0.5
    return np.float32(scale)


def _output_bias(trained: Trained, params: Mapping[str, Any]) -> np.ndarray:
    """The logits' biases, by which padding and the start token are never chosen."""
    bias_V = np.zeros(trained.model.vocab_size, np.float32)
    bias_V += params.get('output_bias', 0.0)
    bias_V[[PAD, BOS]] = _NEVER
    return bias_V
