"""Tests of configs to modules."""

import jax
import jax.numpy as jnp
import pytest
import tiny
from flax import linen as nn
from flax.traverse_util import flatten_dict

from flaxformer_lite.attention.softmax import SoftmaxAttention
from flaxformer_lite.config import build, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.layers.dropout import Dropout

VOCAB = 37_000


def count(model) -> int:
    token_BT = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), token_BT, token_BT)
    return sum(x.size for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ('expected', 'overrides'),
    [
        (63_045_632, dict()),
        (63_045_632, dict(num_heads=1)),
        (55_967_744, dict(d_k=16)),
        (33_644_544, dict(num_layers=2)),
        (26_816_512, dict(d_model=256)),
        (163_815_424, dict(d_model=1024)),
        (88_236_032, dict(d_ff=4096)),
        (63_047_680, dict(residual='pre_norm')),
        (63_148_032, dict(positions='learned(max_length=100)')),
        (214_171_648, dict(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3)),
    ],
    ids='base A1 B1 C1 C4 C5 C7 pre_norm learned big'.split(),
)
def test_models_of_table_3_have_as_many_parameters_as_their_matrices(
    expected, overrides
):
    """Counts V d + N (3 attentions of 2 d h (k + v), 2 networks of 2 d f, biases,
    norms).
    """
    # A loop of layers has their parameters, and is traced in the time of one.
    config = overrides | dict(scan_layers=True)
    assert count(build.model(config, VOCAB)) == expected


@pytest.mark.parametrize('kind', ['norm', 'residual', 'feed_forward'])
def test_a_decoder_has_what_it_names_and_else_what_the_encoder_has(kind):
    def found(model):
        blocks = model.encoder.block, model.decoder.block
        return [
            type(b.residual.norm if kind == 'norm' else getattr(b, kind))
            for b in blocks
        ]

    names = dict(norm=('rms', 'batch'), residual=('rezero', 'sandwich'))
    one, other = names.get(kind, ('gelu', 'mixture'))
    configs = [ModelConfig(**{kind: name}) for name in (one, other)]
    classes = [variants.find(config, kind) for config in configs]
    assert found(tiny.model(**{kind: one})) == [classes[0]] * 2
    assert found(tiny.model(**{kind: one, f'decoder.{kind}': other})) == classes
    with pytest.raises(
        ValueError, match=f"model.decoder.{kind}: 'sofmax' is not one of"
    ):
        tiny.model(**{f'decoder.{kind}': 'sofmax'})


def test_what_is_named_stands_in_its_place():
    model = tiny.model(
        attention='relu',
        decoder__attention='cosine',
        cross__attention='additive',
        positions='alibi',
        decoder__positions='rotary',
        cross__positions='shaw',
    )
    encoder, decoder = model.encoder.block, model.decoder.block
    attentions = (
        encoder.self_attention,
        decoder.self_attention,
        decoder.cross_attention,
    )
    names = [
        (type(x.core_attention).__name__, type(x.positions).__name__)
        for x in attentions
    ]
    assert names == [
        ('ReluAttention', 'ALiBi'),
        ('CosineAttention', 'RotaryPositions'),
        ('AdditiveAttention', 'ShawPositions'),
    ]
    stacks = model.encoder.positions, model.decoder.positions
    assert [type(x).__name__ for x in stacks] == ['ALiBi', 'RotaryPositions']


@pytest.mark.parametrize(
    ('overrides', 'message'),
    [
        (
            dict(cross__positions='alibi'),
            "model.cross.positions='alibi' has no effect in cross-",
        ),
        (
            dict(projections=False),
            'model.projections=False .* model.d_k has no effect',
        ),
        (
            dict(
                architecture='decoder_only',
                projections=False,
                attention_bias=True,
                d_k=None,
                d_v=None,
            ),
            'model.projections=False removes the matrices that model.attention_bias',
        ),
        (dict(init='[normal, xavier]'), 'model.init: .* is a list. Give'),
        (
            dict(num_layers=4, share_layers=5),
            'model.share_layers=5 exceeds the number of layers of the encoder, 4',
        ),
        (
            dict(num_layers=4, decoder__share_layers=3, decoder__norm='[layer, rms]'),
            'model.decoder.share_layers=3 must be a multiple of .* pattern, 2',
        ),
        (
            dict(scan_layers=True, norm='[layer, rms]', decoder__num_layers=3),
            'model.scan_layers=True needs .* length, 2, but the decoder has 3 layers',
        ),
        (
            dict(merged_attention=True, positions='shaw'),
            'model.positions=shaw adds scores by distance, .* Choose rotary',
        ),
        (
            dict(attention='forgetting'),
            "model.attention='forgetting' supports only .* Set it as model.decoder",
        ),
        (
            dict(attention='forgetting', architecture='prefix_lm'),
            "model.attention='forgetting' supports only .* or choose architecture",
        ),
        (
            dict(cross__attention='forgetting'),
            "model.cross.attention='forgetting' supports only attention to earlier",
        ),
        (
            dict(decoder__attention='forgetting', merged_attention=True),
            "model.decoder.attention='forgetting' .* Leave model.merged_attention",
        ),
        (
            dict(architecture='recurrent(core_attention="softmax")'),
            "unknown argument 'core_attention'; recurrent takes cell",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_by_the_name_of_its_field(overrides, message):
    with pytest.raises(ValueError, match=message):
        tiny.model(**overrides)


class Probe(SoftmaxAttention):
    def setup(self):
        self.w = self.param('w', nn.initializers.ones_init(), (1,))


def test_a_class_of_ones_own_has_weights_of_its_own_in_every_place():
    model = build.model(tiny.SIZES | dict(attention=Probe), tiny.VOCAB)
    p = flatten_dict(tiny.parameters(model), sep='/')
    places = (
        'encoder/layer_{}/self',
        'decoder/layer_{}/self',
        'decoder/layer_{}/cross',
    )
    assert {name for name in p if name.endswith('/w')} == {
        f'{place.format(i)}_attention/core_attention/w'
        for place in places
        for i in range(2)
    }


@pytest.mark.parametrize('decoder_layers', [None, 2])
def test_parts_know_what_they_are_in(decoder_layers):
    given = dict(
        num_layers=3,
        decoder__num_layers=decoder_layers,
        residual='deepnorm',
        head_dropout=0.5,
    )
    model = tiny.model(**given, positions='t5')
    lone = tiny.model(**given, positions='t5', architecture='decoder_only')
    entities = build.entity_encoder(tiny.config(**given, positions='none')).encoder
    m = decoder_layers or 3
    for stack, causal, depth, (role, encoder_layers, decoder_layers) in (
        (model.encoder, False, 3, ('encoder', 3, m)),
        (model.decoder, True, m, ('decoder', 3, m)),
        (lone.decoder, True, 3, ('decoder_only', 0, 3)),
        (entities, None, 3, ('encoder_only', 3, 0)),
    ):
        sizes = stack.block.residual.sizes
        assert stack.num_layers == sizes.num_layers == depth
        assert sizes.role == role
        assert sizes.encoder_layers == encoder_layers
        assert sizes.decoder_layers == decoder_layers
        assert causal is None or stack.positions.sizes.causal == causal
        init = stack.block.self_attention.dense.kernel_init
        beta, alpha = deepnets(role, encoder_layers, decoder_layers)
        assert init.beta() == pytest.approx(beta)
        assert stack.block.residual.alpha() == pytest.approx(alpha)
    dropout = model.encoder.block.self_attention.head_dropout
    assert dropout == Dropout(0.5, (1, 3))


def deepnets(role, n, m):
    """Returns DeepNet's β and α (figure 2)."""
    if role == 'encoder':
        return 0.87 * (n**4 * m) ** (-1 / 16), 0.81 * (n**4 * m) ** (1 / 16)
    if role == 'decoder':
        return (12 * m) ** (-1 / 4), (3 * m) ** (1 / 4)
    return (8 * (n + m)) ** (-1 / 4), (2 * (n + m)) ** (1 / 4)
