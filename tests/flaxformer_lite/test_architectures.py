"""Tests of each architecture against float64 NumPy and its invariants."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax.traverse_util import flatten_dict
from tiny import float64

from flaxformer_lite.config import build, schema, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.recurrent_cells import CELLS
from flaxformer_lite.layers.scanned_stack import stack_layers
from flaxformer_lite.training.batch import source_and_inputs


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(p, x):
    return x @ p['kernel'] + p.get('bias', 0)


def gru(p, h, x):
    r, z = (sigmoid(dense(p[f'i{g}'], x) + dense(p[f'h{g}'], h)) for g in 'rz')
    h = (1 - z) * np.tanh(dense(p['in'], x) + r * dense(p['hn'], h)) + z * h
    return h, h


def lstm(p, state, x):
    c, h = state
    i, f, o = (sigmoid(dense(p[f'i{g}'], x) + dense(p[f'h{g}'], h)) for g in 'ifo')
    c = f * c + i * np.tanh(dense(p['ig'], x) + dense(p['hg'], h))
    return (c, o * np.tanh(c)), o * np.tanh(c)


def recurrent(p, source, inputs, cell, depths, width):
    """Returns the logits for one sentence by Bahdanau et al. (2015), appendix A."""
    step, twice = (lstm, lambda x: (x, x)) if cell == 'lstm' else (gru, lambda x: x)
    encoder_layers, decoder_layers = depths
    embedding = p['embedding'] * np.sqrt(width)
    x = embedding[source]
    for i in range(encoder_layers):
        sides = []
        for side, words in (('forwards', x), ('backwards', x[::-1])):
            state, states = twice(np.zeros(width)), []
            for word in words:
                state, h = step(p[f'encoder_{i}'][side], state, word)
                states.append(h)
            sides.append(states if side[0] == 'f' else states[::-1])
        x = np.concatenate(sides, -1)

    first = p['first_state']
    begin = np.tanh(np.einsum('u,uld->ld', x.mean(0), first['kernel']) + first['bias'])
    states, logits = [twice(b) for b in begin], []
    look = p['decoder']['cross_attention']
    for word in embedding[inputs]:
        top = states[-1][1] if cell == 'lstm' else states[-1]
        e = np.tanh(top @ look['query'][0] + x @ look['key'][0]) @ look['energy'][0]
        a = np.exp(e - e.max())
        c = (a / a.sum()) @ x
        h = np.concatenate([word, c])
        for i in range(decoder_layers):
            states[i], h = step(p['decoder'][f'cell_{i}'], states[i], h)
        h = np.tanh(dense(p['merge'], np.concatenate([h, word, c])))
        logits.append(h @ p['embedding'].T)
    return np.stack(logits)


@pytest.mark.parametrize('depths', [(2, 2), (2, 1)], ids=str)
@pytest.mark.parametrize('cell', ['gru', 'lstm'])
def test_recurrent_is_its_equations(cell, depths):
    model = tiny.model(
        architecture=f'recurrent(cell="{cell}")',
        num_layers=depths[0],
        decoder__num_layers=depths[1],
        dropout=0.0,
    )
    params = tiny.parameters(model)
    source, inputs = [4, 5, 6, 7, 1], [2, 8, 9]
    found = tiny.apply(
        model, {'params': params}, tiny.padded([source]), tiny.padded([inputs])
    )
    width = tiny.SIZES['d_model']
    expected = recurrent(float64(params), source, inputs, cell, depths, width)
    np.testing.assert_allclose(found[0], expected, atol=2e-5)


@pytest.mark.parametrize(
    ('name', 'theirs'), [('gru', nn.GRUCell), ('lstm', nn.OptimizedLSTMCell)]
)
def test_a_cell_is_flaxs(name, theirs):
    rng = np.random.default_rng(0)
    x, h = (jnp.asarray(rng.normal(size=(2, 3, n)), jnp.float32) for n in (7, 5))
    cell = CELLS[name](5, Dense())
    state = cell.first_state(h)
    p = tiny.variables(cell, state, x)
    expected = tiny.apply(theirs(5), p, state, x)
    found = tiny.apply(cell, p, state, x)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)

    # In bfloat16 only operands are rounded: states and gates are as fine as ever.
    coarse = tiny.apply(CELLS[name](5, Dense(dtype=jnp.bfloat16)), p, state, x)
    for one, other in zip(*map(jax.tree.leaves, (coarse, expected)), strict=True):
        assert one.dtype == jnp.float32
        assert (one != one.astype(jnp.bfloat16)).any()
        np.testing.assert_allclose(one, other, atol=0.05)


def test_a_decoder_only_goes_on_from_its_source():
    model = tiny.model(architecture='decoder_only')
    p = {'params': tiny.parameters(model)}
    source, inputs = [4, 5, 6, 1], [2, 8, 9]
    found = tiny.apply(model, p, tiny.padded([source]), tiny.padded([inputs]))
    alone = tiny.apply(
        model, p, jnp.zeros((1, 0), jnp.int32), tiny.padded([source + inputs])
    )
    np.testing.assert_allclose(found, alone[:, len(source) :], atol=1e-5)


def test_a_prefix_lm_of_one_source_token_is_a_decoder_only_and_of_more_is_not():
    plain, prefix = (
        tiny.model(architecture=name, positions='rotary')
        for name in ('decoder_only', 'prefix_lm')
    )
    p = {'params': tiny.parameters(plain)}
    inputs = tiny.padded([[2, 8, 9]])
    for source, same in (([4], True), ([4, 5, 6], False)):
        arguments = p, tiny.padded([source]), inputs
        difference = tiny.apply(prefix, *arguments) - tiny.apply(plain, *arguments)
        assert (np.abs(difference).max() < 1e-6) == same


def test_continuous_positions_are_those_of_one_text():
    fields = dict(positions='rotary', cross__positions='rotary', num_layers=1)
    plain = tiny.model(**fields)
    continuous = tiny.model(**fields, continuous_positions=True)
    p = {'params': tiny.parameters(plain)}
    rows = tiny.batch([*([pair] for pair in tiny.PAIRS), tiny.PAIRS])
    source, inputs = source_and_inputs(rows)
    found = tiny.apply(continuous, p, source, inputs)

    lengths = [len(source) for source, _ in tiny.PAIRS]
    positions_BT = np.array(inputs.positions_BT)
    for row, column in np.argwhere(inputs.segments_BT):
        packed = row == len(tiny.PAIRS)
        pair = inputs.segments_BT[row, column] - 1 if packed else row
        positions_BT[row, column] += lengths[pair]
    told = inputs._replace(positions_BT=jnp.asarray(positions_BT))
    np.testing.assert_allclose(found, tiny.apply(plain, p, source, told), atol=1e-6)
    assert np.abs(found - tiny.apply(plain, p, source, inputs)).max() > 1e-3


# Every field of a model, with a value that is not the tiny model's.
OTHERS: dict[str, Any] = {
    'd_model': 16,
    'num_layers': 3,
    'num_heads': 4,
    'd_k': 6,
    'd_v': 6,
    'd_ff': 20,
    'decoder.num_layers': 1,
    'decoder.d_model': 18,
    'decoder.num_heads': 3,
    'decoder.num_kv_heads': 1,
    'decoder.d_k': 8,
    'decoder.d_v': 8,
    'decoder.d_ff': 24,
    'cross.num_heads': 6,
    'cross.num_kv_heads': 1,
    'cross.d_k': 10,
    'cross.d_v': 10,
    'dropout': 0.2,
    'attention': 'relu',
    'decoder.attention': 'cosine',
    'cross.attention': 'additive',
    'projections': False,
    'num_kv_heads': 1,
    'positions': 'rotary',
    'decoder.positions': 'alibi',
    'cross.positions': 'rotary',
    'continuous_positions': True,
    'merged_attention': True,
    'norm': 'rms',
    'decoder.norm': 'scale',
    'residual': 'deepnorm',
    'decoder.residual': 'pre_norm',
    'feed_forward': 'gelu',
    'decoder.feed_forward': 'swiglu',
    'block': 'parallel',
    'decoder.block': 'parallel',
    'share_layers': 1,
    'decoder.share_layers': 1,
    'scan_layers': True,
    'dropout_kind': 'tokens',
    'head_dropout': 0.1,
    'layer_drop': 0.1,
    'init': 'kaiming',
    'dense': 'lora',
    'tie': 'decoder',
    'scale_embeddings': False,
    'attention_bias': True,
    'norm_embeddings': True,
    'output_bias': True,
    'scale_logits': True,
    'logit_cap': 5.0,
    'dtype': 'bfloat16',
}


@pytest.mark.parametrize('architecture', variants.names('architecture'))
def test_unused_fields_and_no_others_change_nothing(architecture):
    assert OTHERS.keys() == set(schema.fields()) - {'architecture'}
    given = dict(architecture=architecture, residual='post_norm')
    for field, value in OTHERS.items():
        # Without projections heads are slices of d_model.
        needs = dict(d_k=None, d_v=None) if field == 'projections' else {}
        if field == 'decoder.d_model':
            needs = dict(tie='none')
        changed = tiny.model(**given | needs | {field: value})
        same = changed == tiny.model(**given | needs)
        unused = variants.unused_fields(ModelConfig.of(given))
        assert same == (field in unused), field


@pytest.mark.parametrize(
    'overrides',
    [
        *(dict(residual=name) for name in variants.names('residual')),
        {'residual': 'rezero', 'decoder.residual': 'pre_norm'},
        {'residual': 'pre_norm', 'decoder.residual': 'none'},
    ],
    ids=str,
)
def test_a_norm_is_unused_where_it_makes_no_parameter_another(overrides):
    def parameters(**others):
        model = tiny.model(num_layers=1, **overrides | others)
        found = flatten_dict(tiny.parameters(model), sep='/')
        return {name: x.shape for name, x in found.items()}

    unused = variants.unused_fields(ModelConfig().with_values(overrides))
    for field in ('norm', 'decoder.norm'):
        same = parameters(**{field: 'scale'}) == parameters()
        assert same == (field in unused), field


def entities():
    model = build.entity_encoder(tiny.SIZES)
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(2, 5, 7)), jnp.float32)
    present = jnp.asarray(
        [[True, True, False, True, True], [False, True, False, False, False]]
    )
    return model, tiny.variables(model, features, present), features, present


def test_absent_entities_are_neither_seen_nor_returned():
    model, p, features, present = entities()
    y = tiny.apply(model, p, features, present)
    other = tiny.apply(model, p, jnp.where(present[..., None], features, 9.0), present)
    np.testing.assert_array_equal(y, other)
    np.testing.assert_array_equal(y[~present], 0.0)
    few = tiny.apply(
        model, p, features[:1, jnp.asarray([0, 1, 3, 4])], jnp.ones((1, 4), bool)
    )
    np.testing.assert_allclose(y[0][present[0]], few[0], atol=1e-5)
    # And the others do matter.
    seen = tiny.apply(model, p, features.at[0, 0].add(1.0), present)
    assert jnp.abs(seen[0, 1] - y[0, 1]).max() > 1e-3


READS = dict(num_layers=2, residual='pre_norm', norm='rms')


@pytest.mark.parametrize('reads', ['last', 'same', 'mixture'])
def test_keys_of_a_decoder_layer_are_of_the_encoder_layers_that_it_reads(reads):
    depth = 2 if reads == 'same' else 3
    model = tiny.model(
        architecture=f'encoder_decoder(reads="{reads}")',
        decoder__num_layers=depth,
        **READS,
    )
    variables = tiny.all_variables(model)
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    found = float64(tiny.record(model, variables, rows).values)
    p = float64(variables['params'])
    streams = [found[f'encoder/layer_{i}/resid_pre'] for i in range(2)]
    streams.append(found['encoder/layer_1/resid_post'])
    scale = p['encoder']['final']['norm']['scale']
    normed = [
        x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale for x in streams
    ]
    for j in range(depth):
        source = normed[-1] if reads == 'last' else normed[min(j + 1, 2)]
        if reads == 'mixture':
            e = np.exp(p['encoder_mixture']['logits'][:, j])
            source = np.tensordot(e / e.sum(), normed, 1)
        kernel = p['decoder'][f'layer_{j}']['cross_attention']['key']['kernel']
        expected = np.einsum('bsd,dhk->bshk', source, kernel)
        keys = found[f'decoder/layer_{j}/cross_attention/k']
        np.testing.assert_allclose(keys, expected, atol=1e-5)


@pytest.mark.parametrize(
    'reads', ['same', pytest.param('mixture', marks=pytest.mark.slow)]
)
def test_scanned_decoder_layers_read_the_same_encoder_layers(reads):
    # Of a period of two layers.
    fields = dict(
        READS,
        num_layers=4,
        architecture=f'encoder_decoder(reads="{reads}")',
        attention='[softmax, sigmoid]',
    )
    model = tiny.model(**fields)
    variables = tiny.all_variables(model)
    inputs = source_and_inputs(tiny.batch([[pair] for pair in tiny.PAIRS]))
    expected = tiny.apply(model, variables, *inputs)
    scanned = tiny.model(**fields, scan_layers=True)
    stacked = stack_layers(variables, scanned.layer_periods)
    found = tiny.apply(scanned, stacked, *inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_layers_of_stacks_of_unequal_depth_have_no_pairs():
    with pytest.raises(ValueError, match='encoder has 2 and the decoder 3. Set model'):
        tiny.model(architecture='encoder_decoder(reads="same")', decoder__num_layers=3)


@pytest.mark.parametrize(
    'scan_layers', [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('block', ['sequential', 'value_residual'])
def test_a_head_of_multi_token_is_the_decoder_with_another_last_layer(
    block, scan_layers
):
    """Gloeckle et al. (2024), §2: heads share the trunk and the output matrix."""
    fields: dict[str, Any] = dict(
        positions='t5', residual='pre_norm', norm='rms', d_model=8, num_layers=2
    )
    fields['block'] = block
    plain = tiny.model(**fields)
    fields |= {'architecture': 'multi_token(heads=3)', 'scan_layers': scan_layers}
    model = tiny.model(**fields)
    params = dict(tiny.all_variables(model.with_separate_layers())['params'])
    heads = [params.pop(f'decoder_heads_{i}') for i in range(2)]
    batch = tiny.batch([tiny.PAIRS[:2], tiny.PAIRS[2:]])

    @jax.jit
    def hidden(last_layer):
        decoder = params['decoder'] | {'layer_1': last_layer}
        variables = {'params': params | {'decoder': decoder}}
        rows = source_and_inputs(batch)
        return plain.apply(variables, *rows, method='logit_factors')[0]

    expected = list(map(hidden, [params['decoder']['layer_1'], *heads]))
    own = {'decoder_heads_0': heads[0], 'decoder_heads_1': heads[1]}
    variables = {'params': params | own}
    if scan_layers:
        variables = stack_layers(variables, model.layer_periods)
    found, *_ = jax.jit(
        lambda: model.apply(
            variables, *source_and_inputs(batch), method='factors_of_heads'
        )
    )()
    valid = np.asarray(batch['target_segments'] > 0)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x[valid], y[valid], atol=1e-5)
    assert abs(expected[1] - expected[0])[valid].max() > 0.1
