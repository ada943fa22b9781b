"""Tests of architectures against float64 NumPy, and of whole models."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from tiny import float64, sigmoid, slow

import flaxformer_lite
from flaxformer_lite.config import builder, schema, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.generation import as_strategy
from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.recurrent_cells import CELLS
from flaxformer_lite.layers.scanned_stack import stack_layers
from flaxformer_lite.training.batch import source_and_inputs
from flaxformer_lite.training.train_step import init_variables


def model_and_variables(**overrides):
    model = tiny.model(**overrides)
    return model, tiny.all_variables(model)


def with_changed_parameters(variables, pattern, change):
    """Returns variables, changed where the path contains the pattern."""
    flat = flatten_dict(variables, sep='/')
    assert any(pattern in name for name in flat)
    changed = {k: change(x) if pattern in k else x for k, x in flat.items()}
    return unflatten_dict(changed, sep='/')


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


def recurrent_logits(p, source, inputs, cell, depths, width):
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
    attention = p['decoder']['cross_attention']
    for word in embedding[inputs]:
        top = states[-1][1] if cell == 'lstm' else states[-1]
        e = np.tanh(top @ attention['query'][0] + x @ attention['key'][0])
        c = tiny.softmax(e @ attention['energy'][0]) @ x
        h = np.concatenate([word, c])
        for i in range(decoder_layers):
            states[i], h = step(p['decoder'][f'cell_{i}'], states[i], h)
        h = np.tanh(dense(p['merge'], np.concatenate([h, word, c])))
        logits.append(h @ p['embedding'].T)
    return np.stack(logits)


@pytest.mark.ci
@pytest.mark.parametrize(('cell', 'depths'), [('gru', (2, 1)), ('lstm', (2, 2))])
def test_recurrent_model_equals_its_equations(cell, depths):
    model = tiny.model(
        architecture=f'recurrent(cell="{cell}")',
        num_layers=depths[0],
        decoder__num_layers=depths[1],
        dropout=0.0,
    )
    params = tiny.parameters(model)
    source, inputs = [4, 5, 6, 7, 1], [2, 8, 9]
    arguments = tiny.padded([source]), tiny.padded([inputs])
    found = tiny.apply(model, {'params': params}, *arguments)
    width = tiny.SIZES['d_model']
    expected = recurrent_logits(float64(params), source, inputs, cell, depths, width)
    np.testing.assert_allclose(found[0], expected, atol=2e-5)


@pytest.mark.parametrize(
    ('name', 'flax_cell'), [('gru', nn.GRUCell), ('lstm', nn.OptimizedLSTMCell)]
)
def test_recurrent_cell_equals_that_of_flax(name, flax_cell):
    x, h = tiny.normal32(2, 3, 7), tiny.normal32(2, 3, 5, seed=1)
    cell = CELLS[name](5, Dense())
    state = cell.first_state(h)
    p = tiny.variables(cell, state, x)
    expected = jax.tree.leaves(tiny.apply(flax_cell(5), p, state, x))
    tiny.assert_close(jax.tree.leaves(tiny.apply(cell, p, state, x)), expected, 1e-6)

    # bfloat16 rounds operands only: states and gates stay float32.
    rounded = tiny.apply(CELLS[name](5, Dense(dtype=jnp.bfloat16)), p, state, x)
    for one, other in zip(jax.tree.leaves(rounded), expected, strict=True):
        assert one.dtype == jnp.float32
        assert (one != one.astype(jnp.bfloat16)).any()
        np.testing.assert_allclose(one, other, atol=0.05)


def test_decoder_only_model_reads_source_and_target_as_one_text():
    model, p = model_and_variables(architecture='decoder_only', num_layers=1)
    source, inputs = [4, 5, 6, 1], [2, 8, 9]
    found = tiny.apply(model, p, tiny.padded([source]), tiny.padded([inputs]))
    nothing, text = jnp.zeros((1, 0), jnp.int32), tiny.padded([source + inputs])
    expected = tiny.apply(model, p, nothing, text)
    np.testing.assert_allclose(found, expected[:, len(source) :], atol=1e-5)


@pytest.mark.ci
def test_prefix_lm_differs_from_decoder_only_for_sources_of_several_tokens():
    # Source tokens read later ones in the first layer, and targets in the second.
    plain, prefix = (
        tiny.model(architecture=name, positions='rotary')
        for name in ('decoder_only', 'prefix_lm')
    )
    p = {'params': tiny.parameters(plain)}
    inputs = tiny.padded([[2, 8, 9]])
    for source, is_same in (([4], True), ([4, 5, 6], False)):
        arguments = p, tiny.padded([source]), inputs
        difference = tiny.apply(prefix, *arguments) - tiny.apply(plain, *arguments)
        assert (np.abs(difference).max() < 1e-6) == is_same


@pytest.mark.ci
def test_continuous_positions_count_target_tokens_after_the_source():
    fields = dict(positions='rotary', cross__positions='rotary', num_layers=1)
    plain, p = model_and_variables(**fields)
    continuous = tiny.model(**fields, continuous_positions=True)
    source, inputs = source_and_inputs(tiny.packed_batch())
    found = tiny.apply(continuous, p, source, inputs)

    lengths = [len(source) for source in tiny.SOURCES]
    positions_BT = np.array(inputs.positions_BT)
    for row, column in np.argwhere(inputs.segments_BT):
        is_packed = row == len(tiny.PAIRS)
        pair = inputs.segments_BT[row, column] - 1 if is_packed else row
        positions_BT[row, column] += lengths[pair]
    shifted = inputs._replace(positions_BT=jnp.asarray(positions_BT))
    np.testing.assert_allclose(found, tiny.apply(plain, p, source, shifted), atol=1e-6)
    assert np.abs(found - tiny.apply(plain, p, source, inputs)).max() > 1e-3


# Every field of a model, with a value that is not the tiny model's.
OTHER_VALUES: dict[str, Any] = {
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


@pytest.mark.ci
@pytest.mark.parametrize(
    'fields',
    [
        *(dict(architecture=name) for name in variants.names('architecture')),
        dict(merged_attention=True),
    ],
    ids=str,
)
def test_unused_fields_leave_the_model_unchanged_and_others_change_it(fields):
    assert OTHER_VALUES.keys() == set(schema.fields()) - {'architecture'}
    fields = dict(residual='post_norm') | fields
    unused = variants.unused_fields(ModelConfig.of(fields))
    for field in sorted(OTHER_VALUES.keys() - fields.keys()):
        # Without projections heads are slices of d_model.
        needs = dict(d_k=None, d_v=None) if field == 'projections' else {}
        if field == 'decoder.d_model':
            needs = dict(tie='none', merged_attention=False)
        other = fields | needs
        changed = other | {field: OTHER_VALUES[field]}
        is_same = _without_cross(**changed) == _without_cross(**other)
        assert is_same == (field in unused), field


def _without_cross(**fields):
    """Returns stacks and a model without the overrides that only they read."""
    model = tiny.model(**fields)
    names = {field.name for field in dataclasses.fields(model)} - {'cross'}
    return model.stacks(), {name: getattr(model, name) for name in names}


@pytest.mark.parametrize(
    'overrides',
    [
        {'residual': 'none'},
        {'residual': 'rezero', 'decoder.residual': 'pre_norm'},
        *(
            slow({'residual': name})
            for name in variants.names('residual')
            if name != 'none'
        ),
    ],
    ids=str,
)
def test_norm_is_unused_if_residuals_create_no_norm(overrides):
    def shapes(**others):
        model = tiny.model(num_layers=1, **overrides | others)
        tree = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
        found = flatten_dict(tree['params'], sep='/')
        return {name: x.shape for name, x in found.items()}

    unused = variants.unused_fields(ModelConfig().with_values(overrides))
    for field in ('norm', 'decoder.norm'):
        assert (shapes(**{field: 'scale'}) == shapes()) == (field in unused), field


def test_entity_encoder_ignores_absent_entities():
    model = builder.entity_encoder(tiny.SIZES | dict(num_layers=1))
    features = tiny.normal32(2, 5, 7)
    present = jnp.asarray([[1, 1, 0, 1, 1], [0, 1, 0, 0, 0]], bool)
    p = tiny.variables(model, features, present)
    y = tiny.apply(model, p, features, present)
    other = tiny.apply(model, p, jnp.where(present[..., None], features, 9.0), present)
    np.testing.assert_array_equal(y, other)
    np.testing.assert_array_equal(y[~present], 0.0)
    few = features[:1, jnp.asarray([0, 1, 3, 4])]
    alone = tiny.apply(model, p, few, jnp.ones((1, 4), bool))
    np.testing.assert_allclose(y[0][present[0]], alone[0], atol=1e-5)
    # Entities that are present have an effect on each other.
    changed = tiny.apply(model, p, features.at[0, 0].add(1.0), present)
    assert jnp.abs(changed[0, 1] - y[0, 1]).max() > 1e-3


READS = dict(num_layers=2, residual='pre_norm', norm='rms')


@pytest.mark.ci
@pytest.mark.parametrize('reads', ['mixture', *map(slow, ('same', 'last'))])
def test_keys_of_decoder_layers_come_from_the_encoder_layers_they_read(reads):
    depth = 2 if reads == 'same' else 3
    architecture = f'encoder_decoder(reads="{reads}")'
    fields = READS | dict(architecture=architecture, decoder__num_layers=depth)
    model, variables = model_and_variables(**fields)
    found = float64(tiny.record(model, variables, tiny.pairs_batch()).values)
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
            share = tiny.softmax(p['encoder_mixture']['logits'][:, j])
            source = np.tensordot(share, normed, 1)
        kernel = p['decoder'][f'layer_{j}']['cross_attention']['key']['kernel']
        expected = np.einsum('bsd,dhk->bshk', source, kernel)
        keys = found[f'decoder/layer_{j}/cross_attention/k']
        np.testing.assert_allclose(keys, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('reads', ['mixture', 'same'])
def test_scanned_decoder_layers_read_the_same_encoder_layers(reads):
    fields = READS | dict(
        num_layers=4,
        architecture=f'encoder_decoder(reads="{reads}")',
        attention='[softmax, sigmoid]',
    )
    model, variables = model_and_variables(**fields)
    inputs = source_and_inputs(tiny.pairs_batch())
    expected = tiny.apply(model, variables, *inputs)
    scanned = tiny.model(**fields, scan_layers=True)
    stacked = stack_layers(variables, scanned.layer_periods)
    found = tiny.apply(scanned, stacked, *inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ('overrides', 'fields'),
    [
        (dict(decoder__num_heads=5, d_v=None), r'model\.d_model.*decoder\.num_heads'),
        (dict(num_kv_heads=2, decoder__num_heads=3), r'num_kv_heads=2 .*num_heads=3'),
        (
            dict(projections=False, d_k=None, d_v=None, decoder__d_k=4),
            r'model\.projections=False .* decoder\.d_k',
        ),
        (
            dict(architecture='encoder_decoder(reads="same")', decoder__num_layers=3),
            'encoder has 2 and the decoder 3',
        ),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_each_other_are_rejected(overrides, fields):
    with pytest.raises(ValueError, match=fields):
        tiny.model(**overrides)


def test_decode_steps_read_projected_source_keys_and_values():
    model, p = model_and_variables(num_layers=1)
    state = tiny.apply(model, p, tiny.padded([[4, 5, 6, 1], [7, 1]]), method='prefill')
    later = p
    for name in ('key', 'value'):
        pattern = f'cross_attention/{name}'
        later = with_changed_parameters(later, pattern, lambda x: x * jnp.nan)
    beam = BeamState(
        step=jnp.int32(0),
        parent_BN=jnp.zeros((2, 1), jnp.int32),
        visible_BNS=jnp.ones((2, 1, 1), bool),
    )
    arguments = jnp.full((2, 1), 2), state.allocate(1, 1), beam
    found, expected = (
        tiny.apply(model, x, *arguments, method='decode_step')[0] for x in (later, p)
    )
    np.testing.assert_array_equal(found, expected)


def test_ties_share_embeddings_and_output_matrix():
    for tie, source, output in (
        ('all', 'embedding', 'embedding'),
        ('decoder', 'source_embedding', 'embedding'),
        ('source_target', 'embedding', 'output'),
        ('none', 'source_embedding', 'output'),
    ):
        model, p = model_and_variables(tie=tie, num_layers=1)
        matrices = {k: v for k, v in p['params'].items() if 'coder' not in k}
        assert set(matrices) == {'embedding', source, output}
        bound = model.bind(p)
        np.testing.assert_array_equal(bound.target_VD, matrices['embedding'])
        np.testing.assert_array_equal(bound.source_VD, matrices[source])
        np.testing.assert_array_equal(bound.output_VD, matrices[output])


@pytest.mark.ci
def test_logits_are_scaled_then_biased_then_capped():
    fields = dict(tie='none', num_layers=1, output_bias=True)
    fields['architecture'] = 'decoder_only'
    model, p = model_and_variables(**fields)
    bias = np.float64(p['params']['output_bias'])
    source, inputs = tiny.padded([[4, 5, 1]]), tiny.padded([[2, 6, 7]])
    z = np.float64(tiny.apply(model, p, source, inputs)) - bias
    capped = tiny.model(**fields, scale_logits=True, logit_cap=0.5)
    found = tiny.apply(capped, p, source, inputs)
    expected = 0.5 * np.tanh((z / np.sqrt(12) + bias) / 0.5)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    batch = flaxformer_lite.make_batch([[4, 5, 1]], [[6, 7, 1]])
    nll = -np.log(tiny.softmax(expected[0]))[range(3), [6, 7, 1]].sum()
    found = tiny.loss_sums(capped, p, batch).nll
    np.testing.assert_allclose(found, nll, rtol=1e-5)


@functools.partial(jax.jit, static_argnums=0)
def beam_search(model, p, source, bos=2):
    words_B = (source != 0).sum(-1)
    max_len_B = jnp.where(words_B > 0, words_B + 5, 0)
    inputs = tiny.decode_inputs(model, p, source, max_len_B, length=10, bos=bos)
    return as_strategy('beam(beams=3)')(inputs, n_best=3)


def teacher_forced_scores(model, p, source, tokens, bos=2):
    labels = np.asarray(tokens).reshape(-1, 10)
    inputs = np.insert(labels, 0, bos, axis=1)[:, :-1]
    out = tiny.apply(model, p, jnp.repeat(source, 3, axis=0), inputs)
    log_p = np.asarray(jax.nn.log_softmax(out))
    log_p = np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    lengths = (labels == 1).argmax(-1) + 1
    sums = np.array([row[:n].sum() for row, n in zip(log_p, lengths, strict=True)])
    return (sums / ((5 + lengths) / 6) ** 0.6).reshape(-1, 3)


def model_with_equal_tokens_0_and_2(architecture='encoder_decoder'):
    model, p = model_and_variables(architecture=architecture, tie='none', num_layers=1)
    table = p['params']['embedding']
    return model, {'params': p['params'] | {'embedding': table.at[0].set(table[2])}}


SHORT_SOURCES = tiny.padded([[4, 5, 6, 1], [7, 1]])


@pytest.mark.parametrize('architecture', ['encoder_decoder', slow('prefix_lm')])
def test_start_token_may_share_the_id_of_padding(architecture):
    """T5 shares the id."""
    model, p = model_with_equal_tokens_0_and_2(architecture)
    found, expected = (
        tiny.apply(model, p, SHORT_SOURCES, tiny.padded([[bos, 8, 9, 3], [bos, 5]]))
        for bos in (0, 2)
    )
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1, :2], expected[1, :2], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('architecture', ['encoder_decoder', 'prefix_lm'])
def test_search_may_start_with_the_id_of_padding(architecture):
    model, p = model_with_equal_tokens_0_and_2(architecture)
    tokens, scores, _ = beam_search(model, p, SHORT_SOURCES, bos=0)
    expected = teacher_forced_scores(model, p, SHORT_SOURCES, tokens, bos=0)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)


def model_that_attends_to_the_source():
    """Returns a model with random weights whose outputs depend on the source."""
    model = tiny.model(tie='none')
    p = {'params': tiny.parameters(model, seed=2)}
    p = with_changed_parameters(p, 'bias', jnp.zeros_like)
    p = with_changed_parameters(p, 'scale', jnp.ones_like)
    return model, with_changed_parameters(p, 'cross_attention/', lambda x: 2 * x)


def test_beam_search_finds_the_golden_translations():
    """If you changed the model, the search or parameter names on purpose, copy the new
    beam here. The exhaustive search in test_decoding checks its correctness, and so do
    the scores of whole targets below.
    """
    source = tiny.padded([*tiny.SOURCES, []])
    tokens, scores, _ = beam_search(*model_that_attends_to_the_source(), source)
    why = test_beam_search_finds_the_golden_translations.__doc__
    expected = [[1], [5, 3, 5, 5, 5, 5, 5, 1], [1], []]
    expected = tiny.padded(expected, length=10)
    np.testing.assert_array_equal(tokens[:, 0], expected, err_msg=why)
    golden = [-2.7802, -8.7680, -2.9594]
    np.testing.assert_allclose(scores[:3, 0], golden, atol=1e-3, err_msg=why)


@pytest.mark.ci
def test_translation_is_the_same_alone_and_in_a_batch():
    model, p = model_that_attends_to_the_source()
    tokens, scores, exists = beam_search(model, p, tiny.padded([*tiny.SOURCES, []]))
    np.testing.assert_array_equal(tokens[-1], 0)
    np.testing.assert_array_equal(exists.all(1), [True, True, True, False])
    alone = beam_search(model, p, tiny.padded(tiny.SOURCES[1:2]))
    np.testing.assert_array_equal(alone.tokens[0], tokens[1])
    np.testing.assert_allclose(alone.scores[0], scores[1], atol=1e-5)

    source = tiny.padded(tiny.SOURCES)
    expected = teacher_forced_scores(model, p, source, tokens[:3])
    np.testing.assert_allclose(scores[:3], expected, rtol=1e-4)
