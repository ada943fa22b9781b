"""Tests of recorded values against formulas, and of masks against smaller models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict, unflatten_dict
from tiny import attention_stats, float64, record

import flaxformer_lite
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
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
def logits(model, variables):
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    return model.apply(variables, rows['source'], rows['inputs'])


def off(model, *path):
    on = flatten_dict(flaxformer_lite.ablation_masks(model))
    *path, index = path
    on[tuple(path)] = on[tuple(path)].at[index].set(0)
    return tiny.all_variables(model) | {'ablation_masks': unflatten_dict(on)}


@pytest.mark.parametrize('kind', ['self_attention', 'cross_attention'])
def test_a_head_that_is_off_is_one_whose_rows_of_the_last_matrix_are_zero(kind):
    m = model()
    flat = flatten_dict(tiny.all_variables(m), sep='/')
    merge = f'params/decoder/layer_1/{kind}/out_proj/kernel'
    flat[merge] = flat[merge].at[1].set(0)
    found = logits(m, off(m, 'decoder', 'layer_1', kind, 'heads', 1))
    np.testing.assert_allclose(
        found, logits(m, unflatten_dict(flat, sep='/')), atol=1e-5
    )
    assert np.abs(found - logits(m, tiny.all_variables(m))).max() > 1e-2


def test_a_layer_that_is_off_is_not_there():
    m = model(residual='pre_norm')
    flat = flatten_dict(tiny.all_variables(m), sep='/')
    found = logits(m, off(m, 'encoder', 'layer_drop_1', 'keep', ()))
    stayed = {k: v for k, v in flat.items() if 'encoder/layer_1' not in k}
    shorter = m.clone(encoder=m.encoder.clone(num_layers=1))
    np.testing.assert_allclose(
        found, logits(shorter, unflatten_dict(stayed, sep='/')), atol=1e-5
    )


def test_masks_change_nothing_while_all_are_on_and_never_compile_again():
    m = model()
    variables = tiny.all_variables(m)
    traces = []

    @jax.jit
    def run(variables, on):
        traces.append(1)
        return m.apply(variables | {'ablation_masks': on}, *tokens)

    rows = batch()
    tokens = rows['source'], rows['inputs']
    on = flaxformer_lite.ablation_masks(m)
    # The variables are arguments of both programs: XLA folds constants differently.
    np.testing.assert_array_equal(run(variables, on), tiny.apply(m, variables, *tokens))
    for i in range(2):
        head = 'encoder', f'layer_{i}', 'self_attention', 'heads', i
        layer = 'decoder', f'layer_drop_{i}', 'keep', ()
        run(variables, off(m, *head)['ablation_masks'])
        run(variables, off(m, *layer)['ablation_masks'])
    assert len(traces) == 1


patch = jax.jit(flaxformer_lite.patch, static_argnums=0)


def two_batches():
    sources, targets = zip(*tiny.PAIRS, strict=True)
    others = [[5, 12, 1], [8, 9, 4, 1], [6, 3, 1]]
    ours = flaxformer_lite.make_batch(sources, targets, length=6)
    return ours, flaxformer_lite.make_batch(others, others, length=6)


def logits_of(model, variables, batch):
    return tiny.apply(model, variables, *source_and_inputs(batch))


@pytest.mark.parametrize(
    'config',
    [{}, {'scan_layers': True, 'residual': 'sandwich'}, {'block': 'parallel'}],
    ids=lambda config: ','.join(config),
)
def test_all_that_the_last_layer_gives_makes_the_other_run(config):
    m = model(**config)
    variables = tiny.all_variables(m)
    ours, other = two_batches()
    seen = record(m.with_remat('blocks'), variables, other).values
    last = max(name for name in seen if name.startswith('decoder/layer_1/residual'))
    wanted = logits_of(m, variables, other)
    found = patch(m, variables, ours, {last: seen[last]})
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    # So does what the decoder is fed, with the other source.
    same_source = other | {'inputs': ours['inputs']}
    fed = 'decoder/layer_0/before'
    found = patch(m, variables, same_source, {fed: seen[fed]})
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    nothing = logits_of(m, variables, ours)
    np.testing.assert_allclose(patch(m, variables, ours, {}), nothing, atol=1e-5)
    assert np.abs(nothing - wanted).max() > 1e-2


def test_the_stream_is_the_sum_of_what_sublayers_give_it():
    m = model(residual='pre_norm')
    seen = float64(record(m, tiny.all_variables(m), batch()).values)
    for stack, parts in {
        'encoder': ('self_attention', 'feed_forward'),
        'decoder': ('self_attention', 'cross_attention', 'feed_forward'),
    }.items():
        stream = seen[f'{stack}/layer_0/before']
        for i, part in enumerate(parts, 1):
            stream = stream + seen[f'{stack}/layer_0/{part}']
            found = seen[f'{stack}/layer_0/residual_{i}']
            np.testing.assert_allclose(found, stream, atol=1e-5)
        np.testing.assert_allclose(seen[f'{stack}/layer_1/before'], stream, atol=1e-5)


def test_a_head_is_patched_as_its_rows_of_the_last_matrix_have_it():
    m = model()
    variables = tiny.all_variables(m)
    ours, other = two_batches()
    own, seen = (record(m, variables, rows).values for rows in (ours, other))
    part = 'decoder/layer_1/cross_attention'
    head = f'{part}/head_1'
    # Its result through its rows of W^O is its share of what the sublayer gives.
    change = np.float64(seen[head]) - np.float64(own[head])
    params = float64(variables['params'])
    rows_UD = params['decoder']['layer_1']['cross_attention']['out_proj']['kernel'][1]
    whole = np.float64(own[part]) + change @ rows_UD
    found = patch(m, variables, ours, {head: seen[head]})
    wanted = patch(m, variables, ours, {part: np.float32(whole)})
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    nothing = patch(m, variables, ours, {head: 0 * own[head]})
    flat = flatten_dict(variables, sep='/')
    merge = f'params/{part}/out_proj/kernel'
    flat[merge] = flat[merge].at[1].set(0)
    without = logits_of(m, unflatten_dict(flat, sep='/'), ours)
    np.testing.assert_allclose(nothing, without, atol=1e-5)
    assert np.abs(found - nothing).max() > 1e-2


@pytest.mark.parametrize(
    ('name', 'shape', 'message'),
    [
        ('decoder/layer_2/before', (), "unknown value 'decoder/layer_2/before'. The"),
        (
            'encoder/layer_0/before',
            (3, 5, 12),
            r'of shape \(3, 6, 12\), not \(3, 5, 12',
        ),
    ],
)
def test_a_value_that_is_not_there_is_told_of(name, shape, message):
    ours, _ = two_batches()
    with pytest.raises(ValueError, match=message):
        patch(model(), tiny.all_variables(model()), ours, {name: jnp.zeros(shape)})
