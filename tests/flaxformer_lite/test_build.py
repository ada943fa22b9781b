"""Tests of configs to modules."""

import jax
import jax.numpy as jnp
import pytest
import tiny
from flax import linen as nn
from flax.traverse_util import flatten_dict

from flaxformer_lite.attention.softmax import Softmax
from flaxformer_lite.config import builder, variants
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
def test_models_of_table_3_have_their_numbers_of_parameters(expected, overrides):
    """Counts V d + N (3 attentions of 2 d h (k + v), 2 networks of 2 d f, biases,
    norms).
    """
    # A scan has the parameters of all layers, and is traced in the time of one.
    config = overrides | dict(scan_layers=True)
    assert count(builder.build(config, VOCAB)) == expected


@pytest.mark.parametrize('kind', ['norm', 'residual', 'feed_forward'])
def test_decoder_inherits_the_encoders_variants_unless_overridden(kind):
    def found(model):
        blocks = [stack.block for stack in model.stacks().values()]
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


def test_each_attention_has_its_own_scores_and_positions():
    model = tiny.model(
        attention='relu',
        decoder__attention='cosine',
        cross__attention='additive',
        positions='alibi',
        decoder__positions='rotary',
        cross__positions='shaw',
    )
    encoder, decoder = (stack.block for stack in model.stacks().values())
    names = [
        (type(x.core_attention).__name__, type(x.positions).__name__)
        for x in (
            encoder.self_attention,
            decoder.self_attention,
            decoder.cross_attention,
        )
    ]
    assert names == [
        ('ReLU', 'ALiBi'),
        ('Cosine', 'Rotary'),
        ('Additive', 'Shaw'),
    ]
    stacks = [stack.positions for stack in model.stacks().values()]
    assert [type(x).__name__ for x in stacks] == ['ALiBi', 'Rotary']


FORGETTING = dict(attention='forgetting')


# The fields that an error names. `test_rejected_input` has the table of command lines.
@pytest.mark.parametrize(
    ('overrides', 'named'),
    [
        (dict(decoder__norm='sofmax'), "model.decoder.norm: 'sofmax'"),
        (dict(cross__positions='alibi'), 'model.cross.positions: ALiBi'),
        (dict(projections=False), 'model.projections=False .* d_k has no effect'),
        (
            dict(projections=False, attention_bias=True, d_k=None, d_v=None)
            | dict(architecture='decoder_only'),
            'model.projections=False .* attention_bias',
        ),
        (dict(init='[normal, xavier]'), 'model.init: '),
        (dict(num_layers=4, share_layers=5), 'model.share_layers=5'),
        (
            dict(num_layers=4, decoder__share_layers=3, decoder__norm='[layer, rms]'),
            'model.decoder.share_layers=3',
        ),
        (
            dict(scan_layers=True, norm='[layer, rms]', decoder__num_layers=3),
            'model.scan_layers=True .* decoder has 3 layers',
        ),
        (
            dict(merged_attention=True, positions='shaw'),
            'model.positions: Shaw',
        ),
        (FORGETTING, 'model.attention: Forgetting.* as decoder.attention'),
        (FORGETTING | dict(architecture='prefix_lm'), 'model.attention: Forgetting'),
        (dict(cross__attention='forgetting'), 'model.cross.attention: Forgetting'),
        (
            dict(decoder__attention='forgetting', merged_attention=True),
            'model.decoder.attention: Forgetting.* merged_attention',
        ),
        (
            dict(architecture='recurrent(core_attention="softmax")'),
            "unknown argument 'core_attention'",
        ),
        (dict(architecture='multi_token(heads=2147483647)'), 'heads'),
    ],
)
def test_models_that_cannot_be_built_are_rejected_by_field(overrides, named):
    with pytest.raises(ValueError, match=named):
        tiny.model(**overrides)


class Probe(Softmax):
    def setup(self):
        self.w = self.param('w', nn.initializers.ones_init(), (1,))


def test_user_attention_has_separate_weights_in_every_layer():
    model = builder.build(tiny.SIZES | dict(attention=Probe), tiny.VOCAB)
    params = flatten_dict(tiny.parameters(model), sep='/')
    places = 'encoder/layer_{}/self', 'decoder/layer_{}/self', 'decoder/layer_{}/cross'
    assert {name for name in params if name.endswith('/w')} == {
        f'{place.format(i)}_attention/core_attention/w'
        for place in places
        for i in range(2)
    }


@pytest.mark.parametrize('decoder_layers', [None, 2])
def test_components_know_their_stack_and_its_depth(decoder_layers):
    given = dict(
        num_layers=3,
        decoder__num_layers=decoder_layers,
        residual='deepnorm',
        head_dropout=0.5,
    )
    model = tiny.model(**given, positions='t5')
    lone = tiny.model(**given, positions='t5', architecture='decoder_only')
    entities = builder.entity_encoder(tiny.config(**given))
    m = decoder_layers or 3
    for stack, causal, depth, (role, encoder_layers, decoder_layers) in (
        (model.stacks()['encoder'], False, 3, ('encoder', 3, m)),
        (model.stacks()['decoder'], True, m, ('decoder', 3, m)),
        (lone.stacks()['decoder'], True, 3, ('decoder_only', 0, 3)),
        (entities.stacks()['encoder'], None, 3, ('encoder_only', 3, 0)),
    ):
        sizes = stack.block.residual.sizes
        assert stack.num_layers == sizes.num_layers == depth
        assert sizes.role == role
        assert sizes.encoder_layers == encoder_layers
        assert sizes.decoder_layers == decoder_layers
        assert causal is None or stack.positions.sizes.causal == causal
        init = stack.block.self_attention.dense.kernel_init
        beta, alpha = deepnet_factors(role, encoder_layers, decoder_layers)
        assert init.beta() == pytest.approx(beta)
        assert stack.block.residual.alpha() == pytest.approx(alpha)
    dropout = model.stacks()['encoder'].block.self_attention.head_dropout
    assert dropout == Dropout(0.5, (1, 3))


def deepnet_factors(role, n, m):
    """Returns DeepNet's β and α (figure 2)."""
    if role == 'encoder':
        return 0.87 * (n**4 * m) ** (-1 / 16), 0.81 * (n**4 * m) ** (1 / 16)
    if role == 'decoder':
        return (12 * m) ** (-1 / 4), (3 * m) ** (1 / 4)
    return (8 * (n + m)) ** (-1 / 4), (2 * (n + m)) ** (1 / 4)
