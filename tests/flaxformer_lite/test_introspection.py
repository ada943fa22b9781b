"""Tests of recorded values against formulas, and of changes against other models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict, unflatten_dict
from tiny import attention_stats, float64, record

import flaxformer_lite
from flaxformer_lite import interventions
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.interventions.context import with_separate_layers
from flaxformer_lite.training.batch import source_and_inputs


def batch():
    """Returns three sentences in a row each, then all of them packed in one row."""
    return tiny.batch([*([pair] for pair in tiny.PAIRS), tiny.PAIRS])


@functools.cache
def model(**overrides):
    return tiny.model(**dict(dropout=0.3) | overrides)


def sinusoids(pos, d):
    angle = pos[..., None] / 10000 ** (np.arange(0, d, 2) / d)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(*pos.shape, d)


def test_the_first_layer_is_the_formulas():
    m = model()
    variables = tiny.all_variables(m)
    rows, p = batch(), float64(variables['params'])
    found = record(m, variables, rows)
    pos, segments = (np.asarray(rows[f'source_{n}']) for n in ('positions', 'segments'))
    x = p['embedding'][np.asarray(rows['source'])] * np.sqrt(12) + sinusoids(pos, 12)
    np.testing.assert_allclose(
        found.norms['encoder'][0], np.linalg.norm(x, axis=-1), rtol=1e-5
    )

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


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=pytest.mark.slow if name == 'prefix_lm' else [])
        for name in variants.names('architecture')
    ],
)
def test_nothing_falls_on_padding_and_all_weights_are_somewhere(name):
    # The paper's of two layers is there already.
    layers = {} if name == ModelConfig().architecture else dict(num_layers=1)
    m = model(architecture=name, **layers)
    variables = tiny.all_variables(m)
    for figures in attention_stats(m, variables, batch()).values():
        if 'padding' in figures:
            np.testing.assert_array_equal(figures['padding'], 0.0)
            assert (figures['largest'] > 1 / 13).all() and (
                figures['entropy'] > 0
            ).all()
            assert (figures['entropy'] < np.log(13)).all()
    for layers in record(m, variables, batch()).weights.values():
        for w in layers:
            total = np.asarray(w.sum(-1))
            assert (np.isclose(total, 1, atol=1e-5) | (total == 0)).all()


def test_attention_stats_are_means_over_the_queries_that_are_tokens():
    m = model()
    variables, rows = tiny.all_variables(m), batch()
    found, seen = attention_stats(m, variables, rows), record(m, variables, rows)
    pos, valid = (
        np.asarray(rows['target_positions']),
        np.asarray(rows['target_segments']) != 0,
    )
    for layer, head in np.ndindex(2, 2):
        w = float64(seen.weights['decoder'][layer])[:, head][valid]
        distance = (pos[:, None] - pos[..., None])[valid]
        logs = np.log(np.where(w > 0, w, 1))
        expected = {
            'entropy': -(w * logs).sum(-1).mean(),
            'largest': w.max(-1).mean(),
            'distance': (w * np.abs(distance)).sum(-1).mean(),
            'diagonal': (w * (distance == 0)).sum(-1).mean(),
            'previous': (w * (distance == -1)).sum(-1).mean(),
        }
        for name, value in expected.items():
            figure = found['decoder'][name][layer, head]
            np.testing.assert_allclose(
                figure, value, rtol=1e-4, atol=1e-6, err_msg=name
            )


def test_gradient_norms_are_those_of_the_mean_loss():
    m = model()
    variables, rows = tiny.all_variables(m), batch()
    labels = rows['labels']

    def loss(params):
        logits = m.apply({'params': params}, *source_and_inputs(rows))
        log_p = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(log_p, labels[..., None], -1)[..., 0]
        each = 0.9 * own + 0.1 * log_p.mean(-1)
        return -jnp.where(labels != 0, each, 0).sum() / (labels != 0).sum()

    gradient = jax.jit(jax.grad(loss))(variables['params'])
    found = attention_stats(m, variables, rows)
    for stack in ('encoder', 'decoder'):
        for i in range(2):
            leaves = jax.tree.leaves(float64(gradient[stack][f'layer_{i}']))
            expected = np.sqrt(sum((x**2).sum() for x in leaves))
            np.testing.assert_allclose(
                found[stack]['gradient_norm'][i], expected, rtol=1e-4
            )


def test_what_holds_no_weights_says_so():
    m = model(attention='blockwise', cross__attention='softmax')
    with pytest.raises(
        ValueError, match='attention of encoder does not compute its weights'
    ):
        record(m, tiny.all_variables(m), batch())


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, rows, given=None):
    with flaxformer_lite.intervene(given or {}):
        return model.apply(variables, *source_and_inputs(rows))


def pairs():
    return tiny.batch([[pair] for pair in tiny.PAIRS])


@pytest.mark.parametrize('kind', ['self_attention', 'cross_attention'])
def test_a_head_that_is_off_is_one_whose_rows_of_the_last_matrix_are_zero(kind):
    m = model()
    variables = tiny.all_variables(m)
    flat = flatten_dict(variables, sep='/')
    merge = f'params/decoder/layer_1/{kind}/out_proj/kernel'
    flat[merge] = flat[merge].at[1].set(0)
    head_off = {f'decoder/layer_1/{kind}/z': interventions.scale(0.0, heads=[1])}
    found = logits(m, variables, pairs(), head_off)
    without = logits(m, unflatten_dict(flat, sep='/'), pairs())
    np.testing.assert_allclose(found, without, atol=1e-5)
    assert np.abs(found - logits(m, variables, pairs())).max() > 1e-2


def check_skips_a_layer(m, variables, skip):
    """Compares interventions with an encoder of one layer."""
    found = logits(m, variables, pairs(), skip)
    flat = flatten_dict(variables, sep='/')
    kept = {k: v for k, v in flat.items() if 'encoder/layer_1' not in k}
    shorter = m.clone(encoder=m.encoder.clone(num_layers=1))
    expected = logits(shorter, unflatten_dict(kept, sep='/'), pairs())
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - logits(m, variables, pairs())).max() > 1e-2


@pytest.mark.parametrize('block', ['sequential', 'parallel'])
def test_a_pre_norm_layer_whose_sublayers_are_off_is_skipped(block):
    m = model(residual='pre_norm', block=block)
    layer_off = {'encoder/layer_1/*_out': interventions.scale(0.0)}
    check_skips_a_layer(m, tiny.all_variables(m), layer_off)


def test_a_layer_whose_output_is_its_recorded_input_is_skipped():
    m = model()
    variables = tiny.all_variables(m)
    seen = record(m, variables, pairs())
    own_input = interventions.set_to(seen.values['encoder/layer_1/resid_pre'])
    skip = {'encoder/layer_1/resid_post': own_input}
    check_skips_a_layer(m, variables, skip)


def two_batches():
    sources, targets = zip(*tiny.PAIRS, strict=True)
    others = [[5, 12, 1], [8, 9, 4, 1], [6, 3, 1]]
    ours = flaxformer_lite.make_batch(sources, targets, length=6)
    return ours, flaxformer_lite.make_batch(others, others, length=6)


@pytest.mark.parametrize(
    'config',
    [{}, {'scan_layers': True, 'residual': 'sandwich'}, {'block': 'parallel'}],
    ids=lambda config: ','.join(config),
)
def test_the_recorded_stream_of_another_batch_gives_its_logits(config):
    m = model(**config)
    variables = tiny.all_variables(m)
    ours, other = two_batches()
    seen = record(m.with_remat('blocks'), variables, other)
    m, variables = with_separate_layers(m, variables)
    expected = logits(m, variables, other)
    patch = interventions.from_record(seen)
    found = logits(m, variables, ours, {'decoder/layer_1/resid_post': patch})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # So does the decoder's input, with the other source.
    same_source = other | {'inputs': ours['inputs']}
    found = logits(m, variables, same_source, {'decoder/layer_0/resid_pre': patch})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(logits(m, variables, ours) - expected).max() > 1e-2


def test_the_stream_is_the_sum_of_the_outputs_of_sublayers():
    m = model(residual='pre_norm')
    seen = float64(record(m, tiny.all_variables(m), batch()).values)
    for stack, streams in {
        'encoder': {'attn_out': 'resid_mid', 'mlp_out': 'resid_post'},
        'decoder': {
            'attn_out': 'resid_mid',
            'cross_attn_out': 'resid_mid_cross',
            'mlp_out': 'resid_post',
        },
    }.items():
        stream = seen[f'{stack}/layer_0/resid_pre']
        for output, name in streams.items():
            stream = stream + seen[f'{stack}/layer_0/{output}']
            np.testing.assert_allclose(
                seen[f'{stack}/layer_0/{name}'], stream, atol=1e-5
            )
        after = seen[f'{stack}/layer_1/resid_pre']
        np.testing.assert_allclose(after, stream, atol=1e-5)


def test_a_patched_head_changes_the_output_by_its_rows_of_the_last_matrix():
    m = model()
    variables = tiny.all_variables(m)
    ours, other = two_batches()
    own, seen = (record(m, variables, rows) for rows in (ours, other))
    layer = 'decoder/layer_1'
    head, output = f'{layer}/cross_attention/z', f'{layer}/cross_attn_out'
    change_BTU = float64(seen.values[head] - own.values[head])[:, :, 1]
    params = float64(variables['params'])
    rows_UD = params['decoder']['layer_1']['cross_attention']['out_proj']['kernel'][1]
    patched_BTD = float64(own.values[output]) + change_BTU @ rows_UD
    patch = interventions.from_record(seen, heads=[1])
    found = logits(m, variables, ours, {head: patch})
    given = {output: interventions.set_to(np.float32(patched_BTD))}
    np.testing.assert_allclose(found, logits(m, variables, ours, given), atol=1e-5)
    assert np.abs(found - logits(m, variables, ours)).max() > 1e-3
