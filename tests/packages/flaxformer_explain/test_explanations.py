"""Explanations against their papers' formulas, in NumPy or by brute force."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from tiny import float64

import flaxformer_lite
from flaxformer_explain import explanations
from flaxformer_explain.explanations import label_log_p
from flaxformer_lite import interventions
from flaxformer_lite.training.batch import source_and_inputs

SOURCES, TARGETS = zip(*tiny.PAIRS, strict=True)
MODELS = {
    'paper': {},
    'scanned': {'scan_layers': True},
    'grouped': {
        'num_heads': 4,
        'num_kv_heads': 2,
        'positions': 't5',
        'norm': 'rms',
        'residual': 'pre_norm',
    },
    'parallel': {'block': 'parallel', 'residual': 'pre_norm', 'norm': 'identity'},
    'decoder_only': {'architecture': 'decoder_only', 'output_bias': True},
    'merged': {'merged_attention': True, 'positions': 'rotary'},
    'hyper': {'residual': 'hyper(streams=2)'},
}


def by_cost(fast, slow):
    """Marks the second cases as slow, since each compiles for seconds."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in slow]
    return pytest.mark.parametrize('name', [*fast, *slow])


@functools.cache
def model(name):
    return tiny.model(**MODELS[name])


def batch():
    return flaxformer_lite.make_batch(SOURCES, TARGETS, length=6)


def other_batch():
    return flaxformer_lite.make_batch(TARGETS, SOURCES, length=6)


def explain(function, m, *arguments, **options):
    static = [name for name in ('names', 'axes', 'steps') if name in options]
    jitted = jax.jit(function, static_argnums=0, static_argnames=static)
    return jitted(m, tiny.all_variables(m), *arguments, **options)


@functools.partial(jax.jit, static_argnums=0)
def intervened(m, variables, rows, given):
    with flaxformer_lite.intervene(given):
        return m.apply(variables, *source_and_inputs(rows))


def logits(m, rows, given=None):
    given = interventions.as_pytree(given or {})
    return intervened(m, tiny.all_variables(m), rows, given)


@pytest.mark.ci
@by_cost(['scanned', 'decoder_only'], sorted({*MODELS} - {'scanned', 'decoder_only'}))
def test_lens_ends_with_the_logits_of_the_model(name):
    m = model(name)
    lens_LBTV = explain(explanations.logit_lens, m, batch())
    expected = tiny.apply(m, tiny.all_variables(m), *source_and_inputs(batch()))
    assert lens_LBTV.shape == (3, *expected.shape)
    np.testing.assert_allclose(lens_LBTV[-1], expected, atol=1e-5)


@pytest.mark.ci
@by_cost(['grouped'], ['paper'])
def test_lens_entries_are_logits_of_the_model_without_later_layers(name):
    m = model(name)
    shorter = tiny.model(**MODELS[name], decoder__num_layers=1)
    expected = tiny.apply(shorter, tiny.all_variables(m), *source_and_inputs(batch()))
    lens_LBTV = explain(explanations.logit_lens, m, batch())
    np.testing.assert_allclose(lens_LBTV[1], expected, atol=1e-5)
    assert np.abs(lens_LBTV[1] - lens_LBTV[0]).max() > 0.1


@pytest.mark.ci
def test_identity_translators_give_the_logit_lens():
    m = model('hyper')
    identity = explanations.Translators.identity(m)
    tuned = explain(explanations.logit_lens, m, batch(), identity)
    plain = explain(explanations.logit_lens, m, batch())
    np.testing.assert_array_equal(tuned, plain)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.ci
def test_tuned_lens_steps_along_the_gradient_of_the_kl():
    m, rows = model('paper'), batch()
    translators = explanations.fit_tuned_lens(
        m, tiny.all_variables(m), [rows], optax.sgd(0.5)
    )
    seen = tiny.record(m, tiny.all_variables(m), rows)
    names = 'layer_0/resid_pre', 'layer_0/resid_post', 'layer_1/resid_post'
    streams = float64([seen.values[f'decoder/{name}'] for name in names])
    valid = np.asarray(rows['target_segments']) > 0
    # The model is post-norm, so its logits are linear in the stream.
    table_VD = float64(tiny.parameters(m)['embedding'])
    *early, last = [softmax(x_BTD @ table_VD.T)[valid] for x_BTD in streams]
    for i, p_NV in enumerate(early):
        x_ND = streams[i][valid]
        slope_ND = (p_NV - last) @ table_VD / len(x_ND)
        weights_DD, bias_D = -0.5 * x_ND.T @ slope_ND, -0.5 * slope_ND.sum(0)
        np.testing.assert_allclose(translators.weights_LDD[i], weights_DD, atol=1e-5)
        np.testing.assert_allclose(translators.bias_LD[i], bias_D, atol=1e-5)


def test_lens_kl_is_the_mean_over_target_tokens():
    rows = batch()
    lens_LBTV = np.random.default_rng(0).normal(size=(3, *rows['labels'].shape, 7))
    kl_L = explanations.lens_kl(jnp.float32(lens_LBTV), rows)
    valid = np.asarray(rows['labels']) != 0
    *early, last = [softmax(x)[valid] for x in lens_LBTV]
    expected = [(last * np.log(last / p)).sum(-1).mean() for p in early]
    np.testing.assert_allclose(kl_L, expected, rtol=1e-5)


def linear_norm(kind, p, x):
    """The linear map and the offset of a norm, for the statistics of x."""
    centers = kind == 'layer'
    x = x - x.mean(-1, keepdims=True) if centers else x
    square = (x**2).sum(-1) if kind == 'scale' else (x**2).mean(-1)
    scale = p['scale'] / np.sqrt(square + 1e-6)[..., None]

    def apply(part):
        return scale * (part - part.mean(-1, keepdims=True) if centers else part)

    return apply, p.get('bias', np.zeros(12))


@pytest.mark.ci
@pytest.mark.parametrize(
    ('residual', 'norm'),
    [
        ('pre_norm', 'rms'),
        pytest.param('post_norm', 'layer', marks=pytest.mark.slow),
        pytest.param('sandwich', 'layer', marks=pytest.mark.slow),
        pytest.param('pre_norm', 'scale', marks=pytest.mark.slow),
    ],
)
def test_logit_terms_are_outputs_through_norms_with_fixed_statistics(residual, norm):
    m = tiny.model(residual=residual, norm=norm, output_bias=True)
    rows, p = batch(), float64(tiny.parameters(m))
    terms_of_logit = explain(explanations.logit_attribution, m, rows)
    values = float64(tiny.record(m, tiny.all_variables(m), rows).values)
    names = ['embed', 'attn_out', 'cross_attn_out', 'mlp_out']
    parts = {('embed', 0): values['decoder/layer_0/resid_pre']}
    rest = np.zeros(12)

    def normalize(kind, p, x):
        nonlocal rest
        apply, offset = linear_norm(kind, p, x)
        rest = apply(rest * np.ones(12)) + offset
        for key, part in parts.items():
            parts[key] = apply(part)

    for layer in range(2):
        path, own = f'decoder/layer_{layer}', p['decoder'][f'layer_{layer}']
        for i, name in enumerate(names[1:], 1):
            y = values[f'{path}/{name}']
            stream = sum(parts.values()) + rest
            if residual == 'sandwich':
                apply, offset = linear_norm(norm, own[f'residual_{i}']['norm_after'], y)
                rest, y = rest + offset, apply(y)
            parts[name, layer] = y
            if residual == 'post_norm':
                normalize(norm, own[f'residual_{i}']['norm'], stream + y)
    if residual != 'post_norm':
        normalize(norm, p['decoder']['final']['norm'], sum(parts.values()) + rest)
    labels = np.asarray(rows['labels'])
    row_BTD = p['embedding'][labels]
    terms = {key: (part * row_BTD).sum(-1) for key, part in parts.items()}
    np.testing.assert_allclose(terms_of_logit.embed_BT, terms['embed', 0], atol=1e-4)
    for name in names[1:]:
        expected = np.stack([terms[name, layer] for layer in range(2)])
        np.testing.assert_allclose(terms_of_logit.sublayers[name], expected, atol=1e-4)
    rest_BT = (rest * row_BTD).sum(-1) + p['output_bias'][labels]
    np.testing.assert_allclose(terms_of_logit.rest_BT, rest_BT, atol=1e-4)
    logit_BT = sum(terms.values()) + rest_BT
    np.testing.assert_allclose(terms_of_logit.logit_BT, logit_BT, atol=1e-4)
    all_logits = tiny.apply(m, tiny.all_variables(m), *source_and_inputs(rows))
    own = np.take_along_axis(np.asarray(all_logits), labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(terms_of_logit.logit_BT, own, atol=1e-4)


@pytest.mark.ci
@by_cost(['grouped'], ['decoder_only', 'merged'])
def test_head_terms_sum_to_the_term_of_their_attention(name):
    m = model(name)
    terms_of_logit = explain(explanations.logit_attribution, m, batch())
    for heads, output in [('self', 'attn_out'), ('cross', 'cross_attn_out')]:
        if output in terms_of_logit.sublayers:
            total = terms_of_logit.heads[f'{heads}_attention'].sum(-1)
            np.testing.assert_allclose(
                total, terms_of_logit.sublayers[output], atol=1e-5
            )


@pytest.mark.ci
def test_head_term_is_the_effect_of_its_ablation_in_a_linear_model():
    m = model('parallel')
    terms_of_logit = explain(explanations.logit_attribution, m, batch())
    z = 'decoder/layer_1/cross_attention/z'
    without = logits(m, batch(), {z: interventions.set_to(0.0, heads=[1])})
    labels_BT1 = batch()['labels'][..., None]
    left_BT = jnp.take_along_axis(without, labels_BT1, -1)[..., 0]
    lost_BT = terms_of_logit.logit_BT - left_BT
    np.testing.assert_allclose(
        terms_of_logit.heads['cross_attention'][1, ..., 1], lost_BT, atol=1e-4
    )
    assert np.abs(lost_BT).max() > 0.01


@pytest.mark.ci
def test_terms_of_a_logit_difference_are_differences_of_terms():
    m, other_BT = model('paper'), jnp.full_like(batch()['labels'], 7)
    of_label, of_other, both = (
        explain(explanations.logit_attribution, m, batch(), *tokens)
        for tokens in [(), (other_BT,), (batch()['labels'], other_BT)]
    )
    expected = jax.tree.map(jnp.subtract, of_label, of_other)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-4), both, expected
    )


@pytest.mark.ci
def test_label_metric_is_their_log_probability():
    m = model('paper')
    scores = tiny.log_probs(m, tiny.all_variables(m), batch())
    log_p_B = label_log_p(batch())(logits(m, batch()))
    np.testing.assert_allclose(log_p_B, scores.log_p.sum(-1), rtol=1e-5)
    at_B = jnp.array([0, 1, 1])
    log_p_B = label_log_p(batch(), at_B)(logits(m, batch()))
    np.testing.assert_allclose(log_p_B, scores.log_p[jnp.arange(3), at_B], rtol=1e-5)


@pytest.mark.ci
@by_cost(['decoder_only'], ['paper'])
def test_gradient_times_input_is_the_slope_along_an_embedding(name):
    m, rows = model(name), batch()
    products = explain(explanations.gradient_times_input, m, rows, label_log_p(rows))
    both = np.concatenate(products, 1) if name == 'decoder_only' else products.source_BS
    stack = 'decoder' if name == 'decoder_only' else 'encoder'
    step = 0.02

    def metric(factor):
        given = {f'{stack}/embed': interventions.scale(factor, tokens=[1])}
        return label_log_p(rows)(logits(m, rows, given))

    slope_B = (metric(1 + step) - metric(1 - step)) / (2 * step)
    np.testing.assert_allclose(both[:, 1], slope_B, rtol=0.02, atol=2e-3)
    assert np.abs(slope_B).max() > 0.05


@pytest.mark.ci
@pytest.mark.parametrize(
    ('name', 'baseline'),
    [
        ('grouped', other_batch),
        pytest.param('paper', None, marks=pytest.mark.slow),
        pytest.param('decoder_only', None, marks=pytest.mark.slow),
    ],
)
def test_integrated_gradients_sum_to_the_change_of_the_metric(name, baseline):
    m, rows = model(name), batch()
    metric = label_log_p(rows)
    start = baseline and baseline()
    integrate = explanations.integrated_gradients
    attribution = explain(integrate, m, rows, metric, steps=200, baseline=start)
    given = {'*/embed': interventions.scale(0.0)}
    if start is not None:
        seen = tiny.record(m, tiny.all_variables(m), start)
        given = {'*/embed': interventions.from_record(seen)}
    change_B = metric(logits(m, rows)) - metric(logits(m, rows, given))
    total_B = attribution.source_BS.sum(-1) + attribution.target_BT.sum(-1)
    np.testing.assert_allclose(total_B, change_B, rtol=2e-3, atol=2e-3)
    assert np.abs(change_B).max() > 0.1
    assert attribution.source_BS.shape == rows['source'].shape
    assert attribution.target_BT.shape == rows['inputs'].shape


@pytest.mark.ci
@by_cost(['paper'], ['decoder_only', 'merged'])
def test_rollout_multiplies_mean_weights_mixed_with_the_identity(name):
    m, rows = model(name), batch()
    shares = explain(explanations.attention_rollout, m, rows)
    weights = tiny.record(m, tiny.all_variables(m), rows).weights
    means = {key: [float64(x).mean(1) for x in xs] for key, xs in weights.items()}
    if name == 'decoder_only':
        expected = rollout(means['decoder'])
        np.testing.assert_allclose(shares['decoder'], expected, atol=1e-5)
        return
    encoder = rollout(means['encoder'])
    np.testing.assert_allclose(shares['encoder'], encoder, atol=1e-5)
    # One graph of the source's final vectors, then the target's.
    source = encoder[-1]
    share = np.concatenate([np.zeros((3, 6, 6)), identity()], 2)
    for layer in range(2):
        own, cross = means['decoder'][layer], means['decoder cross'][layer]
        read = np.concatenate([cross @ source, np.zeros((3, 6, 6))], 2)
        if name == 'merged':
            share = share / 2 + (own @ share + read) / 2
        else:
            share = share / 2 + own @ share / 2
            share = share / 2 + read / 2
        np.testing.assert_allclose(
            shares['decoder cross'][layer], share[:, :, :6], atol=1e-5
        )
        np.testing.assert_allclose(shares['decoder'][layer], share[:, :, 6:], atol=1e-5)
    valid_BT = np.asarray(rows['target_segments']) > 0
    np.testing.assert_allclose(share.sum(-1)[valid_BT], 1, atol=1e-5)


def identity():
    return np.broadcast_to(np.eye(6), (3, 6, 6))


def rollout(means):
    share = np.eye(means[0].shape[-1])
    found = []
    for mean in means:
        share = (0.5 * mean + 0.5 * np.eye(mean.shape[-1])) @ share
        found.append(share)
    return np.stack(found)


@pytest.mark.ci
@pytest.mark.parametrize(
    'axes', ['H', *(pytest.param(x, marks=pytest.mark.slow) for x in ('', 'T', 'TH'))]
)
def test_activation_patching_matches_patching_one_by_one(axes):
    m = model('paper')
    variables, rows = tiny.all_variables(m), batch()
    names = ('decoder/layer_*/cross_attention/z', 'encoder/layer_0/self_attention/z')
    metric, options = label_log_p(rows), dict(names=names, axes=axes)
    patch = explanations.activation_patching
    effects = explain(patch, m, other_batch(), rows, metric, **options)
    assert sorted(effects) == [
        'decoder/layer_0/cross_attention/z',
        'decoder/layer_1/cross_attention/z',
        'encoder/layer_0/self_attention/z',
    ]
    new, old = (tiny.record(m, variables, x).values for x in (other_batch(), rows))
    before_B = metric(logits(m, rows))
    for name in ('encoder/layer_0/self_attention/z', names[0].replace('*', '1')):
        sizes = {'T': 6, 'H': 2}
        assert effects[name].shape == (3, *(sizes[x] for x in axes))
        index = dict(zip(axes, (1, 1), strict=False)) if axes else {}
        t = index.get('T', slice(None))
        h = index.get('H', slice(None))
        value = old[name].at[:, t, h].set(new[name][:, t, h])
        patched = logits(m, rows, {name: interventions.set_to(value)})
        after_B = metric(patched)
        own_B = effects[name][(slice(None), *index.values())]
        np.testing.assert_allclose(own_B, after_B - before_B, atol=1e-4)
        assert np.abs(own_B).max() > 1e-3


@pytest.mark.ci
def test_attribution_patching_is_exact_for_linear_metrics():
    m, rows = model('parallel'), batch()
    at_B, tokens_B = jnp.array([0, 1, 1]), jnp.array([4, 5, 6])
    metric = explanations.logit_difference(at_B, tokens_B, tokens_B + 2)
    names = tuple(
        f'decoder/layer_1/{x}_attention/{value}'
        for x in ('self', 'cross')
        for value in ('z', 'result')
    )
    options = dict(names=names, axes='TH')
    exact, estimate = (
        explain(f, m, other_batch(), rows, metric, **options)
        for f in (explanations.activation_patching, explanations.attribution_patching)
    )
    assert list(exact) == list(estimate)
    for name, expected in exact.items():
        np.testing.assert_allclose(estimate[name], expected, atol=1e-4)
        assert np.abs(expected).max() > 0.01


@pytest.mark.ci
def test_invalid_arguments_are_rejected():
    m, rows = model('paper'), batch()
    longer = flaxformer_lite.make_batch(SOURCES, TARGETS, length=7)
    metric = label_log_p(rows)
    names = ['decoder/layer_0/mlp_out']
    patch, variables = explanations.activation_patching, tiny.all_variables(m)
    with pytest.raises(ValueError, match='^clean: .*`length`'):
        patch(m, variables, longer, rows, metric, names, 'T')
    with pytest.raises(ValueError, match="^axes: 'H' .*mlp_out"):
        patch(m, variables, rows, rows, metric, names, 'H')
    recurrent = tiny.model(architecture='recurrent', num_layers=1)
    with pytest.raises(ValueError, match='^model: Recurrent'):
        explanations.logit_lens(recurrent, tiny.all_variables(recurrent), rows)


@pytest.mark.ci
def test_probe_minimizes_its_penalized_loss():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)) * [1, 2, 0.5, 1, 3]
    labels = (x @ rng.normal(size=(5, 3)) + rng.gumbel(size=(60, 3))).argmax(-1)
    fit = jax.jit(explanations.fit_probe, static_argnums=2)
    probe = float64(fit(jnp.asarray(x), labels, 3, 0.7))
    z = x @ probe.weights_DC + probe.bias_C
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    surprise = p - np.eye(3)[labels]
    slope = x.T @ surprise + 0.7 * probe.weights_DC
    np.testing.assert_allclose(slope, 0, atol=2e-3)
    np.testing.assert_allclose(surprise.sum(0), 0, atol=2e-3)
    assert (z.argmax(-1) == labels).mean() > 0.6
