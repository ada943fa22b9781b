"""Export to CTranslate2.

`ctranslate2.specs.transformer_spec` names the arrays and writes the file. Its matrices
are outputs × inputs. It concatenates those of queries, keys and values along outputs.
"""

# An extra installs CTranslate2, which may be missing.
# pyright: reportMissingImports=false

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data.tokenizers.base import BOS, EOS, PAD, UNK
from experiments.errors import UserError
from flaxformer_checkpoints.exports import normalization, rewrite
from flaxformer_checkpoints.exports.trained import Trained, draw_tokens, logits
from flaxformer_lite.config import builder, schema
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.config.spec import Component
from flaxformer_lite.training.batch import make_batch

Params = Mapping[str, Any]

# Field → its supported variants or values, which docs/packages list.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    'architecture': ('encoder_decoder',),
    'attention': ('softmax',),
    'positions': ('none', 'sinusoidal', 'learned', 'rotary', 't5', 'shaw'),
    'cross.positions': ('none',),
    'continuous_positions': (False,),
    'norm': ('layer', 'rms'),
    'residual': ('post_norm', 'pre_norm'),
    'block': ('sequential',),
    'feed_forward': ('relu', 'gelu', 'silu', 'geglu', 'swiglu'),
    'merged_attention': (False,),
    'projections': (True,),
    'logit_cap': ('empty',),  # a cap would also apply to the padding's bias
}
# Arguments of variants that are supported, or have no effect after training.
# `check_scores` detects the effect of all other fields.
_ARGUMENTS = (
    *('dropout', 'scale', 'interleaved', 'scaled_down', 'offset'),
    *('max_length', 'max_wavelength', 'buckets', 'max_distance'),
    *('query_key_norm', 'query_key_offset'),
    *('epsilon', 'bias', 'd_ff', 'tanh'),
)
# Minimum rows of a position table, which limits the length of sentences.
_POSITIONS = 2048
# A logit that excludes a token, in any type that CTranslate2 computes in.
_NEVER = -1e4
# Maximum difference of a token's log-probability.
_TOLERANCE = 1e-3


def write(trained: Trained, folder: Path, quantization: str | None = None) -> None:
    """Writes the files for `ctranslate2.Translator`, and the tokenizer.

    Args:
      folder: Exists and is empty.
      quantization: As for `export.export`. Defaults to 'float32'.
    """
    own = rewrite.plain(trained.model, trained.config.model, trained.variables)
    own = own.with_fields(dtype='float32')
    check_model(own.config)
    model = builder.build(own.config, trained.model.vocab_size)
    trained = trained._replace(model=model, variables=own.variables)
    _save(_model_spec(trained, own.config), folder, 'float32')
    check_scores(folder, trained)
    if quantization == 'int8':
        _save(_model_spec(trained, own.config), folder, quantization)
    tokenizer = normalization.self_normalizing(trained.tokenizer.model)
    (folder / 'tokenizer.model').write_bytes(tokenizer)


def _save(described: Any, folder: Path, quantization: str) -> None:
    described.validate()
    described.optimize(quantization=quantization)
    described.save(str(folder))


def check_model(config: ModelConfig) -> None:
    """Raises UserError for components that CTranslate2 doesn't support."""
    for field in schema.fields():
        value = config.get(field)
        kind = field if field in SUPPORTED else field.rpartition('.')[2]
        if kind not in SUPPORTED or value is None:
            continue
        prefix = f'--to=ctranslate2: model.{field}={value}: '
        variant, arguments = value, {}
        if isinstance(value, Component):
            variant, arguments = value.name, value.arguments
        if variant not in SUPPORTED[kind]:
            known = ', '.join(map(str, SUPPORTED[kind]))
            raise UserError(f'{prefix}CTranslate2 supports only {known}.')
        for argument in arguments:
            if argument not in _ARGUMENTS:
                raise UserError(f'{prefix}CTranslate2 has no {argument} for {variant}.')
    _check_cross_norm(config)


def _check_cross_norm(config: ModelConfig) -> None:
    field = config.deciding_field('attention', 'cross')
    is_normalized = config.get(field).arguments.get('query_key_norm')
    if is_normalized and config.cross_sizes().num_heads > 1:
        raise UserError(
            f'--to=ctranslate2: model.{field}={config.get(field)}: in cross-attention, '
            'CTranslate2 normalizes the queries of all heads together. Train with '
            'model.cross.attention=softmax.'
        )


def _model_spec(trained: Trained, config: ModelConfig) -> Any:
    from ctranslate2.specs import transformer_spec

    model: Any = trained.model
    params = jax.tree.map(np.array, trained.variables['params'])
    rows = max(_POSITIONS, trained.longest)
    stacks = model.stacks()
    encoder = _stack_spec(stacks['encoder'], params['encoder'], rows)
    decoder = _stack_spec(stacks['decoder'], params['decoder'], rows)
    shared = params['embedding']
    encoder.embeddings[0].weight = params.get('source_embedding', shared)
    encoder.scale_embeddings = config.scale_embeddings
    decoder.embeddings.weight = shared
    decoder.scale_embeddings = config.scale_embeddings
    decoder.projection.weight = params.get('output', shared)
    # These biases exclude padding and the start token.
    bias_V = np.zeros(model.vocab_size, np.float32)
    bias_V += params.get('output_bias', 0.0)
    bias_V[[PAD, BOS]] = _NEVER
    decoder.projection.bias = bias_V
    scale = model.dense.kernel_init.logit_scale
    if config.scale_logits:
        scale *= model.target_d_model**-0.5
    decoder.scale_outputs = np.float32(scale)

    whole: Any = transformer_spec.TransformerSpec(encoder, decoder)
    pieces = trained.tokenizer.pieces(list(range(model.vocab_size)))
    whole.register_source_vocabulary(pieces)
    whole.register_target_vocabulary(pieces)
    whole.config.unk_token = pieces[UNK]
    whole.config.bos_token = pieces[BOS]
    whole.config.decoder_start_token = pieces[BOS]
    whole.config.eos_token = pieces[EOS]
    whole.config.add_source_eos = True
    norm = stacks['encoder'].block.residual.norm
    whole.config.layer_norm_epsilon = norm.epsilon
    return whole


def _options(stack: Any, params: Params) -> dict[str, Any]:
    block = stack.block
    sizes = block.self_attention.sizes
    positions = block.self_attention.positions
    options = dict(
        num_layers=stack.num_layers,
        num_heads=sizes.num_heads,
        num_heads_kv=sizes.num_kv_heads,
        head_dim=sizes.d_k,
        pre_norm='final' in params,
        activation=_activation(block.feed_forward),
        layernorm_embedding='embedding_norm' in params,
        ffn_glu='gate' in params['layer_0']['feed_forward'],
        rms_norm=not block.residual.norm.biased,
        qk_norm=block.self_attention.core_attention.query_key_norm,
        relative_attention_bias=_is(positions, 'T5'),
        relative_position=_is(positions, 'Shaw'),
    )
    if _is(positions, 'Rotary'):
        options['rotary_dim'] = sizes.d_k
        options['rotary_base'] = positions.max_wavelength
    return options


def _is(component: Any, name: str) -> bool:
    return type(component).__name__ == name


def _activation(feed_forward: Any) -> Any:
    from ctranslate2.specs.common_spec import Activation

    name = type(feed_forward).__name__
    if name == 'ReLU':
        return Activation.RELU
    if name in ('SiLU', 'SwiGLU'):
        return Activation.SWISH
    if feed_forward.tanh:
        return Activation.GELUTanh
    return Activation.GELU


def _stack_spec(stack: Any, params: Params, rows: int) -> Any:
    from ctranslate2.specs import transformer_spec

    block = stack.block
    positions = block.self_attention.positions
    kind: Any = transformer_spec.TransformerEncoderSpec
    if block.cross_attention is not None:
        kind = transformer_spec.TransformerDecoderSpec
    theirs = kind(**_options(stack, params))
    offset = getattr(block.residual.norm, 'offset', 0.0)
    if 'embedding_norm' in params:
        _fill_norm(theirs.layernorm_embedding, params['embedding_norm'], offset)
    if 'final' in params:
        _fill_norm(theirs.layer_norm, params['final']['norm'], offset)
    if not positions.in_attention and not _is(positions, 'T5'):
        table_TD = _table(stack, params.get('positions', {}), rows)
        theirs.position_encodings.encodings = table_TD
    for i, layer in enumerate(theirs.layer):
        ours = params[f'layer_{i}']
        _fill_attention(
            layer.self_attention, block.self_attention, ours['self_attention']
        )
        if _is(positions, 'T5'):
            # All layers refer to the stack's single table.
            _fill_biases(layer.self_attention, positions, params['positions'])
        norms = [layer.self_attention.layer_norm]
        if block.cross_attention is not None:
            _fill_attention(
                layer.attention, block.cross_attention, ours['cross_attention']
            )
            norms.append(layer.attention.layer_norm)
        _fill_feed_forward(layer.ffn, ours['feed_forward'])
        norms.append(layer.ffn.layer_norm)
        for number, norm in enumerate(norms, 1):
            _fill_norm(norm, ours[f'residual_{number}']['norm'], offset)
    return theirs


def _table(stack: Any, params: Params, rows: int) -> np.ndarray:
    """Returns the vectors TD that the model's positions add.

    Without a table of zeros, CTranslate2 would add sinusoids.
    """
    length = getattr(stack.positions, 'max_length', rows)
    x_1TD = jnp.zeros((1, length, stack.d_model))
    positions_1T = jnp.arange(length)[None]
    variables = {'params': params}
    table_1TD = stack.positions.apply(variables, x_1TD, positions_1T, method='embed')
    return np.asarray(table_1TD[0])


def _fill_norm(theirs: Any, params: Params, offset: float) -> None:
    theirs.gamma = offset + params['scale']
    if 'bias' in params:
        theirs.beta = params['bias']


def _fill_feed_forward(theirs: Any, params: Params) -> None:
    if 'gate' in params:
        _fill_linear(theirs.linear_0, params['gate'])
        _fill_linear(theirs.linear_0_noact, params['up'])
    else:
        _fill_linear(theirs.linear_0, params['up'])
    _fill_linear(theirs.linear_1, params['down'])


def _fill_attention(theirs: Any, attention: Any, params: Params) -> None:
    sizes = attention.sizes
    scale = attention.core_attention.scale_of(sizes.d_k)
    theirs.queries_scale = np.float32(scale)
    theirs.head_dim = np.int32(sizes.d_k)
    theirs.num_heads_kv = np.int32(sizes.num_kv_heads)
    *inputs, out = theirs.linear
    query, key, value = params['query'], params['key'], params['value']
    if len(inputs) == 1:
        _fill_linear(inputs[0], query, key, value)
    else:  # keys and values come from the source
        _fill_linear(inputs[0], query)
        _fill_linear(inputs[1], key, value)
    # The output matrix takes heads and their features as one input axis.
    kernel_HUD = params['out_proj']['kernel']
    kernel = kernel_HUD.reshape(-1, kernel_HUD.shape[-1])
    _fill_linear(out, {**params['out_proj'], 'kernel': kernel})
    _fill_query_key_norm(theirs, attention.core_attention, params)
    if _is(attention.positions, 'Shaw'):
        theirs.relative_position_keys = params['positions']['key']
        theirs.relative_position_values = params['positions']['value']


def _fill_query_key_norm(theirs: Any, core: Any, params: Params) -> None:
    if not core.query_key_norm:
        # CTranslate2's decoder has these norms in both attentions or in neither.
        theirs.__dict__.pop('q_norm', None)
        theirs.__dict__.pop('k_norm', None)
        return
    norms = params['core_attention']
    _fill_norm(theirs.q_norm, norms['query_norm'], core.query_key_offset)
    _fill_norm(theirs.k_norm, norms['key_norm'], core.query_key_offset)


def _fill_biases(theirs: Any, positions: Any, params: Params) -> None:
    theirs.relative_attention_bias = params['table']
    theirs.relative_attention_max_distance = np.int32(positions.max_distance)


def _fill_linear(theirs: Any, *parts: Params) -> None:
    weights = []
    biases = []
    for part in parts:
        kernel = part['kernel']
        inputs = len(kernel)
        weights.append(kernel.reshape(inputs, -1).T)
        if 'bias' in part:
            biases.append(part['bias'].ravel())
    theirs.weight = np.ascontiguousarray(np.concatenate(weights))
    if biases:
        theirs.bias = np.concatenate(biases)


def check_scores(folder: Path, trained: Trained) -> None:
    """Raises UserError if a written model scores random sentences differently."""
    import ctranslate2

    source_BS = draw_tokens(trained.model, 11).tolist()
    target_BT = draw_tokens(trained.model, 8).tolist()
    ours = _log_probabilities(trained, source_BS, target_BT)
    translator = ctranslate2.Translator(str(folder), device='cpu', intra_threads=1)
    sources = [trained.tokenizer.pieces(row) for row in source_BS]
    targets = [trained.tokenizer.pieces(row) for row in target_BT]
    try:
        scored = translator.score_batch(sources, targets)
    except ValueError as error:  # arrays whose shapes don't fit
        reason = str(error)
    else:
        theirs = np.array([result.log_probs for result in scored])
        difference = float(abs(ours - theirs).max())
        if difference <= _TOLERANCE:
            return
        reason = f'its log-probabilities differ by {difference:.1g}'
    raise UserError(
        f'--to=ctranslate2: CTranslate2 {ctranslate2.__version__} does not compute '
        f'this model: {reason}. It needs model.d_k = model.d_v, one epsilon in all '
        'norms and equally many heads in both attentions of the decoder. Otherwise, '
        'install version 4.8.5.'
    )


def _log_probabilities(trained: Trained, sources: Any, targets: Any) -> np.ndarray:
    batch = make_batch(
        [[*row, EOS] for row in sources],
        [[*row, EOS] for row in targets],
    )
    source_BS = batch['source']
    inputs_BT = batch['inputs']
    logits_BTV = logits(trained.model, trained.variables, source_BS, inputs_BT)
    logits_BTV[..., [PAD, BOS]] = -np.inf
    loss_BT = optax.losses.softmax_cross_entropy_with_integer_labels(
        jnp.asarray(logits_BTV), batch['labels']
    )
    return -np.asarray(loss_BT)
