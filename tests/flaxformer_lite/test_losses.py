"""Tests of losses against their float64 formulas, and of their contracts."""

import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
import tiny
from tiny import slow

from flaxformer_lite import testing
from flaxformer_lite.config.spec import Component
from flaxformer_lite.config.variants import LOSSES
from flaxformer_lite.decoding import Greedy
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.losses.base import Loss, Sum
from flaxformer_lite.losses.distillation import Distillation
from flaxformer_lite.losses.focal import Focal
from flaxformer_lite.models.base import Embeddings
from flaxformer_lite.ops import loss_of_logits, use_reference
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training.batch import source_and_inputs
from flaxformer_lite.training.loss import as_loss, loss_and_grads, loss_sums
from flaxformer_lite.training.train_step import TrainState, make_train_step

WIDTH = 6


class Words:
    """A stub of a model that compiles fast: one vector per token, noisy with a key."""

    scans_layers = False
    embeddings = Embeddings(logit_cap=3.0)
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
    table, bias = tiny.normal32(tiny.VOCAB, WIDTH, seed=seed), tiny.normal32(tiny.VOCAB)
    return {'params': {'table': table, 'bias': bias}}


def loss_of(text):
    return as_loss(text, teacher=Words(), teacher_variables=variables(1))


# Formulas of the logits of one label in each pass, and of the teacher's logits.


def log_p(logits):
    return logits - np.log(np.exp(logits).sum())


def cross_entropy(logits, label, smoothing):
    q = np.full(len(logits), smoothing / len(logits))
    q[label] += 1 - smoothing
    return -q @ log_p(logits)


def kl(one, other):
    return np.exp(log_p(one)) @ (log_p(one) - log_p(other))


def focal(logits, label, gamma):
    p = np.exp(log_p(logits))[label]
    return -((1 - p) ** gamma) * np.log(p)


def z_loss(logits, weight):
    return weight * np.log(np.exp(logits).sum()) ** 2


def r_drop(one, other, label, alpha, smoothing):
    costs = sum(cross_entropy(x, label, smoothing) for x in (one, other))
    return costs + alpha / 2 * (kl(one, other) + kl(other, one))


def distillation(logits, label, teacher, alpha):
    q = np.exp(log_p(teacher))
    return (1 - alpha) * cross_entropy(logits, label, 0.0) - alpha * q @ log_p(logits)


REFERENCE_FORMULAS = {
    'cross_entropy(label_smoothing=0.2)': lambda z, y, t: cross_entropy(z[0], y, 0.2),
    'z_loss(weight=0.3)': lambda z, y, t: z_loss(z[0], 0.3),
    'focal(gamma=1.5)': lambda z, y, t: focal(z[0], y, 1.5),
    'r_drop(weight=2.0, label_smoothing=0.2)': lambda z, y, t: r_drop(*z, y, 2.0, 0.2),
    'distillation(weight=0.3)': lambda z, y, t: distillation(z[0], y, t, 0.3),
    '[cross_entropy(label_smoothing=0.2), z_loss(weight=0.3)]': lambda z, y, t: (
        cross_entropy(z[0], y, 0.2) + z_loss(z[0], 0.3)
    ),
}


def test_every_loss_has_a_reference_formula():
    names = [Component.of(x).name for x in REFERENCE_FORMULAS if x[0] != '[']
    assert sorted(names) == LOSSES.names()


def reference_loss(text, logits_BTPV, labels_BT, teacher_BTV):
    return sum(
        REFERENCE_FORMULAS[text](logits_BTPV[b, t], labels_BT[b, t], teacher_BTV[b, t])
        for b, t in np.argwhere(labels_BT != 0)
    )


@pytest.mark.ci
@pytest.mark.parametrize('text', REFERENCE_FORMULAS)
def test_loss_and_gradient_equal_the_reference_formula(text):
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
    sums, found = jax.jit(formula.sums_and_gradient)(logits_NV, targets)
    expected = reference_loss(text, logits, labels, teacher)
    np.testing.assert_allclose(sums.loss, expected, rtol=1e-5)
    plain = jax.jit(formula.sums)(logits_NV, targets)
    np.testing.assert_allclose(plain.loss, expected, rtol=1e-5)
    gradient = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        for sign in (1, -1):
            moved = logits.copy()
            moved[place] += sign * 1e-5
            value = reference_loss(text, moved, labels, teacher)
            gradient[place] += sign * value / 2e-5
    np.testing.assert_allclose(found, gradient.reshape(-1, 5), atol=1e-4)


def test_smoothing_includes_the_label_and_no_entropy_is_subtracted():
    # p = (1/2, 1/4, 1/8, 1/8), label 1, ε = .4: q = (.1, .7, .1, .1), so
    # −Σ q log₂ p = 2.1. Spread over the other three words, it would be 2.0.
    formula = loss_of('cross_entropy(label_smoothing=0.4)').formula(padding=0)
    log2_p = -jnp.array([[1.0, 2.0, 3.0, 3.0]])
    sums = formula.sums(np.log(2.0) * log2_p, (jnp.array([1]),))
    np.testing.assert_allclose(sums.loss / np.log(2.0), 2.1, rtol=1e-6)


def rows(*numbers):
    """Returns a batch of four rows, with padding except in the given ones.

    The third row is packed, and the last column is padding.
    """
    pairs = [tiny.PAIRS[:1], tiny.PAIRS[1:2], tiny.PAIRS, []]
    batch = tiny.batch([pairs[i] if i in numbers else [] for i in range(4)])
    return {k: jnp.pad(x, [(0, 0), (0, 13 - x.shape[1])]) for k, x in batch.items()}


ROWS = 0, 1, 2


def learn(text, dtype=jnp.float32):
    """Returns a compiled function from a batch to its sums and gradients."""
    return compiled(text, dtype, loss_of_logits.CHUNK_ON_CPU)


@functools.cache
def compiled(text, dtype, chunk):
    @jax.jit
    def run(batch, key=None):
        output, _ = loss_and_grads(Words(dtype), variables(), batch, loss_of(text), key)
        return output.sums, output.gradients

    return run


def assert_close(found, expected, tolerance=1e-5):
    def compare(x, y):
        scale = max(1.0, float(jnp.abs(y).max()))
        np.testing.assert_allclose(x, y, atol=tolerance * scale)

    jax.tree.map(compare, found, expected)


def shifted(x_BT, segments_BT, steps):
    """Returns each token's successor after `steps` in its sentence, 0 after its end."""
    found = np.zeros_like(x_BT)
    for row, segments in enumerate(segments_BT):
        for segment in set(segments) - {0}:
            (places,) = np.nonzero(segments == segment)
            for place, successor in zip(places, places[steps:], strict=False):
                found[row, place] = x_BT[row, successor]
    return found


@pytest.mark.ci
@pytest.mark.parametrize(
    'text', ['cross_entropy(label_smoothing=0.2)', 'distillation(weight=0.3)']
)
def test_each_head_adds_the_loss_of_a_later_token(text):
    """Gloeckle et al. (2024), §2, in float64."""
    batch = jax.device_get(rows(*ROWS))
    params = jax.tree.map(np.float64, variables()['params'])
    teacher = np.float64(variables(1)['params']['table'])

    def hidden(table):
        return table[batch['inputs']] + table[batch['source'][:, :1]]

    losses = []
    for i in range(3):
        logits = hidden(params['table']) / (1 + i) @ params['table'].T + params['bias']
        cap = Words.embeddings.logit_cap
        capped = cap * np.tanh(logits / cap)
        labels, of_teacher = (
            shifted(x, batch['target_segments'], i)
            for x in (batch['labels'], hidden(teacher) @ teacher.T)
        )
        losses.append(reference_loss(text, capped[:, :, None], labels, of_teacher))
    sums = jax.jit(
        lambda batch: loss_sums(Words(heads=3), variables(), batch, loss_of(text))
    )(batch)
    np.testing.assert_allclose(sums.loss, sum(losses), rtol=1e-5)
    np.testing.assert_allclose(sums.others['later_tokens'], sum(losses[1:]), rtol=1e-5)
    plain, _ = learn(text)(batch)
    assert_close((sums.nll, sums.tokens), (plain.nll, plain.tokens))


def test_counts_have_no_gradient():
    def found(params):
        loss = loss_of('cross_entropy')
        output = loss_sums(Words(), {'params': params}, rows(*ROWS), loss=loss)
        return output.correct + output.tokens

    gradients = jax.jit(jax.grad(found))(variables()['params'])
    assert not any(np.any(x) for x in jax.tree.leaves(gradients))


SINGLE = [text for text in REFERENCE_FORMULAS if text[0] != '[']
SUM = '[r_drop, distillation, z_loss]'


def each_loss(fast):
    """Parametrizes a test with each loss and a sum; only some are fast tests."""
    texts = *SINGLE, SUM
    is_fast = [text for text in texts if text.startswith(fast)]
    return pytest.mark.parametrize('text', tiny.cases(texts, is_fast))


@pytest.mark.ci
@each_loss(fast=('cross', 'r_drop'))
def test_loss_keeps_its_contracts(text):
    testing.require(testing.loss_findings(loss_of(text), Words(), variables()), text)
    run = learn(text)
    whole = run(rows(*ROWS))
    sums, gradients = run(rows(*ROWS), jax.random.key(1))
    assert sums.loss > 0 and sums.tokens == 22
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))
    in_bfloat16 = learn(text, jnp.bfloat16)(rows(*ROWS))
    assert_close(in_bfloat16, whole, 0.1)
    # Any loss reports the perplexity and accuracy of the labels.
    plain, _ = learn('cross_entropy')(rows(*ROWS))
    for name in ('nll', 'correct', 'tokens'):
        assert_close(getattr(whole[0], name), getattr(plain, name))


@each_loss(fast='[')
def test_loss_in_chunks_equals_the_reference(text, monkeypatch):
    monkeypatch.setattr(loss_of_logits, 'CHUNK_ON_CPU', 8)
    key = jax.random.key(1)
    found = learn(text)(rows(*ROWS), key)
    with use_reference():
        expected = learn(text)(rows(*ROWS), key)
    assert_close(found, expected)


class Relative(Loss):
    """Σ_v p(v) / q(v), for a second target q without zeros."""

    targets = ('labels', 'q')

    def __call__(self, logits, batch):
        return (jax.nn.softmax(logits) / batch['q']).sum(-1)


@pytest.mark.ci
@pytest.mark.parametrize('text', ['relative', slow('distillation')])
def test_padding_id_fills_labels_and_no_other_targets(text, monkeypatch):
    monkeypatch.setattr(loss_of_logits, 'CHUNK_ON_CPU', 6)
    loss = Relative() if text == 'relative' else loss_of(text)
    rng, padding = np.random.default_rng(0), 100
    hidden_BTD, table_VD = tiny.normal32(2, 7, 5), tiny.normal32(101, 5, seed=1)
    labels_BT = jnp.asarray(rng.integers(0, padding, (2, 7))).at[1, 4:].set(padding)
    more_BTV = jax.nn.log_softmax(tiny.normal32(2, 7, 101, seed=2))
    if text == 'relative':
        more_BTV = jnp.exp(more_BTV)
    settings = loss_of_logits.LossOptions(loss.formula(padding), padding=padding)

    def run(version):
        def total(hidden_BTD, table_VD):
            output = table_VD, None
            sums = version(hidden_BTD, output, (labels_BT, more_BTV), settings)
            return sums.loss, sums

        return jax.jit(jax.grad(total, (0, 1), has_aux=True))(hidden_BTD, table_VD)

    assert_close(run(loss_of_logits.tuned), run(loss_of_logits.reference))


def results_of_step(text, accumulate=1, mesh=None):
    """Returns the sums and the gradient of a training step without noise."""
    model, optimizer = Words(noise=0.0), tiny.adam(1e-2)

    def step(state, batch, key, loss):
        step = make_train_step(model, optimizer, loss=loss, accumulate=accumulate)
        return step(state, batch, key)

    state = TrainState.create(variables(), optimizer)
    arguments = state, rows(*ROWS), jax.random.key(0), loss_of(text)
    run = jax.jit(step)
    if mesh is not None:
        everywhere = meshes.everywhere(mesh)
        places = everywhere, meshes.rows(mesh), everywhere, everywhere
        arguments = tuple(map(jax.device_put, arguments, places))
        run = meshes.compile_on(mesh, run, *arguments)
    state, metrics = run(*arguments)
    return jax.device_get((metrics.sums, tiny.first_gradient(state)))


@pytest.mark.ci
@each_loss(fast='r_drop')
def test_parts_of_a_batch_and_devices_sum_to_the_whole(text):
    whole = results_of_step(text)
    assert_close(results_of_step(text, accumulate=2), whole)
    assert jax.device_count() == 4
    assert_close(results_of_step(text, mesh=meshes.make_mesh()), whole)


@pytest.mark.ci
def test_passes_of_r_drop_differ_only_with_a_key():
    run = learn('r_drop')
    without, _ = run(rows(*ROWS))
    with_noise, _ = run(rows(*ROWS), jax.random.key(1))
    assert without.others['r_drop_kl'] == 0 < with_noise.others['r_drop_kl']


@pytest.mark.ci
def test_sum_reports_each_of_its_losses():
    text = '[focal(gamma=1.0), z_loss, r_drop(weight=1.0), focal(gamma=2.0), r_drop]'
    key = jax.random.key(1)
    sums, _ = learn(text)(rows(*ROWS), key)
    # Of one class, losses are reported with their places in the sum.
    names = 'focal_1 focal_4 r_drop_3 r_drop_5 r_drop_kl_3 r_drop_kl_5 z_loss'.split()
    assert sorted(sums.others) == names
    total = sum(x for name, x in sums.others.items() if 'kl' not in name)
    np.testing.assert_allclose(sums.loss, total, rtol=1e-5)
    for name, alone in (
        ('focal_1', 'focal(gamma=1.0)'),
        ('z_loss', 'z_loss'),
        ('r_drop_5', 'r_drop'),
    ):
        loss = learn(alone)(rows(*ROWS), key)[0].loss
        assert_close(sums.others[name], loss)


def test_later_tokens_are_reported_for_each_number_of_passes():
    model, loss = Words(heads=2), loss_of('[focal, r_drop]')
    sums = jax.eval_shape(lambda: loss_sums(model, variables(), rows(*ROWS), loss))
    names = ['later_tokens', 'later_tokens_2']
    assert [name for name in sorted(sums.others) if 'later' in name] == names


def test_loss_can_be_a_spec_a_class_or_an_object():
    assert as_loss('focal') == as_loss(Focal) == as_loss(Focal()) == Focal(gamma=2.0)
    assert hash(as_loss('focal')) == hash(Focal()) and as_loss('[focal]') == Focal()
    assert as_loss([Focal(), 'z_loss']) == as_loss('[focal, z_loss]')
    assert as_loss([Focal]) == Focal()


@pytest.mark.parametrize(
    ('loss', 'message'),
    [
        ('fokal', "did you mean 'focal'"),
        ('focal(gamma=-1)', 'gamma must be at least 0'),
        ('focal(beta=1)', "unknown argument 'beta'"),
        ('distillation', 'needs a teacher'),
        (0.1, 'loss: 0.1 is not a spec'),
        ([], 'loss: the list of losses is empty'),
        (Words, 'Words is not a subclass of Loss'),
        (
            Greedy(),
            'loss: fl.decoding.Greedy is not a subclass of Loss. Derive it from '
            'fl.losses.Loss.',
        ),
        (Distillation, 'Distillation needs a teacher'),
    ],
)
def test_invalid_loss_is_rejected(loss, message):
    with pytest.raises(ValueError, match=message):
        make_train_step(Words(), tiny.adam(1e-2), loss=loss)


class Mean(Loss):
    def __call__(self, logits, batch):
        return jnp.square(logits).mean()


@pytest.mark.parametrize('loss', [Mean(), Sum((Focal(), Mean()))])
def test_loss_without_a_value_for_each_label_is_rejected(loss):
    with pytest.raises(ValueError, match=r'Mean returned shape \(\), not \(\d+, \d+\)'):
        loss_sums(Words(), variables(), rows(0), loss)


def test_loss_of_logits_and_batch_is_that_of_each_label():
    batch = rows(0)
    model = Words()
    model.embeddings = Embeddings()
    logits = model.apply(variables(), *source_and_inputs(batch))
    logits += variables()['params']['bias'][None, None]
    loss = Sum((Focal(gamma=1.0), loss_of('distillation')))
    found = loss(logits, loss.losses[1].prepare(batch))
    counted = np.where(batch['labels'] != 0, found, 0)
    sums, _ = loss.sums(model, variables(), batch)
    np.testing.assert_allclose(sums.loss, counted.sum(), rtol=1e-5)
    with pytest.raises(ValueError, match='RDrop needs the logits of two passes'):
        loss_of('r_drop')(logits, batch)


OWN_LOSS = """
import jax.numpy as jnp
from flaxformer_lite.losses.base import Loss

class Large(Loss):
    weight: float = 1.0

    def __call__(self, logits, batch):
        return self.weight * jnp.square(logits).sum(-1)
"""


def test_loss_of_another_module_is_part_of_a_sum(tmp_path, monkeypatch):
    (tmp_path / 'own_losses.py').write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    batch = rows(0)
    sums, _ = learn('[z_loss, own_losses.Large(weight=0.5)]')(batch)
    params = tiny.float64(variables()['params'])
    table = params['table']
    h = table[batch['inputs']] + table[batch['source'][:, :1]]
    logits = h @ table.T + params['bias']
    capped = 3 * np.tanh(logits / 3)[np.asarray(batch['labels']) != 0]
    np.testing.assert_allclose(sums.others['large'], 0.5 * (capped**2).sum(), rtol=1e-5)
