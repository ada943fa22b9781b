"""Tests of recorded values against formulas, and of changes against other models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict, unflatten_dict
from tiny import attention_stats, float64, record, slow

import flaxformer_lite
from flaxformer_lite import interventions
from flaxformer_lite.config import variants
from flaxformer_lite.interventions.context import with_separate_layers
from flaxformer_lite.networks import DecoderOverrides
from flaxformer_lite.training.batch import source_and_inputs


@functools.cache
def opened(**overrides):
    model = tiny.model(**dict(dropout=0.3) | overrides)
    return model, tiny.all_variables(model)


def sinusoids(pos, d):
    angle = pos[..., None] / 10000 ** (np.arange(0, d, 2) / d)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(*pos.shape, d)


@pytest.mark.ci
def test_recorded_values_of_the_first_layer_equal_the_formulas():
    model, variables = opened()
    rows, p = tiny.packed_batch(), float64(variables['params'])
    found = record(model, variables, rows)
    pos, segments = (np.asarray(rows[f'source_{n}']) for n in ('positions', 'segments'))
    x = p['embedding'][np.asarray(rows['source'])] * np.sqrt(12) + sinusoids(pos, 12)
    norms = np.linalg.norm(x, axis=-1)
    np.testing.assert_allclose(found.norms['encoder'][0], norms, rtol=1e-5)

    a = p['encoder']['layer_0']['self_attention']
    q, k, v = (
        np.einsum('btd,dhk->bthk', x, a[n]['kernel']) for n in ('query', 'key', 'value')
    )
    s = np.einsum('bthk,bshk->bhts', q, k) / np.sqrt(4)
    mask = (segments[:, :, None] == segments[:, None]) & (segments[:, None] != 0)
    e = np.where(mask[:, None], np.exp(s - s.max(-1, keepdims=True)), 0)
    w = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    np.testing.assert_allclose(found.weights['encoder'][0], w, atol=1e-5)
    heads = np.einsum('bhts,bshu->bthu', w, v)
    np.testing.assert_allclose(found.heads['encoder'][0], heads, atol=2e-5)


@pytest.mark.ci
@pytest.mark.parametrize(
    'fields',
    [
        {},
        *(
            slow(dict(architecture=name, num_layers=1))
            for name in variants.names('architecture')
        ),
    ],
    ids=str,
)
def test_attention_weights_sum_to_one_and_exclude_padding(fields):
    model, variables = opened(**fields)
    for figures in attention_stats(model, variables, tiny.packed_batch()).values():
        if 'padding' in figures:
            np.testing.assert_array_equal(figures['padding'], 0.0)
            assert (figures['largest'] > 1 / 13).all()
            assert (figures['entropy'] > 0).all()
            assert (figures['entropy'] < np.log(13)).all()
    for layers in record(model, variables, tiny.packed_batch()).weights.values():
        for w in layers:
            total = np.asarray(w.sum(-1))
            assert (np.isclose(total, 1, atol=1e-5) | (total == 0)).all()


@pytest.mark.ci
def test_attention_stats_are_means_over_the_queries_of_tokens():
    model, variables = opened()
    rows = tiny.packed_batch()
    found = attention_stats(model, variables, rows)
    weights = record(model, variables, rows).weights['decoder']
    pos = np.asarray(rows['target_positions'])
    valid = np.asarray(rows['target_segments']) != 0
    for layer, head in np.ndindex(2, 2):
        w = float64(weights[layer])[:, head][valid]
        distance = (pos[:, None] - pos[..., None])[valid]
        logs = np.log(np.where(w > 0, w, 1))
        expected = {
            'entropy': -(w * logs).sum(-1).mean(),
            'largest': w.max(-1).mean(),
            'distance': (w * np.abs(distance)).sum(-1).mean(),
            'diagonal': (w * (distance == 0)).sum(-1).mean(),
            'previous': (w * (distance == -1)).sum(-1).mean(),
        }
        figures = {name: found['decoder'][name][layer, head] for name in expected}
        tiny.assert_close(figures, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.ci
def test_gradient_norms_are_those_of_the_mean_loss():
    model, variables = opened()
    rows = tiny.packed_batch()
    labels = rows['labels']

    def loss(params):
        logits = model.apply({'params': params}, *source_and_inputs(rows))
        log_p = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(log_p, labels[..., None], -1)[..., 0]
        each = 0.9 * own + 0.1 * log_p.mean(-1)
        return -(each * (labels != 0)).sum() / (labels != 0).sum()

    gradient = jax.jit(jax.grad(loss))(variables['params'])
    found = attention_stats(model, variables, rows)
    for stack in ('encoder', 'decoder'):
        for i in range(2):
            leaves = jax.tree.leaves(float64(gradient[stack][f'layer_{i}']))
            expected = np.sqrt(sum((x**2).sum() for x in leaves))
            norm = found[stack]['gradient_norm'][i]
            np.testing.assert_allclose(norm, expected, rtol=1e-4)


def test_record_rejects_attention_without_stored_weights():
    model, variables = opened(attention='blockwise', cross__attention='softmax')
    message = 'attention of encoder does not compute its weights'
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            functools.partial(flaxformer_lite.record, model),
            variables,
            tiny.packed_batch(),
        )


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, rows, changes=None):
    with flaxformer_lite.intervene(changes or {}):
        return model.apply(variables, *source_and_inputs(rows))


@pytest.mark.ci
def test_head_scaled_by_zero_equals_zero_rows_of_the_output_matrix():
    model, variables = opened()
    rows = tiny.pairs_batch()
    plain = logits(model, variables, rows)
    for kind in ('self_attention', 'cross_attention'):
        flat = flatten_dict(variables, sep='/')
        matrix = f'params/decoder/layer_1/{kind}/out_proj/kernel'
        flat[matrix] = flat[matrix].at[1].set(0)
        head_off = {f'decoder/layer_1/{kind}/z': interventions.scale(0.0, heads=[1])}
        found = logits(model, variables, rows, head_off)
        expected = logits(model, unflatten_dict(flat, sep='/'), rows)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(found - plain).max() > 1e-2


def check_skips_a_layer(model, variables, changes):
    """Compares interventions with an encoder of one layer."""
    found = logits(model, variables, tiny.pairs_batch(), changes)
    flat = flatten_dict(variables, sep='/')
    others = {k: v for k, v in flat.items() if 'encoder/layer_1' not in k}
    decoder = DecoderOverrides(num_layers=model.num_layers)
    shorter = model.clone(num_layers=1, decoder=decoder)
    expected = logits(shorter, unflatten_dict(others, sep='/'), tiny.pairs_batch())
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - logits(model, variables, tiny.pairs_batch())).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize('block', ['parallel', 'sequential'])
def test_pre_norm_layer_without_sublayers_is_skipped(block):
    layer_off = {'encoder/layer_1/*_out': interventions.scale(0.0)}
    check_skips_a_layer(*opened(residual='pre_norm', block=block), layer_off)


@pytest.mark.slow
def test_layer_whose_output_is_its_input_is_skipped():
    model, variables = opened()
    values = record(model, variables, tiny.pairs_batch()).values
    own_input = interventions.set_to(values['encoder/layer_1/resid_pre'])
    skip = {'encoder/layer_1/resid_post': own_input}
    check_skips_a_layer(model, variables, skip)


def two_batches():
    others = [[5, 12, 1], [8, 9, 4, 1], [6, 3, 1]]
    ours = flaxformer_lite.make_batch(tiny.SOURCES, tiny.TARGETS, length=6)
    return ours, flaxformer_lite.make_batch(others, others, length=6)


@pytest.mark.parametrize(
    'config',
    [
        slow({}),
        slow({'scan_layers': True, 'residual': 'sandwich'}),
        slow({'block': 'parallel'}),
    ],
    ids=str,
)
def test_recorded_stream_of_another_batch_gives_its_logits(config):
    model, variables = opened(**config)
    ours, other = two_batches()
    values = record(model.with_remat('blocks'), variables, other)
    model, variables = with_separate_layers(model, variables)
    expected = logits(model, variables, other)
    patch = interventions.from_record(values)
    found = logits(model, variables, ours, {'decoder/layer_1/resid_post': patch})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # The input of the decoder has the same effect, with the other source.
    same_source = other | {'inputs': ours['inputs']}
    found = logits(model, variables, same_source, {'decoder/layer_0/resid_pre': patch})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(logits(model, variables, ours) - expected).max() > 1e-2


@pytest.mark.ci
def test_stream_is_the_sum_of_the_outputs_of_sublayers():
    values = float64(record(*opened(residual='pre_norm'), tiny.packed_batch()).values)
    for stack, streams in {
        'encoder': {'attn_out': 'resid_mid', 'mlp_out': 'resid_post'},
        'decoder': {
            'attn_out': 'resid_mid',
            'cross_attn_out': 'resid_mid_cross',
            'mlp_out': 'resid_post',
        },
    }.items():
        stream = values[f'{stack}/layer_0/resid_pre']
        for output, name in streams.items():
            stream = stream + values[f'{stack}/layer_0/{output}']
            found = values[f'{stack}/layer_0/{name}']
            np.testing.assert_allclose(found, stream, atol=1e-5)
        after = values[f'{stack}/layer_1/resid_pre']
        np.testing.assert_allclose(after, stream, atol=1e-5)


@pytest.mark.slow
def test_patched_head_changes_the_output_by_its_rows_of_the_output_matrix():
    model, variables = opened()
    ours, other = two_batches()
    own, seen = (record(model, variables, rows) for rows in (ours, other))
    layer = 'decoder/layer_1'
    head, output = f'{layer}/cross_attention/z', f'{layer}/cross_attn_out'
    change_BTU = float64(seen.values[head] - own.values[head])[:, :, 1]
    params = float64(variables['params'])
    rows_UD = params['decoder']['layer_1']['cross_attention']['out_proj']['kernel'][1]
    patched_BTD = float64(own.values[output]) + change_BTU @ rows_UD
    patch = interventions.from_record(seen, heads=[1])
    found = logits(model, variables, ours, {head: patch})
    changes = {output: interventions.set_to(np.float32(patched_BTD))}
    expected = logits(model, variables, ours, changes)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - logits(model, variables, ours)).max() > 1e-3
