"""T5Gemma (Zhang et al. 2025, "Encoder-Decoder Gemma")."""

from flaxformer_lite.families.base import Choice, Copy, Family, Spec

_NETWORKS = {'gelu_pytorch_tanh': 'geglu(tanh=True)', 'silu': 'swiglu'}
_STACKS = ('encoder', 'decoder')


def _attention(stack: str) -> Spec:
    return Spec(
        'softmax',
        scale=f'{stack}.scale',
        cap=f'{stack}.attn_logit_softcapping',
        dropout='attention_dropout',
    )


def _network(stack: str) -> Spec:
    return Spec(Choice(f'{stack}.hidden_activation', _NETWORKS), dropout='dropout_rate')


class T5Gemma(Family):
    """Two stacks of Gemma 2: norms before and after, rotation, caps, GEGLU.

    All layers have to attend to everything, and both stacks to be as wide. A stack's
    fields are written `encoder.hidden_size` in the tables. Transformers drops of the
    output of each stack, too, which is not done here.
    """

    model_types = ('t5gemma',)
    architecture = 'T5GemmaForConditionalGeneration'
    rotates_halves = True
    fields = {
        'd_model': Copy('encoder.hidden_size', 'decoder.hidden_size'),
        'num_layers': Copy('encoder.num_hidden_layers'),
        'num_heads': Copy('encoder.num_attention_heads'),
        'num_kv_heads': Copy('encoder.num_key_value_heads'),
        'd_k': Copy('encoder.head_dim'),
        'd_v': Copy('encoder.head_dim'),
        'd_ff': Copy('encoder.intermediate_size'),
        'decoder_num_layers': Copy('decoder.num_hidden_layers'),
        'decoder_num_heads': Copy('decoder.num_attention_heads'),
        'decoder_num_kv_heads': Copy('decoder.num_key_value_heads'),
        'decoder_d_k': Copy('decoder.head_dim'),
        'decoder_d_v': Copy('decoder.head_dim'),
        'decoder_d_ff': Copy('decoder.intermediate_size'),
        'attention': _attention('encoder'),
        'decoder_attention': _attention('decoder'),
        'cross_attention': _attention('decoder'),
        'positions': Spec('rotary', max_wavelength='encoder.rope_theta'),
        'decoder_positions': Spec('rotary', max_wavelength='decoder.rope_theta'),
        'norm': Spec('rms(offset=1.0)', epsilon='encoder.rms_norm_eps'),
        'decoder_norm': Spec('rms(offset=1.0)', epsilon='decoder.rms_norm_eps'),
        'residual': 'sandwich',
        'feed_forward': _network('encoder'),
        'decoder_feed_forward': _network('decoder'),
        'dropout': Copy('dropout_rate'),
        'tie': 'decoder',
        'logit_cap': Copy('decoder.final_logit_softcapping'),
    }
    defaults = {
        'dropout_rate': 0.0,
        'attention_dropout': 0.0,
        **{f'{stack}.attn_logit_softcapping': 0.0 for stack in _STACKS},
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
        **{f'{stack}.layer_types': ['full_attention'] for stack in _STACKS},
    }
    arrays = {
        'embedding': 'model.decoder.embed_tokens.weight',
        'source_embedding': 'model.encoder.embed_tokens.weight',
        '{stack}/final/norm': 'model.{stack}.norm',
    }
    aliases = {'embedding': ('lm_head.out_proj.weight',)}

    @classmethod
    def arrays_of(cls, config):
        table = dict(cls.arrays)
        ours = '{stack}/layer_{layer}'
        theirs = 'model.{stack}.layers.{layer}'
        for attention, name in (('self', 'self_attn'), ('cross', 'cross_attn')):
            for part, letter in dict(query='q', key='k', value='v').items():
                table[f'{ours}/{attention}_attention/{part}'] = (
                    f'{theirs}.{name}.{letter}_proj'
                )
            table[f'{ours}/{attention}_attention/out_proj'] = f'{theirs}.{name}.o_proj'
        for part in ('gate', 'up', 'down'):
            table[f'{ours}/feed_forward/{part}'] = f'{theirs}.mlp.{part}_proj'
        sublayers = {
            'encoder': ('self_attn', 'feedforward'),
            'decoder': ('self_attn', 'cross_attn', 'feedforward'),
        }
        for stack, names in sublayers.items():
            for i, name in enumerate(names, 1):
                residual = f'{stack}/layer_{{layer}}/residual_{i}'
                layer = f'model.{stack}.layers.{{layer}}'
                table[f'{residual}/norm'] = f'{layer}.pre_{name}_layernorm'
                table[f'{residual}/norm_after'] = f'{layer}.post_{name}_layernorm'
        return table

    @classmethod
    def read(cls, theirs, names):
        flat = {k: v for k, v in theirs.items() if k not in _STACKS}
        for stack in _STACKS:
            for name, value in theirs.get(stack, {}).items():
                flat[f'{stack}.{name}'] = value
            rope = flat.get(f'{stack}.rope_parameters') or {}
            flat |= {f'{stack}.{name}': value for name, value in rope.items()}
            types = flat.get(f'{stack}.layer_types')
            if types is not None:
                flat[f'{stack}.layer_types'] = sorted(set(types))
            scalar = flat.get(f'{stack}.query_pre_attn_scalar')
            if scalar is not None:
                flat[f'{stack}.scale'] = scalar**-0.5
        return super().read(flat, names)

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
            fields['query_pre_attn_scalar'] = fields.pop('scale') ** -2
            theta = fields.pop('rope_theta')
            fields['rope_parameters'] = {'rope_type': 'default', 'rope_theta': theta}
            fields['layer_types'] = ['full_attention'] * fields['num_hidden_layers']
            theirs[stack] = fields
        return theirs
