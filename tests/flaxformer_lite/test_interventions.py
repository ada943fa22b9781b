"""Interventions: what they leave unchanged, and decoding against teacher forcing."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import flaxformer_lite
from flaxformer_lite import interventions
from flaxformer_lite.training.batch import source_and_inputs

SOURCES, TARGETS = zip(*tiny.PAIRS, strict=True)
STRATEGIES = ['greedy', 'beam(beams=3)', 'sample(top_p=0.9)', 'diverse_beam(beams=4)']
MODELS = {
    'paper': {},
    'scanned': {'scan_layers': True, 'share_layers': 1},
    'grouped': {
        'num_heads': 4,
        'num_kv_heads': 2,
        'positions': 't5',
        'feed_forward': 'geglu',
        'norm': 'rms',
        'residual': 'pre_norm',
    },
    'parallel': {'block': 'parallel', 'positions': 'rotary'},
    'decoder_only': {'architecture': 'decoder_only'},
    'merged': {'merged_attention': True, 'positions': 'rotary'},
    'recurrent': {'architecture': 'recurrent', 'num_layers': 1},
}


UNSCANNED = [name for name in MODELS if name != 'scanned']


@functools.cache
def model(name):
    return tiny.model(**MODELS[name])


def batch():
    return flaxformer_lite.make_batch(SOURCES, TARGETS, length=6)


def names_of(name):
    """Returns the names of a model's activations."""
    m = model(name)
    found = jax.eval_shape(
        functools.partial(flaxformer_lite.record, m, missing_ok=True),
        tiny.all_variables(m),
        batch(),
    )
    return list(found.values)


def generate(name, strategy, given, **options):
    m = model(name)
    return flaxformer_lite.generate(
        m,
        tiny.all_variables(m),
        batch()['source'],
        strategy,
        max_length=6,
        key=jax.random.key(1),
        interventions=given,
        **options,
    )


def same(value, where):
    return value


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, batch, given):
    """Teacher-forced logits with interventions; those of a plain call for None."""
    if given is None:
        return model.apply(variables, *source_and_inputs(batch))
    with flaxformer_lite.intervene(given):
        return model.apply(variables, *source_and_inputs(batch))


@pytest.mark.parametrize('name', UNSCANNED)
def test_identity_interventions_change_no_bit_of_a_forward_pass(name):
    m = model(name)
    variables = tiny.all_variables(m)
    given = interventions.as_pytree(dict.fromkeys(names_of(name), same))
    plain = logits(m, variables, batch(), None)
    np.testing.assert_array_equal(logits(m, variables, batch(), given), plain)


def searches(models, strategies):
    """Yields each model with each strategy, most of them as slow tests.

    A search applies interventions in one place, whatever the strategy. The default
    tests run each model with a beam, and each strategy with the first model.
    """
    for name, strategy in itertools.product(models, strategies):
        is_default = name == 'paper' or strategy.startswith('beam')
        marks = [] if is_default else [pytest.mark.slow]
        yield pytest.param(name, strategy, marks=marks)


@pytest.mark.parametrize(('name', 'strategy'), [*searches(MODELS, STRATEGIES)])
def test_identity_interventions_change_no_bit_of_decoding(name, strategy):
    plain = generate(name, strategy, None)
    found = generate(name, strategy, dict.fromkeys(names_of(name), same))
    jax.tree.map(np.testing.assert_array_equal, found, plain)


def log_p_of(name, tokens_BL, given):
    """Log-probability of decoded texts with teacher forcing."""
    m = model(name)
    texts = [[int(t) for t in row if t] for row in tokens_BL]
    rows = flaxformer_lite.make_batch(SOURCES, texts, model=m, length=6)
    logits_BTV = logits(m, tiny.all_variables(m), rows, given)
    log_p = jax.nn.log_softmax(logits_BTV)
    own = jnp.take_along_axis(log_p, rows['labels'][..., None], -1)[..., 0]
    return np.where(rows['labels'] != 0, own, 0).sum(-1)


def given_for(name):
    """Interventions of every kind that depend on heads, tokens, steps and rows."""
    rng = np.random.default_rng(0)
    if name == 'recurrent':
        return {'logits': interventions.add(rng.normal(size=tiny.VOCAB), steps=[1, 2])}
    m = model(name)
    seen = tiny.record(m, tiny.all_variables(m), batch())
    direction = rng.normal(size=12)
    layer = 'decoder/layer_*'
    return {
        f'{layer}/self_attention/z': interventions.scale(0.5, heads=[1]),
        f'{layer}/self_attention/v': interventions.add(1.0, heads=0, steps=[0, 2]),
        f'{layer}/resid_pre': interventions.add(direction, steps=[1]),
        f'{layer}/mlp_post': interventions.mean_ablate(
            seen.values['decoder/layer_0/mlp_post'], seen.valid['decoder']
        ),
        'decoder/layer_1/attn_out': interventions.from_record(seen, steps=[0, 1, 2]),
    }


@pytest.mark.parametrize(
    ('name', 'strategy'),
    [*searches(UNSCANNED, ['greedy', 'beam(beams=3, alpha=0)'])],
)
def test_decoding_with_an_intervention_is_teacher_forcing_with_it(name, strategy):
    given = interventions.as_pytree(given_for(name))
    found = generate(name, strategy, given)
    expected = log_p_of(name, found.tokens_BNL[:, 0], given)
    np.testing.assert_allclose(found.scores_BN[:, 0], expected, atol=1e-3)
    plain = log_p_of(name, found.tokens_BNL[:, 0], None)
    assert np.abs(plain - expected).max() > 1e-2


def test_each_row_keeps_its_own_values_when_finished_rows_leave_the_batch():
    m = tiny.model(num_layers=1)
    variables = tiny.all_variables(m)
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(4, tiny.VOCAB, 3).tolist(), 1] for _ in range(20)]
    names = 'decoder/layer_0/mlp_out', 'decoder/layer_0/resid_post'
    shift = rng.normal(size=(20, 9, 12))
    # Most rows end after a few tokens, and the others at the limit.
    ends = jnp.zeros((20, 9, tiny.VOCAB)).at[:, :, 1].set(-50).at[:16, 3:, 1].set(50)
    given = {names[0]: interventions.add(shift), 'logits': interventions.add(ends)}
    given[names[1]] = interventions.set_to(jnp.asarray(shift[:, :1]), steps=[0])
    found = flaxformer_lite.generate(
        m, variables, sources, 'greedy', max_length=9, interventions=given
    )
    texts = [[int(t) for t in row if t] for row in found.tokens_BNL[:, 0]]
    assert [len(text) for text in texts] == [4] * 16 + [9] * 4
    rows = flaxformer_lite.make_batch(sources, texts, model=m, length=9)
    log_p = jax.nn.log_softmax(logits(m, variables, rows, given))
    own = jnp.take_along_axis(log_p, rows['labels'][..., None], -1)[..., 0]
    expected = np.where(rows['labels'] != 0, own, 0).sum(-1)
    np.testing.assert_allclose(found.scores_BN[:, 0], expected, atol=1e-3)


@pytest.mark.parametrize('name', ['paper', 'grouped', 'decoder_only'])
def test_from_record_replaces_a_value_by_the_recorded_one(name):
    m = model(name)
    variables = tiny.all_variables(m)
    other = flaxformer_lite.make_batch(TARGETS, SOURCES, length=6)
    seen = tiny.record(m, variables, other)

    def replace(new, value, where):
        return new

    for activation in ('resid_mid', 'self_attention/pattern', 'self_attention/q'):
        path = f'decoder/layer_1/{activation}'
        given = {path: interventions.from_record(seen)}
        found = logits(m, variables, batch(), given)
        replaced = {path: jax.tree_util.Partial(replace, seen.values[path])}
        expected = logits(m, variables, batch(), replaced)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        plain = logits(m, variables, batch(), None)
        assert np.abs(plain - found).max() > 1e-4


def test_results_of_heads_sum_to_the_output_of_the_attention():
    m = model('grouped')
    values = tiny.record(m, tiny.all_variables(m), batch()).values
    for kind, name in [('self', 'attn_out'), ('cross', 'cross_attn_out')]:
        result = values[f'decoder/layer_1/{kind}_attention/result']
        out = values[f'decoder/layer_1/{name}']
        np.testing.assert_allclose(result.sum(2), out, atol=1e-4)


def test_a_jitted_pass_is_the_eager_one():
    m = model('paper')
    variables, given = tiny.all_variables(m), given_for('paper')
    with flaxformer_lite.intervene(given):
        eager: Any = m.apply(variables, *source_and_inputs(batch()))
    jitted = logits(m, variables, batch(), given)
    np.testing.assert_allclose(eager, jitted, atol=1e-4)


def test_other_values_of_the_same_shapes_trace_nothing_again():
    traces = []

    def shift(x, value, where):
        traces.append(where.layer)
        return value + x

    def run(x):
        given = {'decoder/layer_1/mlp_out': jax.tree_util.Partial(shift, x)}
        return generate('grouped', 'greedy', given)

    first = run(jnp.zeros(()))
    count = len(traces)
    other = run(jnp.float32(3))
    assert len(traces) == count and set(traces) == {1}
    assert np.abs(first.scores_BN - other.scores_BN).max() > 1e-3


def test_an_unknown_name_is_one_line_that_names_the_others():
    given = {'decoder/layer_9/mlp_out': same}
    with pytest.raises(
        ValueError, match='unknown activation .*layer_9/mlp_out.*layer_0'
    ):
        generate('paper', 'greedy', given)


def test_a_wrong_shape_is_one_line():
    given = {'decoder/layer_0/mlp_out': interventions.set_to(jnp.zeros(5))}
    with pytest.raises(ValueError, match=r'mlp_out: .* shape \(5,\)'):
        generate('paper', 'greedy', given)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'names': ['nope']}, "^names: unknown activation 'nope'"),
        ({'names': 'logits'}, '^names must be a list'),
        ({'interventions': [1]}, '^interventions must be a dict'),
        ({'interventions': {'logits': 0.0}}, "^interventions: 'logits' needs"),
        (
            {'interventions': {'logits': lambda value, where: None}},
            '^logits: the intervention must return an array .* not NoneType',
        ),
    ],
)
def test_invalid_names_and_interventions_are_rejected(arguments, message):
    m = model('paper')
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.record(m, tiny.all_variables(m), batch(), **arguments)


@pytest.mark.parametrize('heads', [[1.5], -1, 'first', [True]])
def test_heads_that_are_not_indices_are_rejected(heads):
    with pytest.raises(ValueError, match='^heads must be integers of at least 0'):
        interventions.set_to(0.0, heads=heads)


def test_heads_that_the_model_lacks_are_rejected():
    m = model('paper')
    given = {'decoder/layer_0/self_attention/z': interventions.set_to(0.0, heads=[99])}
    with pytest.raises(ValueError, match=r'^heads: .*self_attention/z has the heads 0'):
        flaxformer_lite.record(m, tiny.all_variables(m), batch(), interventions=given)


def test_a_record_with_interventions_has_the_values_that_the_model_uses():
    m = model('paper')
    given = {
        'decoder/layer_*/mlp_out': interventions.set_to(0.5),
        'decoder/layer_1/resid_pre': interventions.add(1.0),
    }
    record = jax.jit(flaxformer_lite.record, static_argnums=0)
    arguments = m, tiny.all_variables(m), batch()
    plain = tiny.record(*arguments).values
    found = record(*arguments, interventions=given).values
    np.testing.assert_array_equal(found['decoder/layer_0/mlp_out'], 0.5)
    post, pre = found['decoder/layer_0/resid_post'], found['decoder/layer_1/resid_pre']
    np.testing.assert_allclose(pre, post + 1, atol=1e-6)
    own = interventions.as_pytree(given)
    np.testing.assert_allclose(found['logits'], logits(*arguments, own), atol=1e-5)
    assert found.keys() == plain.keys()
    with pytest.raises(ValueError, match='unknown activation .*layer_7/z'):
        record(*arguments, interventions={'decoder/layer_7/z': interventions.add(1)})


PATTERNS = {
    'encoder/*/self_attention/pattern': interventions.add(0.2),
    'decoder/*/*_attention/pattern': interventions.set_to(0.3),
}


@pytest.mark.parametrize('name', ['paper', 'grouped', 'merged'])
def test_a_changed_pattern_keeps_its_mask(name):
    given = dict(PATTERNS)
    if name == 'merged':
        given = {
            x.replace('*_attention', 'self_attention'): f for x, f in given.items()
        }
    m = model(name)

    def logits_of(target, **options):
        rows = flaxformer_lite.make_batch([[5, 6, 1]], [target], model=m, **options)
        found = logits(m, tiny.all_variables(m), rows, interventions.as_pytree(given))
        return np.asarray(found)[:, :3]

    expected = logits_of([7, 8, 1])
    np.testing.assert_allclose(logits_of([7, 8, 1], length=6), expected, atol=1e-5)
    later = logits_of([7, 9, 1])
    np.testing.assert_allclose(later[:, :2], expected[:, :2], atol=1e-5)
    assert np.abs(later - expected)[:, 2].max() > 1e-3


def test_beams_do_not_read_each_other_through_a_changed_pattern():
    given = {'decoder/*/self_attention/pattern': interventions.add(0.2)}
    found = generate('paper', 'beam(beams=4, alpha=0)', given, n_best=4)
    given = interventions.as_pytree(given)
    for i in range(4):
        expected = log_p_of('paper', found.tokens_BNL[:, i], given)
        exists = np.asarray(found.exists_BN[:, i])
        np.testing.assert_allclose(
            found.scores_BN[exists, i], expected[exists], atol=1e-3
        )


def test_a_record_has_the_masked_pattern():
    m = model('paper')
    record = jax.jit(flaxformer_lite.record, static_argnums=0)
    arguments = m, tiny.all_variables(m), batch()
    name = 'decoder/layer_0/self_attention/pattern'
    pattern = record(*arguments, interventions={name: interventions.set_to(0.3)})
    pattern_BHTS = np.asarray(pattern.values[name])
    is_later_TS = np.triu(np.ones(pattern_BHTS.shape[-2:], bool), 1)
    assert (pattern_BHTS[:, :, is_later_TS] == 0).all()
    assert (pattern_BHTS[0, :, 0, 0] == np.float32(0.3)).all()
