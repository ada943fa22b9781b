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
import jax.numpy as jnp
import numpy as np

from experiments.command_line import packages
from experiments.command_line.errors import UserError
from experiments.conversion import rewrite
from experiments.conversion.rewrite import Expressed
from experiments.conversion.trained import Trained
from experiments.data.tokenizer import BOS, EOS, UNK
from flaxformer_lite.config import spec, variants
from flaxformer_lite.config.schema import ModelConfig

# Field → what CTranslate2 knows; of a spec the name. What a decoder has of its own is
# compared with the plain field.
_KNOWN: dict[str, tuple[Any, ...]] = {
    'architecture': ('encoder_decoder',),
    'attention': ('softmax',),
    'positions': ('sinusoidal', 'sinusoidal_t2t', 'learned'),
    'cross_positions': ('none',),
    'norm': ('layer', 'rms'),
    'residual': ('pre_norm', 'post_norm'),
    'feed_forward': ('relu', 'gelu', 'silu', 'swiglu', 'geglu'),
    'projections': (True,),
    'parallel': (False,),
    'scale_logits': (False,),
    'logit_cap': (None,),
}
# Arguments of these that change nothing after training, or are written.
_ARGUMENTS = {
    'attention': {'dropout'},
    'norm': {'epsilon'},
    'positions': {'interleaved', 'offset', 'max_length'},
    'feed_forward': {'dropout', 'bias', 'tanh', 'd_ff'},
}
_STACKS = ('encoder', 'decoder')
_GATED = ('swiglu', 'geglu')
# Rows of the table of sinusoids: CTranslate2 refuses longer sentences.
_POSITIONS = 2048


def prepare(
    trained: Trained, quantization: str | None = None
) -> Callable[[Path], None]:
    """What writes a folder that `ctranslate2.Translator` opens, with the tokenizer.

    Args:
      trained: the model.
      quantization: of matrices, 'int8' or 'float32'; None for the latter.

    Raises:
      UserError: the package is missing, or a field's value is not known to CTranslate2.
    """
    packages.check('--to=ctranslate2', ['ctranslate2'], 'ctranslate2')
    model = rewrite.plain(trained.model, trained.config.model, trained.variables)
    check(model.config)

    def write(folder: Path) -> None:
        described = _described(model, trained)
        described.validate()
        described.optimize(quantization=quantization or 'float32')
        described.save(str(folder))
        (folder / 'tokenizer.model').write_bytes(trained.tokenizer.model)

    return write


def check(config: ModelConfig) -> None:
    """Refuses a field's value that CTranslate2 does not know, or is not written.

    Raises:
      UserError: names the first.
    """
    for field, known in _KNOWN.items():
        roles = ('encoder', 'decoder', 'cross') if field == 'attention' else _STACKS
        for role in roles:
            deciding = config.deciding_field(field, role)
            value = getattr(config, deciding)
            if not _is_known(field, value, known):
                words = ', '.join(map(str, known))
                raise UserError(
                    f'--to=ctranslate2 does not know model.{deciding}={value}; it '
                    f'knows {words}'
                )
    _check_equal(config)
    stacks = config.sizes('encoder'), config.sizes('decoder'), config.cross_sizes()
    for sizes in stacks:
        width = config.d_model // sizes.num_heads
        for name, value, wanted in (
            ('num_kv_heads', sizes.num_kv_heads, sizes.num_heads),
            ('d_k', sizes.d_k, width),
            ('d_v', sizes.d_v, width),
        ):
            if value != wanted:
                raise UserError(
                    f'--to=ctranslate2 does not write model.{name}={value}: with '
                    f'{sizes.num_heads} heads it has to be {wanted}'
                )


def _is_known(field: str, value: Any, known: tuple[Any, ...]) -> bool:
    if field not in variants.fields():
        return value in known
    name, given = spec.parse(value)
    if field == 'residual' and given.get('final') is False:
        given = {}
    return name in known and not set(given) - _ARGUMENTS.get(field, set())


def _check_equal(config: ModelConfig) -> None:
    """Refuses what CTranslate2 has once for both stacks, and a config twice."""
    for field in ('decoder_norm', 'cross_num_heads', 'cross_d_k', 'cross_d_v'):
        value = getattr(config, field)
        role = 'decoder' if field.startswith('cross') else 'encoder'
        plain = field.partition('_')[2]
        if value not in (None, config.value(plain, role)):
            raise UserError(
                f'--to=ctranslate2 has model.{field} as model.{plain} is: leave '
                f'model.{field}={value} empty'
            )


def _described(model: Expressed, trained: Trained) -> Any:
    """The whole model, described and with its arrays."""
    # An extra, of which pyright knows nothing where it is not installed.
    from ctranslate2.specs import transformer_spec  # pyright: ignore[reportMissingImports]

    config = model.config
    encoder = transformer_spec.TransformerEncoderSpec(**_options(config, 'encoder'))
    decoder = transformer_spec.TransformerDecoderSpec(**_options(config, 'decoder'))
    params = jax.tree.map(np.array, model.variables['params'])
    shared = params['embedding']
    _fill_stack(encoder, params['encoder'], config, 'encoder')
    _fill_stack(decoder, params['decoder'], config, 'decoder')
    encoder.embeddings[0].weight = params.get('source_embedding', shared)
    decoder.embeddings.weight = shared
    decoder.projection.weight = params.get('output', shared)
    if config.output_bias:
        decoder.projection.bias = params['output_bias']
    encoder.scale_embeddings = decoder.scale_embeddings = config.scale_embeddings
    whole = transformer_spec.TransformerSpec(encoder, decoder)
    pieces = trained.tokenizer.pieces(list(range(trained.model.vocab_size)))
    whole.register_source_vocabulary(pieces)
    whole.register_target_vocabulary(pieces)
    whole.config.unk_token = pieces[UNK]
    whole.config.bos_token = whole.config.decoder_start_token = pieces[BOS]
    whole.config.eos_token = pieces[EOS]
    whole.config.add_source_eos = True
    whole.config.layer_norm_epsilon = _argument(config.norm, 'epsilon', 1e-6)
    return whole


def _options(config: ModelConfig, role: Any) -> dict[str, Any]:
    """The arguments of a stack's description."""
    from ctranslate2.specs.common_spec import (  # pyright: ignore[reportMissingImports]
        Activation,
    )

    network, given = spec.parse(config.value('feed_forward', role))
    gelu = Activation.GELUTanh if given.get('tanh') else Activation.GELU
    activations = {
        'relu': Activation.RELU,
        'gelu': gelu,
        'geglu': gelu,
        'silu': Activation.SWISH,
        'swiglu': Activation.SWISH,
    }
    sizes = config.sizes(role)
    return dict(
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        pre_norm=spec.parse(config.value('residual', role))[0] == 'pre_norm',
        activation=activations[network],
        layernorm_embedding=config.norm_embeddings,
        ffn_glu=network in _GATED,
        rms_norm=spec.parse(config.norm)[0] == 'rms',
    )


def _argument(text: str, name: str, default: Any) -> Any:
    return spec.parse(text)[1].get(name, default)


def _fill_stack(
    stack: Any, params: Mapping[str, Any], config: ModelConfig, role: str
) -> None:
    stack.position_encodings.encodings = _table(params, config, role)
    if config.norm_embeddings:
        _fill_norm(stack.layernorm_embedding, params['embedding_norm'])
    if 'final' in params:
        _fill_norm(stack.layer_norm, params['final']['norm'])
    for i, layer in enumerate(stack.layer):
        ours = params[f'layer_{i}']
        own = ours['self_attention']
        _fill_linear(layer.self_attention.linear[0], *_parts(own, 'query key value'))
        _fill_linear(layer.self_attention.linear[1], own['out_proj'], input_axes=2)
        _fill_norm(layer.self_attention.layer_norm, ours['residual_1']['norm'])
        if role == 'decoder':
            cross = ours['cross_attention']
            _fill_linear(layer.attention.linear[0], cross['query'])
            _fill_linear(layer.attention.linear[1], *_parts(cross, 'key value'))
            _fill_linear(layer.attention.linear[2], cross['out_proj'], input_axes=2)
            _fill_norm(layer.attention.layer_norm, ours['residual_2']['norm'])
        last = 'residual_3' if role == 'decoder' else 'residual_2'
        _fill_norm(layer.ffn.layer_norm, ours[last]['norm'])
        network = ours['feed_forward']
        _fill_linear(layer.ffn.linear_0, network.get('gate', network['up']))
        if 'gate' in network:
            _fill_linear(layer.ffn.linear_0_noact, network['up'])
        _fill_linear(layer.ffn.linear_1, network['down'])


def _table(params: Mapping[str, Any], config: ModelConfig, role: Any) -> np.ndarray:
    """The vector of each position, as our own positions add it."""
    text = config.value('positions', role)
    positions = variants.make('positions', text, sizes=config.sizes(role))
    length = getattr(positions, 'max_length', _POSITIONS)
    variables = {'params': params['positions']} if 'positions' in params else {}
    x_1TD = jnp.zeros((1, length, config.d_model))
    positions_1T = jnp.arange(length)[None]
    return np.asarray(
        positions.apply(variables, x_1TD, positions_1T, method='embed')[0]
    )


def _parts(attention: Mapping[str, Any], names: str) -> list[Any]:
    return [attention[name] for name in names.split()]


def _fill_linear(linear: Any, *parts: Mapping[str, Any], input_axes: int = 1) -> None:
    """One matrix, outputs × inputs, of ours one above the other; with their biases.

    Args:
      input_axes: how many axes of ours are inputs: two of what heads have made.
    """
    weights, biases = [], []
    for part in parts:
        kernel = part['kernel']
        inputs = int(np.prod(kernel.shape[:input_axes]))
        weights.append(kernel.reshape(inputs, -1).T)
        if 'bias' in part:
            biases.append(part['bias'].reshape(-1))
    linear.weight = np.ascontiguousarray(np.concatenate(weights))
    if biases:
        linear.bias = np.concatenate(biases)


def _fill_norm(norm: Any, ours: Mapping[str, Any]) -> None:
    norm.gamma = ours['scale']
    if 'bias' in ours:
        norm.beta = ours['bias']
