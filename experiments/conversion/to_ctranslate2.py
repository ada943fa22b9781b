"""A model of CTranslate2, by its own description of a Transformer.

`ctranslate2.specs.transformer_spec` says what an array is called and writes the file.
Matrices are outputs × inputs there; those of queries, keys and values stand one above
the other.
"""

# CTranslate2 is of an extra, which need not be installed.
# pyright: reportMissingImports=false

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.conversion import rewrite
from experiments.conversion.rewrite import Expressed
from experiments.conversion.trained import Trained, draw_tokens
from experiments.data.tokenizers.base import BOS, EOS, PAD, UNK
from experiments.errors import UserError
from flaxformer_lite.config import build, spec, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.sizes import Sizes

Params = Mapping[str, Any]

# Kind → variant → the arguments that are written, or change nothing after training.
_VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    'attention': {'softmax': ('dropout', 'scale')},
    'positions': {
        'none': (),
        'sinusoidal': ('interleaved', 'offset'),
        'learned': ('max_length', 'offset'),
        'rotary': ('max_wavelength',),
    },
    'norm': {'layer': ('epsilon',), 'rms': ('epsilon', 'offset')},
    'residual': {'post_norm': (), 'pre_norm': ()},
    'block': {'sequential': ()},
    'feed_forward': {
        'relu': ('dropout', 'bias', 'd_ff'),
        'gelu': ('dropout', 'bias', 'd_ff', 'tanh'),
        'silu': ('dropout', 'bias', 'd_ff'),
        'geglu': ('dropout', 'bias', 'd_ff', 'tanh'),
        'swiglu': ('dropout', 'bias', 'd_ff'),
    },
}
# Field → the value that it must have, and why.
_FIXED: dict[str, tuple[Any, str]] = {
    'architecture': ('encoder_decoder', 'a translator there has both stacks'),
    'cross_positions': ('none', 'attention to the source has no positions there'),
    'continuous_positions': (False, "the decoder's positions begin at 0 there"),
    'merged_attention': (False, 'what is merged there gave other logits than ours'),
    'projections': (True, 'an attention has four matrices there'),
    'logit_cap': (None, 'the bias that keeps padding out would be capped, too'),
}
_ROLES = ('encoder', 'decoder', 'cross')
_GATED = ('swiglu', 'geglu')
# Positions whose vectors are added. Without a table it would add sinusoids.
_OF_TABLE = ('none', 'sinusoidal', 'learned')
# Rows of a table of positions, at least: it refuses longer sentences.
_POSITIONS = 2048
# A logit that no token is chosen by, in any type of number that it computes with.
_NEVER = -1e4
# By how much the log-probability of a token may differ.
_TOLERANCE = 1e-3


def write(trained: Trained, folder: Path, quantization: str | None = None) -> None:
    """Writes what `ctranslate2.Translator` opens, and the tokenizer.

    Args:
      trained: the model.
      folder: is there, and empty.
      quantization: of matrices, 'int8' or 'float32'; None for the latter.

    Raises:
      UserError: a field's value is not computed there, or the scores of what is written
        are others.
    """
    model = rewrite.plain(trained.model, trained.config.model, trained.variables)
    check_model(model.config)
    _save(_described(model, trained), folder, 'float32')
    check_scores(folder, trained)
    if quantization == 'int8':
        _save(_described(model, trained), folder, quantization)
    (folder / 'tokenizer.model').write_bytes(trained.tokenizer.model)


def _save(described: Any, folder: Path, quantization: str) -> None:
    described.validate()
    described.optimize(quantization=quantization)
    described.save(str(folder))


def check_model(config: ModelConfig) -> None:
    """Refuses a model that CTranslate2 does not compute.

    Raises:
      UserError: names the first field, its value and the reason.
    """
    for field, (wanted, why) in _FIXED.items():
        if getattr(config, field) != wanted:
            raise _refusal(config, field, why)
    for kind in _VARIANTS:
        for role in _ROLES if kind == 'attention' else _ROLES[:2]:
            _check_variant(config, kind, role)
    # What it has once, and a config twice.
    for field, role in (('decoder_norm', 'encoder'), ('cross_num_heads', 'decoder')):
        value = config.value(field.partition('_')[2], role)
        if getattr(config, field) not in (None, value):
            raise _refusal(config, field, f'there it is that of the rest, {value}')
    for role in _ROLES:
        d_k, d_v = _sizes(config, role).d_k, _sizes(config, role).d_v
        if d_k != d_v:
            raise UserError(
                f'--to=ctranslate2 cannot have heads of model.d_k={d_k} and '
                f'model.d_v={d_v}, as the {role} has: they have one width there'
            )


def _check_variant(config: ModelConfig, kind: str, role: str) -> None:
    field = config.deciding_field(kind, role)
    name, given = spec.parse(getattr(config, field))
    known = _VARIANTS[kind]
    if name not in known:
        raise _refusal(config, field, f'there it is {", ".join(known)}')
    for argument in given:
        if argument not in known[name]:
            raise _refusal(config, field, f'{name} has no {argument} there')


def _refusal(config: ModelConfig, field: str, why: str) -> UserError:
    value = getattr(config, field)
    return UserError(f'--to=ctranslate2 cannot have model.{field}={value}: {why}')


def _sizes(config: ModelConfig, role: Any) -> Sizes:
    return config.cross_sizes() if role == 'cross' else config.sizes(role)


def _described(model: Expressed, trained: Trained) -> Any:
    """The whole model, described and with its arrays."""
    from ctranslate2.specs import transformer_spec

    config = model.config
    params = jax.tree.map(np.array, model.variables['params'])
    given = trained.config
    longest = given.batch.max_length + given.evaluation.extra_length
    longest = max(_POSITIONS, longest)
    encoder = _described_stack('encoder', params['encoder'], config, longest)
    decoder = _described_stack('decoder', params['decoder'], config, longest)
    shared = params['embedding']
    encoder.embeddings[0].weight = params.get('source_embedding', shared)
    decoder.embeddings.weight = shared
    encoder.scale_embeddings = config.scale_embeddings
    decoder.scale_embeddings = config.scale_embeddings
    decoder.projection.weight = params.get('output', shared)
    # By their biases, padding and the start token are never chosen.
    bias_V = np.zeros(trained.model.vocab_size, np.float32)
    bias_V += params.get('output_bias', 0.0)
    bias_V[[PAD, BOS]] = _NEVER
    decoder.projection.bias = bias_V
    scale = trained.model.dense.kernel_init.logit_scale
    if config.scale_logits:
        scale *= trained.model.d_model**-0.5
    decoder.scale_outputs = np.float32(scale)
    whole: Any = transformer_spec.TransformerSpec(encoder, decoder)
    pieces = trained.tokenizer.pieces(list(range(trained.model.vocab_size)))
    whole.register_source_vocabulary(pieces)
    whole.register_target_vocabulary(pieces)
    whole.config.unk_token = pieces[UNK]
    whole.config.bos_token = pieces[BOS]
    whole.config.decoder_start_token = pieces[BOS]
    whole.config.eos_token = pieces[EOS]
    whole.config.add_source_eos = True
    _, norm = spec.parse(config.norm)
    whole.config.layer_norm_epsilon = norm.get('epsilon', 1e-6)
    return whole


def _described_stack(
    role: Any, params: Params, config: ModelConfig, longest: int
) -> Any:
    """A stack's description, with its arrays but for embeddings and logits.

    Args:
      role: 'encoder' or 'decoder'.
      params: the stack's.
      config: the model's.
      longest: rows of the table of positions that have no end here.
    """
    from ctranslate2.specs import transformer_spec

    options = _options(config, role)
    if role == 'encoder':
        stack: Any = transformer_spec.TransformerEncoderSpec(**options)
    else:
        stack = transformer_spec.TransformerDecoderSpec(**options)
    offset = spec.parse(config.norm)[1].get('offset', 0.0)
    if 'embedding_norm' in params:
        _fill_norm(stack.layernorm_embedding, params['embedding_norm'], offset)
    if 'final' in params:
        _fill_norm(stack.layer_norm, params['final']['norm'], offset)
    if spec.parse(config.value('positions', role))[0] in _OF_TABLE:
        positions = _positions(config, role)
        # The vector of each position, as our own positions add it.
        length = getattr(positions, 'max_length', longest)
        variables = {'params': params.get('positions', {})}
        x_1TD = jnp.zeros((1, length, config.value('d_model', role)))
        positions_1T = jnp.arange(length)[None]
        table_1TD: Any = positions.apply(variables, x_1TD, positions_1T, method='embed')
        stack.position_encodings.encodings = np.asarray(table_1TD[0])
    for i, layer in enumerate(stack.layer):
        ours = params[f'layer_{i}']
        _fill_layer(layer, ours, config, role)
        norms = [layer.self_attention.layer_norm, layer.ffn.layer_norm]
        if 'cross_attention' in ours:
            norms.insert(1, layer.attention.layer_norm)
        for number, norm in enumerate(norms, 1):
            _fill_norm(norm, ours[f'residual_{number}']['norm'], offset)
    return stack


def _options(config: ModelConfig, role: Any) -> dict[str, Any]:
    """The arguments that the descriptions of both stacks have."""
    from ctranslate2.specs.common_spec import Activation

    network, given = spec.parse(config.value('feed_forward', role))
    gelu = Activation.GELUTanh if given.get('tanh') else Activation.GELU
    activations = {'relu': Activation.RELU, 'gelu': gelu, 'geglu': gelu}
    sizes = config.sizes(role)
    options: dict[str, Any] = dict(
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        num_heads_kv=sizes.num_kv_heads,
        head_dim=sizes.d_k,
        pre_norm=spec.parse(config.value('residual', role))[0] == 'pre_norm',
        activation=activations.get(network, Activation.SWISH),
        layernorm_embedding=config.norm_embeddings,
        ffn_glu=network in _GATED,
        rms_norm=spec.parse(config.norm)[0] == 'rms',
    )
    positions, _ = spec.parse(config.value('positions', role))
    if positions == 'rotary':
        wavelength = _positions(config, role).max_wavelength
        options |= dict(rotary_dim=sizes.d_k, rotary_base=wavelength)
    return options


def _positions(config: ModelConfig, role: Any) -> Any:
    text = config.value('positions', role)
    return variants.make('positions', text, sizes=config.sizes(role))


def _fill_norm(theirs: Any, ours: Params, offset: float) -> None:
    theirs.gamma = offset + ours['scale']
    if 'bias' in ours:
        theirs.beta = ours['bias']


def _fill_layer(layer: Any, ours: Params, config: ModelConfig, role: Any) -> None:
    """A layer's matrices."""
    _fill_attention(layer.self_attention, ours['self_attention'], config, role)
    if 'cross_attention' in ours:
        _fill_attention(layer.attention, ours['cross_attention'], config, 'cross')
    network = ours['feed_forward']
    _fill_linear(layer.ffn.linear_0, network.get('gate', network['up']))
    if 'gate' in network:
        _fill_linear(layer.ffn.linear_0_noact, network['up'])
    _fill_linear(layer.ffn.linear_1, network['down'])


def _fill_attention(theirs: Any, ours: Params, config: ModelConfig, role: str) -> None:
    """An attention's matrices, sizes and scale."""
    sizes = _sizes(config, role)
    field = config.deciding_field('attention', role)
    core = variants.make(field, getattr(config, field))
    theirs.head_dim = np.int32(sizes.d_k)
    theirs.num_heads_kv = np.int32(sizes.num_kv_heads)
    theirs.queries_scale = np.float32(core.scale_of(sizes.d_k))
    *inputs, out = theirs.linear
    parts = [ours[name] for name in ('query', 'key', 'value')]
    # All three are one matrix, or those of the source are.
    if len(inputs) == 1:
        _fill_linear(inputs[0], *parts)
    else:
        _fill_linear(inputs[0], parts[0])
        _fill_linear(inputs[1], *parts[1:])
    kernel = ours['out_proj']['kernel']
    kernel = kernel.reshape(-1, kernel.shape[-1])  # heads and their features are one
    _fill_linear(out, {**ours['out_proj'], 'kernel': kernel})


def _fill_linear(linear: Any, *parts: Params) -> None:
    """Matrices of ours, inputs × outputs, one above the other; with their biases."""
    weights = [part['kernel'].reshape(len(part['kernel']), -1).T for part in parts]
    linear.weight = np.ascontiguousarray(np.concatenate(weights))
    if 'bias' in parts[0]:
        linear.bias = np.concatenate([part['bias'].ravel() for part in parts])


def check_scores(folder: Path, trained: Trained) -> None:
    """Refuses a written model that scores drawn sentences otherwise than ours does.

    Raises:
      UserError: it does, by more than rounding: this version of CTranslate2 computes
        something else.
    """
    import ctranslate2

    source_BS = draw_tokens(trained.model, 11)
    target_BT = draw_tokens(trained.model, 8)
    pieces = trained.tokenizer.pieces
    translator = ctranslate2.Translator(str(folder), device='cpu', intra_threads=1)
    scored = translator.score_batch(
        [pieces(row) for row in source_BS.tolist()],
        [pieces(row) for row in target_BT.tolist()],
    )
    theirs = np.array([result.log_probs for result in scored])
    ours = _log_probabilities(trained, source_BS, target_BT)
    difference = float(abs(ours - theirs).max())
    if not difference <= _TOLERANCE:
        raise UserError(
            f'--to=ctranslate2: log-probabilities of CTranslate2 '
            f'{ctranslate2.__version__} differ from those of this model by '
            f'{difference:.1g}: use 4.8.5, or another version'
        )


def _log_probabilities(
    trained: Trained, source_BS: np.ndarray, target_BT: np.ndarray
) -> np.ndarray:
    """Of each token and the end, among the tokens that a translation may have."""
    config = dataclasses.replace(trained.config.model, dtype='float32')
    model = build.model(config, trained.model.vocab_size, trained.model.special_tokens)
    source_BS = np.insert(source_BS, source_BS.shape[1], EOS, axis=1)
    inputs_BT = np.insert(target_BT, 0, BOS, axis=1)
    labels_BT = np.insert(target_BT, target_BT.shape[1], EOS, axis=1)
    apply = jax.jit(model.apply)
    logits_BTV = np.array(apply(trained.variables, source_BS, inputs_BT))
    logits_BTV[..., [PAD, BOS]] = -np.inf
    log_probs_BTV = np.asarray(jax.nn.log_softmax(logits_BTV))
    of_labels_BT1 = np.take_along_axis(log_probs_BTV, labels_BT[..., None], -1)
    return of_labels_BT1[..., 0]
