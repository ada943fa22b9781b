"""Interventions: what they leave unchanged, and decoding against teacher forcing."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import slow

import flaxformer_lite
from flaxformer_lite import interventions
from flaxformer_lite.decoding import Greedy
from flaxformer_lite.generation import as_strategy
from flaxformer_lite.training.batch import source_and_inputs

STRATEGIES = ['greedy', 'beam(beams=3)', 'sample(top_p=0.9)', 'diverse_beam(beams=4)']
MODELS = {
    'paper': {'num_layers': 1, 'decoder.num_layers': 2},
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
def opened(name):
    model = tiny.model(**MODELS[name])
    return model, tiny.all_variables(model)


def batch():
    return flaxformer_lite.make_batch(tiny.SOURCES, tiny.TARGETS, length=6)


def names_of(name):
    """Returns the names of a model's activations."""
    model, variables = opened(name)
    record = functools.partial(flaxformer_lite.record, model, missing_ok=True)
    return list(jax.eval_shape(record, variables, batch()).values)


def generate(name, strategy, changes, **options):
    return flaxformer_lite.generate(
        *opened(name),
        batch()['source'],
        as_strategy(strategy),
        max_length=6,
        key=jax.random.key(1),
        interventions=changes,
        **options,
    )


def unchanged(value, where):
    return value


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, batch, changes):
    """Teacher-forced logits with interventions; those of a plain call for None."""
    if changes is None:
        return model.apply(variables, *source_and_inputs(batch))
    with flaxformer_lite.intervene(changes):
        return model.apply(variables, *source_and_inputs(batch))


@pytest.mark.parametrize(
    ('name', 'strategy'),
    [
        slow('decoder_only', 'greedy'),
        *(
            slow(name, strategy)
            for name in MODELS
            for strategy in STRATEGIES
            if (name, strategy) != ('decoder_only', 'greedy')
        ),
    ],
)
def test_identity_interventions_change_no_bit(name, strategy):
    changes = dict.fromkeys(names_of(name), unchanged)
    expected = generate(name, strategy, None)
    tiny.assert_equal(generate(name, strategy, changes), expected)
    if name != 'scanned':
        plain = logits(*opened(name), batch(), None)
        found = logits(*opened(name), batch(), interventions.as_pytree(changes))
        np.testing.assert_array_equal(found, plain)


def log_p_of(name, tokens_BL, changes):
    """Log-probability of decoded texts with teacher forcing."""
    model, variables = opened(name)
    texts = [[int(t) for t in row if t] for row in tokens_BL]
    rows = flaxformer_lite.make_batch(tiny.SOURCES, texts, model=model, length=6)
    return teacher_forced_scores(model, variables, rows, changes)


def teacher_forced_scores(model, variables, rows, changes):
    log_p = jax.nn.log_softmax(logits(model, variables, rows, changes))
    own = jnp.take_along_axis(log_p, rows['labels'][..., None], -1)[..., 0]
    return np.where(rows['labels'] != 0, own, 0).sum(-1)


def changes_for(name):
    """Interventions of every kind that depend on heads, tokens, steps and rows."""
    rng = np.random.default_rng(0)
    if name == 'recurrent':
        changes = interventions.add(rng.normal(size=tiny.VOCAB), steps=[1, 2])
        return {'logits': changes}
    record = tiny.record(*opened(name), batch())
    direction = rng.normal(size=12)
    layer = 'decoder/layer_*'
    return {
        f'{layer}/self_attention/z': interventions.scale(0.5, heads=[1]),
        f'{layer}/self_attention/v': interventions.add(1.0, heads=0, steps=[0, 2]),
        f'{layer}/resid_pre': interventions.add(direction, steps=[1]),
        f'{layer}/mlp_post': interventions.mean_ablate(
            record.values['decoder/layer_0/mlp_post'], record.valid['decoder']
        ),
        'decoder/layer_1/attn_out': interventions.from_record(record, steps=[0, 1, 2]),
    }


BEAM = 'beam(beams=3, alpha=0)'


@pytest.mark.ci
@pytest.mark.parametrize(
    ('name', 'strategy'),
    [
        ('paper', BEAM),
        *(slow(x, BEAM) for x in UNSCANNED if x != 'paper'),
        *(slow(x, 'greedy') for x in UNSCANNED),
    ],
)
def test_decoding_with_an_intervention_equals_teacher_forcing_with_it(name, strategy):
    changes = interventions.as_pytree(changes_for(name))
    found = generate(name, strategy, changes)
    expected = log_p_of(name, found.tokens[:, 0], changes)
    np.testing.assert_allclose(found.scores[:, 0], expected, atol=1e-3)
    plain = log_p_of(name, found.tokens[:, 0], None)
    assert np.abs(plain - expected).max() > 1e-2


@pytest.mark.ci
def test_rows_read_their_own_values_after_finished_rows_leave_the_batch():
    model = tiny.model(num_layers=1)
    variables = tiny.all_variables(model)
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(4, tiny.VOCAB, 3).tolist(), 1] for _ in range(20)]
    shift = rng.normal(size=(20, 9, 12))
    # Most rows end after a few tokens, and the others at the limit.
    ends = jnp.zeros((20, 9, tiny.VOCAB)).at[:, :, 1].set(-50).at[:16, 3:, 1].set(50)
    changes = {
        'decoder/layer_0/mlp_out': interventions.add(shift),
        'logits': interventions.add(ends),
        'decoder/layer_0/resid_post': interventions.set_to(
            jnp.asarray(shift[:, :1]), steps=[0]
        ),
    }
    found = flaxformer_lite.generate(
        model, variables, sources, Greedy(), max_length=9, interventions=changes
    )
    texts = [[int(t) for t in row if t] for row in found.tokens[:, 0]]
    assert [len(text) for text in texts] == [4] * 16 + [9] * 4
    rows = flaxformer_lite.make_batch(sources, texts, model=model, length=9)
    expected = teacher_forced_scores(model, variables, rows, changes)
    np.testing.assert_allclose(found.scores[:, 0], expected, atol=1e-3)


@pytest.mark.parametrize(
    'name', [slow(x) for x in ('decoder_only', 'paper', 'grouped')]
)
def test_from_record_replaces_a_value_by_the_recorded_one(name):
    model, variables = opened(name)
    other = flaxformer_lite.make_batch(tiny.TARGETS, tiny.SOURCES, length=6)
    record = tiny.record(model, variables, other)

    def replace(new, value, where):
        return new

    plain = logits(model, variables, batch(), None)
    for activation in ('resid_mid', 'self_attention/pattern', 'self_attention/q'):
        path = f'decoder/layer_1/{activation}'
        changes = {path: interventions.from_record(record)}
        found = logits(model, variables, batch(), changes)
        replaced = {path: jax.tree_util.Partial(replace, record.values[path])}
        expected = logits(model, variables, batch(), replaced)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(plain - found).max() > 1e-4


def test_results_of_heads_sum_to_the_output_of_the_attention():
    values = tiny.record(*opened('grouped'), batch()).values
    for kind, name in [('self', 'attn_out'), ('cross', 'cross_attn_out')]:
        result = values[f'decoder/layer_1/{kind}_attention/result']
        out = values[f'decoder/layer_1/{name}']
        np.testing.assert_allclose(result.sum(2), out, atol=1e-4)


@pytest.mark.slow
def test_interventions_in_a_compiled_pass_equal_those_in_an_eager_one():
    model, variables = opened('paper')
    changes = changes_for('paper')
    with flaxformer_lite.intervene(changes):
        eager: Any = model.apply(variables, *source_and_inputs(batch()))
    compiled = logits(model, variables, batch(), changes)
    np.testing.assert_allclose(eager, compiled, atol=1e-4)


@pytest.mark.ci
def test_values_of_equal_shapes_share_one_trace():
    traces = []

    def shift(x, value, where):
        traces.append(where.layer)
        return value + x

    def run(x):
        changes = {'decoder/layer_1/mlp_out': jax.tree_util.Partial(shift, x)}
        return generate('grouped', 'greedy', changes)

    first = run(jnp.zeros(()))
    count = len(traces)
    other = run(jnp.float32(3))
    assert len(traces) == count and set(traces) == {1}
    assert np.abs(first.scores - other.scores).max() > 1e-3


def test_unknown_names_and_wrong_shapes_are_rejected():
    with pytest.raises(ValueError, match='unknown activation .*layer_9/mlp_out'):
        generate('decoder_only', 'greedy', {'decoder/layer_9/mlp_out': unchanged})
    changes = {'decoder/layer_0/mlp_out': interventions.set_to(jnp.zeros(5))}
    with pytest.raises(ValueError, match=r'mlp_out: .* shape \(5,\)'):
        generate('decoder_only', 'greedy', changes)


@pytest.mark.ci
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
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.record(*opened('paper'), batch(), **arguments)


@pytest.mark.parametrize('heads', [[1.5], -1, 'first', [True]])
def test_heads_that_are_not_indices_are_rejected(heads):
    with pytest.raises(ValueError, match='^heads must be integers of at least 0'):
        interventions.set_to(0.0, heads=heads)


@pytest.mark.ci
def test_heads_are_chosen_under_jit_as_without_it():
    model, variables = opened('paper')
    name = 'decoder/layer_0/self_attention/z'

    def log_p(changes):
        with flaxformer_lite.intervene(changes):
            return flaxformer_lite.log_probs(model, variables, batch()).log_p

    def without_head():
        return {name: interventions.scale(0.0, heads=[1])}

    changes = without_head()
    expected = log_p(changes)
    assert not np.array_equal(expected, log_p({}))
    for found in (
        jax.jit(log_p)(changes),
        jax.jit(lambda: log_p(changes))(),
        jax.jit(lambda: log_p(without_head()))(),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_heads_that_the_model_lacks_are_rejected():
    model, variables = opened('paper')

    def changes():
        action = interventions.set_to(0.0, heads=[99])
        return {'decoder/layer_*/self_attention/z': action}

    def record():
        return flaxformer_lite.record(
            model, variables, batch(), interventions=changes()
        )

    sources = batch()['source']
    for call in (
        record,
        functools.partial(jax.eval_shape, record),
        lambda: flaxformer_lite.generate(
            model, variables, sources, interventions=changes()
        ),
    ):
        with pytest.raises(ValueError, match='^heads: .*self_attention/z has the head'):
            call()


@pytest.mark.ci
def test_record_with_interventions_contains_the_changed_values():
    pattern = 'decoder/layer_0/self_attention/pattern'
    changes = {
        'decoder/layer_*/mlp_out': interventions.set_to(0.5),
        'decoder/layer_1/resid_pre': interventions.add(1.0),
        pattern: interventions.set_to(0.3),
    }
    record = jax.jit(flaxformer_lite.record, static_argnums=0)
    arguments = *opened('decoder_only'), batch()
    found = record(*arguments, interventions=changes).values
    np.testing.assert_array_equal(found['decoder/layer_0/mlp_out'], 0.5)
    post, pre = found['decoder/layer_0/resid_post'], found['decoder/layer_1/resid_pre']
    np.testing.assert_allclose(pre, post + 1, atol=1e-6)
    # A changed pattern is masked.
    pattern_BHTS = np.asarray(found[pattern])
    is_later_TS = np.triu(np.ones(pattern_BHTS.shape[-2:], bool), 1)
    assert (pattern_BHTS[:, :, is_later_TS] == 0).all()
    assert (pattern_BHTS[0, :, 0, 0] == np.float32(0.3)).all()

    expected = logits(*arguments, interventions.as_pytree(changes))
    np.testing.assert_allclose(found['logits'], expected, atol=1e-5)
    assert found.keys() == set(names_of('decoder_only'))
    with flaxformer_lite.intervene(changes):
        record_in_context = jax.jit(
            functools.partial(flaxformer_lite.record, arguments[0])
        )
        in_context = record_in_context(*arguments[1:])
    tiny.assert_close(in_context.values, found, 1e-5)
    with pytest.raises(ValueError, match='unknown activation .*layer_7/z'):
        record(*arguments, interventions={'decoder/layer_7/z': interventions.add(1)})


@pytest.mark.ci
@pytest.mark.parametrize(
    'name', ['decoder_only', *map(slow, ('paper', 'grouped', 'merged'))]
)
def test_changed_pattern_is_masked(name):
    cross = '*_attention' if name in ('paper', 'grouped') else 'self_attention'
    changes = {f'decoder/*/{cross}/pattern': interventions.set_to(0.3)}
    if name != 'decoder_only':
        changes['encoder/*/self_attention/pattern'] = interventions.add(0.2)
    changes = interventions.as_pytree(changes)
    model, variables = opened(name)

    def logits_of(target):
        rows = flaxformer_lite.make_batch([[5, 6, 1]], [target], model=model, length=6)
        return np.asarray(logits(model, variables, rows, changes))[:, :3]

    expected, later = logits_of([7, 8, 1]), logits_of([7, 9, 1])
    np.testing.assert_allclose(later[:, :2], expected[:, :2], atol=1e-5)
    assert np.abs(later - expected)[:, 2].max() > 1e-3
    rows = flaxformer_lite.make_batch([[5, 6, 1]], [[7, 8, 1]], model=model)
    unpadded = logits(model, variables, rows, changes)
    np.testing.assert_allclose(unpadded, expected, atol=1e-5)


@pytest.mark.ci
def test_beams_do_not_attend_to_each_other_through_a_changed_pattern():
    changes = {'decoder/*/self_attention/pattern': interventions.add(0.2)}
    found = generate('decoder_only', 'beam(beams=4, alpha=0)', changes, n_best=4)
    changes = interventions.as_pytree(changes)
    for i in range(4):
        expected = log_p_of('decoder_only', found.tokens[:, i], changes)
        exists = np.asarray(found.exists[:, i])
        scores = found.scores[exists, i]
        np.testing.assert_allclose(scores, expected[exists], atol=1e-3)
