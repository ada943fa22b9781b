"""Tests of models from classes: they equal those of configs."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tiny
from flax import linen as nn
from flax import nnx
from flax.traverse_util import flatten_dict
from tiny import slow

import flaxformer_lite as fl
from flaxformer_lite.attention import Cosine, Forgetting, Linear, Local, Softmax
from flaxformer_lite.config import builder, schema
from flaxformer_lite.layers.dropout import Dropout

SIZES = dict(vocab_size=tiny.VOCAB, **tiny.SIZES)
TOKENS = jnp.array([[4, 5, 6, 1]])

# A config's fields, and the same model from classes.
MODELS = {
    'paper': ({}, lambda: fl.Transformer(**SIZES)),
    'modern': (
        dict(
            attention='local(window=3)',
            positions='rotary(scale=2.0)',
            norm='rms',
            residual='pre_norm',
            feed_forward='swiglu(d_ff=7)',
        ),
        lambda: fl.Transformer(
            **SIZES,
            attention=Local(window=3),
            positions=fl.positions.Rotary(scale=2.0),
            norm=fl.norms.RMSNorm(),
            residual=fl.residual.PreNorm(),
            feed_forward=fl.feed_forward.SwiGLU(d_ff=7),
        ),
    ),
    'overrides': (
        {
            'norm': 'scale',
            'decoder.num_layers': 3,
            'decoder.num_heads': 4,
            'decoder.norm': 'rms',
            'decoder.attention': 'linear',
            'cross.num_heads': 3,
            'cross.attention': 'cosine',
            'cross.positions': 'shaw(max_distance=2)',
        },
        lambda: fl.Transformer(
            **SIZES,
            norm=fl.norms.ScaleNorm(),
            decoder=fl.DecoderOverrides(
                num_layers=3, num_heads=4, norm=fl.norms.RMSNorm(), attention=Linear()
            ),
            cross=fl.CrossOverrides(
                num_heads=3,
                attention=Cosine(),
                positions=fl.positions.Shaw(max_distance=2),
            ),
        ),
    ),
    'patterns': (
        {
            'attention': '[local(window=2), softmax]',
            'scan_layers': True,
            'decoder.positions': '[none, rotary]',
        },
        lambda: fl.Transformer(
            **SIZES,
            attention=[Local(window=2), Softmax()],
            scan_layers=True,
            decoder=fl.DecoderOverrides(
                positions=(fl.positions.NoPositions(), fl.positions.Rotary())
            ),
        ),
    ),
    'shared': (
        {'share_layers': 1, 'decoder.share_layers': 2, 'layer_drop': 0.1},
        lambda: fl.Transformer(
            **SIZES,
            share_layers=1,
            dropout=fl.DropoutRates(0.1, layers=0.1),
            decoder=fl.DecoderOverrides(share_layers=2),
        ),
    ),
    'merged': (
        dict(merged_attention=True, continuous_positions=True, positions='t5'),
        lambda: fl.Transformer(
            **SIZES,
            positions=fl.positions.T5(),
            decoder=fl.DecoderOverrides(
                merged_attention=True, continuous_positions=True
            ),
        ),
    ),
    'mixture of encoder layers': (
        dict(architecture='encoder_decoder(reads="mixture")', norm_embeddings=True),
        lambda: fl.Transformer(**SIZES, reads='mixture', norm_embeddings=True),
    ),
    'adapters': (
        dict(dense='lora(rank=2)', init='mu_p(base=4)', dtype='bfloat16'),
        lambda: fl.Transformer(
            **SIZES,
            dense=fl.dense.LoRA(rank=2),
            initializer=fl.init.MuP(base=4),
            dtype=jnp.bfloat16,
        ),
    ),
    'dropout of tokens': (
        dict(dropout=0.2, dropout_kind='tokens', head_dropout=0.1),
        lambda: fl.Transformer(
            **SIZES, dropout=fl.DropoutRates(0.2, heads=0.1, whole_tokens=True)
        ),
    ),
    'decoder_only': (
        dict(architecture='decoder_only', attention='forgetting', positions='none'),
        lambda: fl.DecoderOnly(
            **SIZES, attention=Forgetting(), positions=fl.positions.NoPositions()
        ),
    ),
    'prefix_lm': (
        dict(architecture='prefix_lm', block='parallel', tie='none', output_bias=True),
        lambda: fl.PrefixLM(
            **SIZES,
            block=fl.blocks.Parallel(),
            embeddings=fl.Embeddings(tie='none', output_bias=True),
        ),
    ),
    'multi_token': (
        dict(architecture='multi_token(heads=3)', residual='deepnorm'),
        lambda: fl.MultiTokenTransformer(
            **SIZES, heads=3, residual=fl.residual.DeepNorm()
        ),
    ),
    'recurrent': (
        {'architecture': 'recurrent(cell="lstm")', 'decoder.num_layers': 1},
        lambda: fl.RecurrentEncoderDecoder(
            vocab_size=tiny.VOCAB,
            d_model=tiny.SIZES['d_model'],
            num_layers=tiny.SIZES['num_layers'],
            cell='lstm',
            decoder=fl.DecoderOverrides(num_layers=1),
        ),
    ),
}


@pytest.mark.parametrize('name', MODELS)
def test_models_of_classes_and_of_configs_are_equal(name):
    fields, make = MODELS[name]
    of_config = tiny.model(**fields)
    assert make() == of_config
    assert hash(make()) == hash(of_config)
    assert make().stacks() == of_config.stacks()
    assert of_config.clone() == of_config


@pytest.mark.parametrize(
    'name', ['modern', *(slow(name) for name in MODELS if name != 'modern')]
)
def test_models_of_classes_and_of_configs_have_the_same_program(name):
    fields, make = MODELS[name]

    def lowered(model):
        variables = tiny.all_variables(model)

        def loss(params, key):
            rngs = {'dropout': key}
            others = {'params': params}
            return model.apply(variables | others, TOKENS, TOKENS, rngs=rngs).sum()

        gradient = jax.jit(jax.grad(loss))
        program = gradient.lower(variables['params'], jax.random.key(0)).as_text()
        return flatten_dict(jax.tree.map(jnp.shape, variables), sep='/'), program

    assert lowered(make()) == lowered(tiny.model(**fields))


def test_defaults_of_classes_are_those_of_configs():
    assert fl.Transformer(vocab_size=9) == builder.build({}, 9)


def test_each_field_of_a_config_is_a_field_of_a_class():
    groups = {
        'decoder': fl.DecoderOverrides,
        'cross': fl.CrossOverrides,
        'dropout': fl.DropoutRates,
        'embeddings': fl.Embeddings,
        'projections': fl.Projections,
    }
    found = {field.name for field in dataclasses.fields(fl.Transformer)}
    found -= groups.keys()
    for group, cls in groups.items():
        found |= {f'{group}.{field.name}' for field in dataclasses.fields(cls)}
    names = set(schema.fields()) - {'architecture'}
    expected = {schema.NAMES_IN_CLASSES.get(name, name) for name in names}
    others = {'vocab_size', 'source_vocab_size', 'special_tokens', 'reads', 'remat'}
    assert found == expected | others | {'parent', 'name'}


def test_residual_connection_keeps_its_own_dropout_and_norm():
    residual = fl.residual.PreNorm(norm=fl.norms.RMSNorm(), dropout=Dropout(0.5))
    stack = fl.Transformer(**SIZES, residual=residual).stacks()['decoder']
    assert stack.block.residual.norm == fl.norms.RMSNorm()
    assert stack.block.residual.dropout == Dropout(0.5)
    assert stack.block.residual.sizes.role == 'decoder'


def test_tools_of_flax_work_on_a_model_of_classes():
    model = fl.Transformer(**SIZES, norm=fl.norms.RMSNorm())
    variables = tiny.all_variables(model)
    table = model.tabulate(
        jax.random.key(0), TOKENS, TOKENS, console_kwargs={'width': 300}
    )
    assert 'decoder/layer_1/self_attention' in table
    bound = model.bind(variables)
    assert bound.decoder_stack.num_layers == 2
    unbound, found = bound.unbind()
    assert unbound == model
    tiny.assert_equal(found, variables)
    bridged = nnx.bridge.ToNNX(model, nnx.Rngs(0))
    nnx.bridge.lazy_init(bridged, TOKENS, TOKENS)
    assert bridged(TOKENS, TOKENS).shape == (1, 4, tiny.VOCAB)


class _Outer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return fl.Transformer(**SIZES, norm=fl.norms.RMSNorm(), name='inner')(
            tokens, tokens
        )


def test_model_inside_another_module_has_the_same_parameters():
    model = fl.Transformer(**SIZES, norm=fl.norms.RMSNorm())
    shapes = jax.eval_shape(_Outer().init, jax.random.key(0), TOKENS)['params']
    assert jax.tree.map(jnp.shape, shapes['inner']) == jax.tree.map(
        jnp.shape, tiny.parameters(model)
    )


class _Inner(Softmax):
    inner: nn.Module = nn.Dense(3)

    @nn.compact
    def normalize_query(self, q_BTHK):
        return q_BTHK + self.inner(q_BTHK).sum()


def test_modules_inside_a_component_are_separate_in_each_attention():
    model = fl.Transformer(**SIZES, attention=_Inner())
    names = flatten_dict(tiny.parameters(model), sep='/')
    assert sum('/inner/kernel' in name for name in names) == 3 * SIZES['num_layers']


class RotaryWithBias(fl.positions.Rotary):
    def bias(self, query_positions_BT, key_positions_BS):
        distance_BTS = query_positions_BT[:, :, None] - key_positions_BS[:, None]
        return -0.1 * jnp.abs(distance_BTS)[:, None]


class Sharp(Softmax):
    factor: float = 2.0

    def scores(self, q_BTHK, kv):
        return self.factor * super().scores(q_BTHK, kv)


def test_own_component_is_an_object_in_a_class_and_in_a_config():
    model = fl.Transformer(**SIZES, attention=Sharp(factor=3.0))
    assert model == tiny.model(attention=Sharp(factor=3.0))
    assert model == tiny.model(attention=f'{__name__}.Sharp(factor=3.0)')
    assert model != tiny.model(attention=Sharp)
    assert all(x.holds for x in fl.testing.check(Sharp(), quick=True))


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (dict(attention='local'), "attention: 'local' is not a component."),
        (dict(norm=[]), 'norm must have a component'),
        (dict(dropout=1.0), 'dropout must be at least 0 and below'),
        (dict(dropout=True), 'dropout must be of type float'),
        (dict(dense=fl.norms.RMSNorm()), 'dense must be of type Dense'),
        (dict(decoder={'num_layers': 2}), 'decoder must be of type DecoderOverrides'),
        (dict(attention=Forgetting()), 'attention: Forgetting supports only'),
        (dict(d_k=None, num_heads=5), 'd_model=12 cannot be divided among num_heads=5'),
        (dict(d_model=9, num_heads=3), 'positions: d_model must be even'),
        (dict(vocab_size=2), 'special_tokens: bos=2 must be below'),
        (
            dict(cross=fl.CrossOverrides(positions=RotaryWithBias())),
            'cross.positions: RotaryWithBias has no effect in cross-attention, or its',
        ),
        (
            dict(decoder=fl.DecoderOverrides(num_layers=3), reads='same'),
            'reads="same" pairs',
        ),
    ],
    ids=str,
)
def test_errors_of_classes_name_the_argument(fields, message):
    with pytest.raises(ValueError) as error:
        fl.Transformer(**SIZES | fields)
    assert str(error.value).startswith(message)
