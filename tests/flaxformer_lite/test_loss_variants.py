"""Tests of losses against their float64 formulas, and of their contract."""

import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
import tiny

import flaxformer_lite
from flaxformer_lite import testing
from flaxformer_lite.config.spec import Component
from flaxformer_lite.config.variants import LOSSES
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.losses.base import Loss
from flaxformer_lite.losses.focal import Focal
from flaxformer_lite.ops import loss_of_logits, use_reference
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training.loss import as_loss, loss_and_grads, loss_sums
from flaxformer_lite.training.train_step import TrainState, make_train_step

WIDTH = 6


class Words:
    """A stub of a model that compiles fast: one vector per token, noisy with a key."""

    scans_layers = False
    logit_cap = 3.0

    special_tokens = SpecialTokens()

    def __init__(self, dtype=jnp.float32, noise=1.0, heads=1):
        self.dense = Dense((), dtype=dtype)
        self.noise = noise
        self.heads = heads

    def with_remat(self, remat):
        return self

    def apply(self, variables, source, inputs, method='', rngs=None, mutable=()):
        table_VD = variables['params']['table']
        hidden_BTD = table_VD[inputs.tokens_BT] + table_VD[source.tokens_BT[:, :1]]
        if rngs:
            noise_BTD = jax.random.normal(rngs['dropout'], hidden_BTD.shape)
            hidden_BTD += self.noise * noise_BTD
        if method != 'factors_of_heads':
            return hidden_BTD @ table_VD.T
        hidden = tuple(hidden_BTD / (1 + i) for i in range(self.heads))
        return (hidden, table_VD, variables['params']['bias']), {}


def variables(seed=0):
    rng = np.random.default_rng(seed)
    table, bias = rng.normal(size=(tiny.VOCAB, WIDTH)), rng.normal(size=tiny.VOCAB)
    return {'params': {'table': jnp.float32(table), 'bias': jnp.float32(bias)}}


def loss_of(text):
    return as_loss(text, teacher=Words(), teacher_variables=variables(1))


# The laws, of the logits of one label by each pass, and of the teacher's there.


def log_p(logits):
    return logits - np.log(np.exp(logits).sum())


def cross_entropy(logits, label, smoothing):
    q = np.full(len(logits), smoothing / len(logits))
    q[label] += 1 - smoothing
    return -q @ log_p(logits)


def kl(one, other):
    return np.exp(log_p(one)) @ (log_p(one) - log_p(other))


def focal(logits, label, gamma):
    p = np.exp(logits[label]) / np.exp(logits).sum()
    return -((1 - p) ** gamma) * np.log(p)


def r_drop(one, other, label, alpha, smoothing):
    costs = cross_entropy(one, label, smoothing) + cross_entropy(
        other, label, smoothing
    )
    return costs + alpha / 2 * (kl(one, other) + kl(other, one))


def distillation(logits, label, teacher, alpha):
    q = np.exp(teacher) / np.exp(teacher).sum()
    return (1 - alpha) * cross_entropy(logits, label, 0.0) - alpha * q @ log_p(logits)


LAWS = {
    'cross_entropy(label_smoothing=0.2)': lambda z, y, t: cross_entropy(z[0], y, 0.2),
    'z_loss(weight=0.3)': lambda z, y, t: 0.3 * np.log(np.exp(z[0]).sum()) ** 2,
    'focal(gamma=1.5)': lambda z, y, t: focal(z[0], y, 1.5),
    'r_drop(weight=2.0, label_smoothing=0.2)': lambda z, y, t: r_drop(*z, y, 2.0, 0.2),
    'distillation(weight=0.3)': lambda z, y, t: distillation(z[0], y, t, 0.3),
    '[cross_entropy(label_smoothing=0.2), z_loss(weight=0.3)]': lambda z, y, t: (
        cross_entropy(z[0], y, 0.2) + 0.3 * np.log(np.exp(z[0]).sum()) ** 2
    ),
}
every_law = pytest.mark.parametrize('text', LAWS)


def test_each_file_has_a_law():
    assert sorted(Component.of(x).name for x in LAWS if x[0] != '[') == LOSSES.names()


def by_law(text, logits_BTPV, labels_BT, teacher_BTV):
    return sum(
        LAWS[text](logits_BTPV[b, t], labels_BT[b, t], teacher_BTV[b, t])
        for b, t in np.argwhere(labels_BT != 0)
    )


@every_law
def test_a_loss_and_its_gradient_are_those_of_the_law(text):
    """Compares gradients with differences (f(h) − f(−h)) / 2h in float64."""
    loss, rng = loss_of(text), np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, loss.passes, 5))
    teacher = rng.normal(size=(2, 3, 5))
    labels = np.array([[1, 4, 2], [3, 0, 0]])
    targets = jnp.asarray(labels), jax.nn.log_softmax(jnp.float32(teacher))
    if 'distillation' not in text:
        targets = targets[:1]
    formula = loss.formula(padding=0)
    logits_NV = jnp.float32(logits).reshape(-1, 5)
    sums = jax.jit(formula.sums)(logits_NV, targets)
    np.testing.assert_allclose(
        sums.loss, by_law(text, logits, labels, teacher), rtol=1e-5
    )
    gradient = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        for sign in (1, -1):
            moved = logits.copy()
            moved[place] += sign * 1e-5
            gradient[place] += sign * by_law(text, moved, labels, teacher) / 2e-5
    _, found = jax.jit(formula.sums_and_gradient)(logits_NV, targets)
    np.testing.assert_allclose(found, gradient.reshape(-1, 5), atol=1e-4)


def test_smoothing_spreads_over_the_whole_vocabulary_and_no_entropy_is_taken_off():
    # p = (1/2, 1/4, 1/8, 1/8), label 1, ε = .4: q = (.1, .7, .1, .1), so
    # −Σ q log₂ p = 2.1. Spread over the other three words it were 2.0; less the entropy
    # of q, less again.
    formula = loss_of('cross_entropy(label_smoothing=0.4)').formula(padding=0)
    log2_p = -jnp.array([[1.0, 2.0, 3.0, 3.0]])
    sums = formula.sums(np.log(2.0) * log2_p, (jnp.array([1]),))
    np.testing.assert_allclose(sums.loss / np.log(2.0), 2.1, rtol=1e-6)


def later(x_BT, segments_BT, steps):
    """Returns each token's successor after `steps` in its sentence, 0 after its end."""
    found = np.zeros_like(x_BT)
    for row, segments in enumerate(segments_BT):
        for segment in set(segments) - {0}:
            (places,) = np.nonzero(segments == segment)
            pairs = zip(places, places[steps:], strict=False)
            for place, successor in pairs:
                found[row, place] = x_BT[row, successor]
    return found


@pytest.mark.parametrize(
    'text', ['cross_entropy(label_smoothing=0.2)', 'distillation(weight=0.3)']
)
def test_each_head_adds_the_loss_of_a_later_token(text):
    """Gloeckle et al. (2024), §2, in float64."""
    batch = jax.device_get(rows(0, 1, 2))
    params = jax.tree.map(np.float64, variables()['params'])
    teacher = np.float64(variables(1)['params']['table'])

    def hidden(table):
        return table[batch['inputs']] + table[batch['source'][:, :1]]

    losses = []
    for i in range(3):
        logits = hidden(params['table']) / (1 + i) @ params['table'].T + params['bias']
        capped = Words.logit_cap * np.tanh(logits / Words.logit_cap)
        labels, of_teacher = (
            later(x, batch['target_segments'], i)
            for x in (batch['labels'], hidden(teacher) @ teacher.T)
        )
        losses.append(by_law(text, capped[:, :, None], labels, of_teacher))
    sums = jax.jit(
        lambda batch: loss_sums(Words(heads=3), variables(), batch, loss_of(text))
    )(batch)
    np.testing.assert_allclose(sums.loss, sum(losses), rtol=1e-5)
    np.testing.assert_allclose(sums.others['later_tokens'], sum(losses[1:]), rtol=1e-5)
    plain, _ = learn(text)(batch)
    close((sums.nll, sums.tokens), (plain.nll, plain.tokens))


@pytest.mark.parametrize('metric', ['correct', 'tokens'])
def test_counts_have_no_gradient(metric):
    def found(params):
        loss = loss_of('cross_entropy')
        output = loss_sums(Words(), {'params': params}, rows(0, 1, 2), loss=loss)
        return getattr(output, metric)

    gradients = jax.jit(jax.grad(found))(variables()['params'])
    assert not any(np.any(x) for x in jax.tree.leaves(gradients))


def mostly(slow):
    """Returns each file and one sum; some are slow tests."""
    return pytest.mark.parametrize(
        'text',
        [
            pytest.param(x, marks=[pytest.mark.slow] if x.startswith(slow) else [])
            for x in EVERY
        ],
    )


# Each file, and a sum.
EVERY = [text for text in LAWS if text[0] != '['] + ['[r_drop, distillation, z_loss]']


def rows(*numbers):
    """Returns a batch of four rows, with padding except in the given ones.

    The third row is packed, and the last column is padding.
    """
    pairs = [tiny.PAIRS[:1], tiny.PAIRS[1:2], tiny.PAIRS, []]
    chosen = [pairs[i] if i in numbers else [] for i in range(4)]
    batch = tiny.batch(chosen)
    return {k: jnp.pad(x, [(0, 0), (0, 13 - x.shape[1])]) for k, x in batch.items()}


def learn(text, dtype=jnp.float32):
    return compiled(text, dtype, loss_of_logits.CHUNK_ON_CPU)


@functools.cache
def compiled(text, dtype, chunk):
    @jax.jit
    def run(batch, key=None):
        output, _ = loss_and_grads(Words(dtype), variables(), batch, loss_of(text), key)
        return output.sums, output.gradients

    return run


def close(found, expected, tolerance=1e-5):
    def compare(x, y):
        scale = max(1.0, float(jnp.abs(y).max()))
        np.testing.assert_allclose(x, y, atol=tolerance * scale)

    jax.tree.map(compare, found, expected)


@mostly(slow='[')
def test_what_every_loss_has_to_hold(text):
    testing.require(testing.loss_findings(loss_of(text), Words(), variables()), text)
    run = learn(text)
    whole = run(rows(0, 1, 2))
    sums, gradients = run(rows(0, 1, 2), jax.random.key(1))
    assert sums.loss > 0 and sums.tokens == 22
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))
    in_bfloat16 = learn(text, jnp.bfloat16)(rows(0, 1, 2))
    close(in_bfloat16, whole, 0.1)
    # Perplexity and accuracy are the labels', whatever is trained by.
    plain, _ = learn('cross_entropy')(rows(0, 1, 2))
    for name in ('nll', 'correct', 'tokens'):
        close(getattr(whole[0], name), getattr(plain, name))


@pytest.mark.parametrize('text', EVERY)
def test_a_loss_in_chunks_is_the_plain_formula(text, monkeypatch):
    monkeypatch.setattr(loss_of_logits, 'CHUNK_ON_CPU', 8)
    key = jax.random.key(1)
    found = learn(text)(rows(0, 1, 2), key)
    with use_reference():
        expected = learn(text)(rows(0, 1, 2), key)
    close(found, expected)


class Relative(Loss):
    """Σ_v p(v) / q(v), for a second target q without zeros."""

    def token_losses(self, logits_BTV, labels_BT, *more):
        (q_BTV,) = more
        return (jax.nn.softmax(logits_BTV) / q_BTV).sum(-1)


@pytest.mark.parametrize('text', ['distillation', 'relative'])
def test_only_labels_are_filled_with_the_padding_id(text, monkeypatch):
    monkeypatch.setattr(loss_of_logits, 'CHUNK_ON_CPU', 6)
    loss = Relative() if text == 'relative' else loss_of(text)
    rng, padding = np.random.default_rng(0), 100
    hidden_BTD = jnp.float32(rng.normal(size=(2, 7, 5)))
    table_VD = jnp.float32(rng.normal(size=(101, 5)))
    labels_BT = jnp.asarray(rng.integers(0, padding, (2, 7))).at[1, 4:].set(padding)
    more_BTV = jax.nn.log_softmax(jnp.float32(rng.normal(size=(2, 7, 101))))
    if text == 'relative':
        more_BTV = jnp.exp(more_BTV)
    settings = loss_of_logits.LossOptions(loss.formula(padding), padding=padding)

    def run(version):
        def total(hidden_BTD, table_VD):
            output = table_VD, None
            sums = version(hidden_BTD, output, (labels_BT, more_BTV), settings)
            return sums.loss, sums

        return jax.jit(jax.grad(total, (0, 1), has_aux=True))(hidden_BTD, table_VD)

    close(run(loss_of_logits.tuned), run(loss_of_logits.reference))


def stepped(text, accumulate=1, mesh=None):
    """Returns the sums and the gradient of a training step without noise."""
    model, optimizer = Words(noise=0.0), tiny.adam(1e-2)

    def step(state, batch, key, loss):
        made = make_train_step(model, optimizer, loss=loss, accumulate=accumulate)
        return made(state, batch, key)

    state = TrainState.create(variables(), optimizer)
    arguments = state, rows(0, 1, 2), jax.random.key(0), loss_of(text)
    run = jax.jit(step)
    if mesh is not None:
        everywhere = meshes.everywhere(mesh)
        places = everywhere, meshes.rows(mesh), everywhere, everywhere
        arguments = tuple(map(jax.device_put, arguments, places))
        run = meshes.compile_on(mesh, run, *arguments)
    state, metrics = run(*arguments)
    return jax.device_get((metrics.sums, tiny.first_gradient(state)))


@mostly(slow=('focal', 'z_loss', '['))
def test_parts_of_a_batch_and_devices_sum_up_to_the_whole(text):
    whole = stepped(text)
    close(stepped(text, accumulate=2), whole)
    assert jax.device_count() == 4
    close(stepped(text, mesh=meshes.make_mesh()), whole)


@pytest.mark.slow
def test_losses_train_the_papers_model():
    model = tiny.model(num_layers=2, scan_layers=True)
    teacher = flaxformer_lite.ensemble([tiny.model(num_layers=1)] * 2)
    each = [tiny.all_variables(tiny.model(num_layers=1), seed) for seed in (1, 2)]
    taught = flaxformer_lite.ensemble_variables(each)
    given = dict(teacher=teacher, teacher_variables=taught)
    loss = as_loss('[r_drop, distillation, focal, z_loss]', **given)
    optimizer = tiny.adam(1e-2)
    state = flaxformer_lite.init_state(model, optimizer, jax.random.key(0))
    step = make_train_step(model, optimizer, loss=loss, accumulate=2, remat='blocks')
    step, losses = jax.jit(step), []
    for _ in range(8):
        state, metrics = step(state, rows(0, 1, 2), jax.random.key(1))
        losses.append(metrics.sums.loss)
    assert state.skipped == 0 and losses[-1] < 0.9 * losses[0]


def test_the_passes_of_r_drop_differ_exactly_when_a_key_is_given():
    run = learn('r_drop')
    without, _ = run(rows(0, 1, 2))
    with_noise, _ = run(rows(0, 1, 2), jax.random.key(1))
    assert without.others['r_drop_kl'] == 0 < with_noise.others['r_drop_kl']


def test_a_sum_reports_what_each_of_its_losses_adds():
    sums, _ = learn('[r_drop(label_smoothing=0.0), focal, z_loss]')(rows(0, 1, 2))
    alone = [learn(text)(rows(0, 1, 2))[0].loss for text in ('focal', 'z_loss')]
    close([sums.others[name] for name in ('focal', 'z_loss')], alone)
    parts = sum(sums.others[name] for name in ('r_drop', 'focal', 'z_loss'))
    np.testing.assert_allclose(sums.loss, parts, rtol=1e-6)
    np.testing.assert_allclose(sums.others['r_drop'], 2 * sums.nll, rtol=1e-5)


def test_losses_of_one_class_are_reported_by_their_places():
    text = '[focal(gamma=1.0), z_loss, r_drop(weight=1.0), focal(gamma=2.0), r_drop]'
    key = jax.random.key(1)
    sums, _ = learn(text)(rows(0, 1, 2), key)
    names = 'focal_1 focal_4 r_drop_3 r_drop_5 r_drop_kl_3 r_drop_kl_5 z_loss'.split()
    assert sorted(sums.others) == names
    parts = 'focal_1', 'z_loss', 'r_drop_3', 'focal_4', 'r_drop_5'
    total = sum(sums.others[name] for name in parts)
    np.testing.assert_allclose(sums.loss, total, rtol=1e-5)
    for name, alone in ('focal_1', 'focal(gamma=1.0)'), ('r_drop_5', 'r_drop'):
        close(sums.others[name], learn(alone)(rows(0, 1, 2), key)[0].loss)


def test_later_tokens_of_losses_with_separate_passes_are_reported_separately():
    model, loss = Words(heads=2), loss_of('[focal, r_drop]')
    batch = rows(0, 1, 2)
    sums = jax.eval_shape(lambda: loss_sums(model, variables(), batch, loss))
    names = ['later_tokens', 'later_tokens_2']
    assert [name for name in sorted(sums.others) if 'later' in name] == names


def test_the_mean_of_an_ensembles_probabilities_teaches():
    models = [tiny.model(num_layers=1)] * 2
    each = [tiny.all_variables(model, seed) for seed, model in enumerate(models)]
    source, inputs = tiny.padded([[4, 5, 1]]), tiny.padded([[2, 6, 7]])
    both = flaxformer_lite.ensemble_variables(each)
    found = tiny.apply(flaxformer_lite.ensemble(models), both, source, inputs)
    logits = [
        tiny.apply(m, v, source, inputs) for m, v in zip(models, each, strict=True)
    ]
    mean = np.mean([np.exp(tiny.float64(jax.nn.log_softmax(x))) for x in logits], 0)
    np.testing.assert_allclose(np.exp(found), mean, rtol=1e-5)


def test_a_loss_an_object_a_class_and_a_spec_are_one():
    assert as_loss('focal') == as_loss(Focal) == as_loss(Focal()) == Focal(gamma=2.0)
    assert hash(as_loss('focal')) == hash(Focal()) and as_loss('[focal]') == Focal()


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ('fokal', "'fokal' is not one of cross_entropy, .*; did you mean 'focal'"),
        ('focal(gamma=-1)', 'gamma must be at least 0, not -1'),
        ('focal(beta=1)', "unknown argument 'beta'; focal takes gamma"),
        ('distillation', 'distillation needs a teacher'),
        (0.1, '0.1 is not a spec: give a text, such as'),
        (
            Words,
            'Words is not a subclass of Loss. Derive it from '
            'flaxformer_lite.losses.base.Loss',
        ),
    ],
)
def test_what_is_no_loss_is_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        make_train_step(Words(), tiny.adam(1e-2), loss=given)


OWN = """
import jax.numpy as jnp
from flaxformer_lite.losses.base import Loss

class Large(Loss):
    weight: float = 1.0

    def token_losses(self, logits_BTV, labels_BT, *more):
        return self.weight * jnp.square(logits_BTV).sum(-1)
"""


def test_a_loss_from_elsewhere_is_named_with_its_module(tmp_path, monkeypatch):
    (tmp_path / 'own_losses.py').write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    sums, _ = learn('[z_loss, own_losses.Large(weight=0.5)]')(rows(0))
    hidden = variables()['params']
    tokens = rows(0)
    source, inputs = tokens['source'][:, :1], tokens['inputs']
    h = tiny.float64(hidden['table'][inputs] + hidden['table'][source])
    logits = h @ tiny.float64(hidden['table']).T + tiny.float64(hidden['bias'])
    capped = 3 * np.tanh(logits / 3)[np.asarray(tokens['labels']) != 0]
    np.testing.assert_allclose(sums.others['large'], 0.5 * (capped**2).sum(), rtol=1e-5)
