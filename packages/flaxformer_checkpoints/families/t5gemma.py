"""T5Gemma (Zhang et al. 2025, "Encoder-Decoder Gemma")."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from flaxformer_checkpoints.families._entries import Choice, Copy, Pattern, Spec
from flaxformer_checkpoints.families.base import Family, in_layers
from flaxformer_lite import validation
from flaxformer_lite.config.schema import DEPTH
from flaxformer_lite.validation import Positive, Range, quote

NETWORKS = {'gelu_pytorch_tanh': 'geglu(tanh=True)', 'silu': 'swiglu'}
_STACKS = ('encoder', 'decoder')
_TURNS = ('sliding_attention', 'full_attention')
_NUMBERS = {
    'num_hidden_layers': Annotated[int, DEPTH],
    'query_pre_attn_scalar': Positive,
    'sliding_window': Annotated[int | None, Range(at_least=1)],
}
LAYER = 'model.{stack}.layers.{layer}.'
# Our path within a layer → rest of their name, in all Gemma models.
MATRICES = {
    'self_attention/query': 'self_attn.q_proj',
    'self_attention/key': 'self_attn.k_proj',
    'self_attention/value': 'self_attn.v_proj',
    'self_attention/out_proj': 'self_attn.o_proj',
    'feed_forward/gate': 'mlp.gate_proj',
    'feed_forward/up': 'mlp.up_proj',
    'feed_forward/down': 'mlp.down_proj',
}
# Defaults of fields that a stack's config omits.
_MODULE = {
    'num_hidden_layers': 26,
    'query_pre_attn_scalar': 256,
    'sliding_window': 4096,
    'attn_logit_softcapping': 50.0,
    'final_logit_softcapping': 30.0,
    'rms_norm_eps': 1e-6,
    'rope_theta': 10000.0,
}


def _attention(stack: str, kind: str = 'softmax', **arguments: str) -> Spec:
    return Spec(
        kind,
        scale=f'{stack}.scale',
        cap=f'{stack}.attn_logit_softcapping',
        dropout='attention_dropout',
        **arguments,
    )


def _by_layer(stack: str) -> Pattern:
    near = _attention(stack, 'local', window=f'{stack}.window')
    kinds = {'full_attention': _attention(stack), 'sliding_attention': near}
    return Pattern(f'{stack}.layer_types', kinds, f'{stack}.num_hidden_layers')


def _network(stack: str) -> Spec:
    return Spec(Choice(f'{stack}.hidden_activation', NETWORKS), dropout='dropout_rate')


def norms(stack: str, *sublayers: str) -> dict[str, str]:
    """Returns entries of `arrays` for the norms before and after each sublayer."""
    names = {}
    for i, sublayer in enumerate(sublayers, 1):
        names[f'residual_{i}/norm'] = f'pre_{sublayer}_layernorm'
        names[f'residual_{i}/norm_after'] = f'post_{sublayer}_layernorm'
    return in_layers(LAYER, names, stack)


class T5Gemma(Family):
    """Two Gemma 2 stacks: pre- and post-norms, RoPE, soft caps, GEGLU, local attention.

    The maximum distance of a key is `sliding_window` in the encoder and one less in the
    decoder. Unlike in Transformers, the output of a stack has no dropout.
    """

    model_types = ('t5gemma',)
    architecture = 'T5GemmaForConditionalGeneration'
    rotates_halves = True
    fields = {
        'd_model': Copy('encoder.hidden_size'),
        'num_layers': Copy('encoder.num_hidden_layers'),
        'num_heads': Copy('encoder.num_attention_heads'),
        'num_kv_heads': Copy('encoder.num_key_value_heads'),
        'd_k': Copy('encoder.head_dim'),
        'd_v': Copy('encoder.head_dim'),
        'd_ff': Copy('encoder.intermediate_size'),
        'decoder.d_model': Copy('decoder.hidden_size'),
        'decoder.num_layers': Copy('decoder.num_hidden_layers'),
        'decoder.num_heads': Copy('decoder.num_attention_heads'),
        'decoder.num_kv_heads': Copy('decoder.num_key_value_heads'),
        'decoder.d_k': Copy('decoder.head_dim'),
        'decoder.d_v': Copy('decoder.head_dim'),
        'decoder.d_ff': Copy('decoder.intermediate_size'),
        'attention': _by_layer('encoder'),
        'decoder.attention': _by_layer('decoder'),
        'cross.attention': _attention('decoder'),
        'positions': Spec('rotary', max_wavelength='encoder.rope_theta'),
        'decoder.positions': Spec('rotary', max_wavelength='decoder.rope_theta'),
        'norm': Spec('rms(offset=1.0)', epsilon='encoder.rms_norm_eps'),
        'decoder.norm': Spec('rms(offset=1.0)', epsilon='decoder.rms_norm_eps'),
        'residual': 'sandwich',
        'feed_forward': _network('encoder'),
        'decoder.feed_forward': _network('decoder'),
        'dropout': Copy('dropout_rate'),
        'tie': 'decoder',
        'logit_cap': Copy('decoder.final_logit_softcapping'),
    }
    defaults = {
        'dropout_rate': 0.0,
        'attention_dropout': 0.0,
        **{f'{stack}.attn_logit_softcapping': None for stack in _STACKS},
        **{f'{stack}.rope_theta': 10000.0 for stack in _STACKS},
        **{f'{stack}.rms_norm_eps': 1e-6 for stack in _STACKS},
        'decoder.final_logit_softcapping': None,
        'pad_token_id': 0,
        'eos_token_id': 1,
        'decoder_start_token_id': 2,
    }
    expected = {
        'tie_word_embeddings': True,
        **{f'{stack}.attention_bias': False for stack in _STACKS},
        **{f'{stack}.rope_type': 'default' for stack in _STACKS},
    }
    arrays = {
        'embedding': 'model.decoder.embed_tokens.weight',
        'source_embedding': 'model.encoder.embed_tokens.weight',
        **in_layers(
            LAYER,
            {
                **MATRICES,
                'cross_attention/query': 'cross_attn.q_proj',
                'cross_attention/key': 'cross_attn.k_proj',
                'cross_attention/value': 'cross_attn.v_proj',
                'cross_attention/out_proj': 'cross_attn.o_proj',
            },
        ),
        **norms('encoder', 'self_attn', 'feedforward'),
        **norms('decoder', 'self_attn', 'cross_attn', 'feedforward'),
        '{stack}/final/norm': 'model.{stack}.norm',
    }
    aliases = {'embedding': ('lm_head.out_proj.weight',)}

    @classmethod
    def read(cls, theirs, names):
        decoder = section('decoder', theirs.get('decoder'))
        theirs = {**_tokens(decoder), **theirs}
        flat = {k: v for k, v in theirs.items() if k not in _STACKS}
        stacks = [stack for stack in _STACKS if stack in theirs]
        for stack in stacks:
            fields = cls.read_stack(stack, section(stack, theirs[stack]))
            fields['scale'] = fields['query_pre_attn_scalar'] ** -0.5
            flat |= {f'{stack}.{name}': value for name, value in fields.items()}
        return super().read(flat, names)

    @classmethod
    def read_stack(cls, stack: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a stack's config, and values derived from them."""
        found = {**_MODULE, **fields}
        check_numbers(f'{stack}.', found)
        scaling = section(f'{stack}.rope_scaling', found.get('rope_scaling'))
        rope = section(f'{stack}.rope_parameters', found.get('rope_parameters'))
        rope = scaling or rope
        found |= {**rope, 'rope_type': rope_type(rope)}
        window = found['sliding_window']
        found['window'] = window and window + (stack == 'encoder')
        return found | {'layer_types': kinds_given(f'{stack}.', found, _TURNS)}

    @classmethod
    def write(cls, described, names):
        flat = super().write(described, names)
        theirs = {k: v for k, v in flat.items() if '.' not in k}
        for stack in _STACKS:
            prefix = f'{stack}.'
            fields = {
                k.removeprefix(prefix): v
                for k, v in flat.items()
                if k.startswith(prefix)
            }
            fields['vocab_size'] = described.vocab_size
            fields['query_pre_attn_scalar'] = query_pre_attn_scalar(fields.pop('scale'))
            theirs[stack] = cls.write_stack(stack, fields)
        return theirs

    @classmethod
    def write_stack(cls, stack: str, fields: dict[str, Any]) -> dict[str, Any]:
        theta = fields.pop('rope_theta')
        fields['rope_parameters'] = {'rope_type': 'default', 'rope_theta': theta}
        window = fields.pop('window', None)
        if window is not None:
            fields['sliding_window'] = window - (stack == 'encoder')
        return fields


def section(name: str, value: Any) -> Mapping[str, Any]:
    """Returns a section of their config; {} for null, ValueError if invalid."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f'{name} must be a section with fields, not {quote(value)}')
    return value


def rope_type(parameters: Mapping[str, Any]) -> Any:
    """Returns the kind of rotary parameters, which older configs name `type`."""
    return parameters.get('rope_type', parameters.get('type', 'default'))


def _tokens(decoder: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        'vocab_size': 'vocab_size',
        'pad_token_id': 'pad_token_id',
        'eos_token_id': 'eos_token_id',
        'decoder_start_token_id': 'bos_token_id',
    }
    given = {ours: decoder.get(name) for ours, name in names.items()}
    return {name: value for name, value in given.items() if value is not None}


def check_numbers(prefix: str, fields: Mapping[str, Any]) -> None:
    """Raises ValueError if sizes of a stack are missing or invalid."""
    for name, kind in _NUMBERS.items():
        validation.check(f'{prefix}{name}', kind, fields[name])


def kinds_given(
    prefix: str, fields: Mapping[str, Any], turns: Sequence[str]
) -> list[str]:
    """Returns the kind of each layer: from the config, or by repeating `turns`.

    Raises:
      ValueError: The number of kinds isn't the number of layers.
    """
    kinds = fields.get('layer_types')
    layers = fields['num_hidden_layers']
    if kinds is None:
        return [turns[i % len(turns)] for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(
            f'{prefix}layer_types must have one kind for each of the {layers} layers, '
            f'not {quote(kinds)}'
        )
    return kinds


def query_pre_attn_scalar(scale: float) -> float:
    """Returns scale^−2, as an integer if it was one."""
    scalar = scale**-2
    whole = round(scalar)
    return whole if whole**-0.5 == scale else scalar
