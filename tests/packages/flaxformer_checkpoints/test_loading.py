"""Tests of loading checkpoints of Transformers, whole or damaged, and writing them.

The expected values are those of Transformers, from goldens/families/.
"""

import functools
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from jax.sharding import AxisType, PartitionSpec
from published import (
    GOLDENS,
    NAMES,
    change_config,
    change_weights,
    family_of,
    golden_of,
    is_unread,
    split_weights,
    texts_of,
    weights_of,
)

import flaxformer_checkpoints
import flaxformer_lite
from experiments.command_line import flags
from flaxformer_checkpoints import convert
from flaxformer_checkpoints.loading import adaptation, arrays, folder
from flaxformer_checkpoints.tokenizer import HuggingfaceTokenizer
from flaxformer_lite.config import builder
from flaxformer_lite.training.loss import loss_and_grads
from flaxformer_lite.training.train_step import TrainState, make_train_step

# First tokens that families force.
FIRST = {'bart': 0, 'mbart': 5, 'm2m100': 6}
LIMIT, BEAMS = 9, 3
# Factors of the tolerance. XLA computes tanh, which caps logits, to 3e-7 only, and a
# norm after each sublayer enlarges the error. Transformers always computes norms and
# softmax in float32.
ROUNDING = {'gemma3': 5, 't5gemma': 5, 't5gemma2': 5}
every_golden = pytest.mark.parametrize('name', NAMES)


def by_cost(fast):
    """Marks the others as slow, since each compiles for seconds."""
    slow = pytest.mark.slow
    names = [name if name in fast else pytest.param(name, marks=slow) for name in NAMES]
    return pytest.mark.parametrize('name', names)


@functools.cache
def load(name):
    return flaxformer_checkpoints.from_pretrained(GOLDENS / name)


@pytest.mark.ci
# The tests of activations cover T5 by default.
@by_cost([name for name in NAMES if name not in ('t5', 't5gemma')])
def test_logits_match_transformers(name):
    golden = golden_of(name)
    logits = tiny.apply(*load(name), golden['source'], golden['inputs'])
    real = golden['labels'] != load(name)[0].special_tokens.padding
    atol = 3e-5 * ROUNDING.get(name, 1)
    np.testing.assert_allclose(logits[real], golden['logits'][real], atol=atol)


@pytest.mark.ci
@every_golden
def test_export_gives_back_the_same_file(name):
    path = GOLDENS / name
    described = flaxformer_checkpoints.describe_pretrained(path)
    model_type = folder.read_config(path)['model_type']
    config, theirs = flaxformer_checkpoints.to_pretrained(
        described, load(name)[1], model_type
    )
    stored = weights_of(path)
    assert theirs.keys() == {x for x in stored if not is_unread(path, x)}
    for key, x in theirs.items():
        np.testing.assert_array_equal(np.asarray(x), stored[key], strict=True)
    assert family_of(path).read(config, theirs) == described


@by_cost([])
def test_loss_and_gradients_match_transformers(name):
    model, variables = load(name)
    golden = golden_of(name)
    rounding = ROUNDING.get(name, 1)
    batch = flaxformer_lite.make_batch(golden['source'], golden['labels'], model=model)
    loss = flaxformer_lite.losses.CrossEntropy(label_smoothing=0.0)
    compute = jax.jit(lambda variables: loss_and_grads(model, variables, batch, loss))
    output, _ = compute(variables)
    sums = output.sums
    mean = sums.loss / sums.tokens
    np.testing.assert_allclose(mean, golden['loss'], rtol=2e-6 * rounding)
    gradients = jax.tree.map(lambda x: x / sums.tokens, output.gradients)
    check_gradients(GOLDENS / name, model, gradients, golden, rounding)


def check_gradients(path, model, gradients, golden, rounding):
    family = family_of(path)
    config = flaxformer_checkpoints.describe_pretrained(path).config
    padding = model.special_tokens.padding
    unseen = {k.removeprefix('gradients/') for k in golden if k.startswith('gradients')}
    for array in arrays.table(family, config, model):
        if array.name == 'final_logits_bias':
            continue  # Transformers does not train it
        gradient = np.array(functools.reduce(lambda x, k: x[k], array.path, gradients))
        expected = array.to_ours(golden[f'gradients/{array.name}'])
        if array.path == ('embedding',) and 't5' not in family.__module__:
            # PyTorch gives padding no gradient of its embedding, and the start token is
            # padding in some families.
            gradient[padding] = expected[padding] = 0
        atol = rounding * (1e-7 + 1e-5 * abs(expected).max())
        np.testing.assert_allclose(gradient, expected, 0, atol, err_msg=array.name)
        unseen.remove(array.name)
    for name in unseen:
        assert is_unread(path, name)
        assert not golden[f'gradients/{name}'].any()


@pytest.mark.parametrize('name', ['m2m100', 't5'])
def test_padding_on_the_left_changes_nothing(name):
    model, variables = load(name)
    golden = golden_of(name)
    source, inputs = golden['source'], golden['inputs']
    lengths = (source != model.special_tokens.padding).sum(1)
    assert lengths.min() < lengths.max()
    moved = np.stack(
        [np.roll(row, len(row) - n) for row, n in zip(source, lengths, strict=True)]
    )
    logits, expected = (
        tiny.apply(model, variables, x, inputs) for x in (moved, source)
    )
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@by_cost([])
def test_beam_search_is_at_least_as_good_as_transformers(name):
    """Transformers lets a hypothesis end only if it is among the best of its step."""
    model, variables = load(name)
    source, golden, first = golden_of(name)['source'], texts_of(name), FIRST.get(name)
    result = flaxformer_lite.generate(
        model,
        variables,
        source,
        flaxformer_lite.decoding.BeamSearch(beams=BEAMS, alpha=0.0),
        max_length=LIMIT,
        forced_first=first,
    )
    end = model.special_tokens.eos
    rows = np.asarray(result.tokens[:, 0]).tolist()
    texts = [row[: row.index(end)] for row in rows]
    scores = np.asarray(result.scores[:, 0])
    targets = [[*text, end] for text in texts]
    batch = flaxformer_lite.make_batch(source, targets, model=model)
    log_p = np.array(tiny.log_probs(model, variables, batch).log_p)
    if first is not None:
        log_p[:, 0] = 0
    np.testing.assert_allclose(scores, log_p.sum(1), rtol=1e-5)
    for text, score, other, other_score in zip(
        texts, scores, golden['beam'], golden['beam_scores'], strict=True
    ):
        if text == other:
            np.testing.assert_allclose(score, other_score, rtol=1e-5)
        else:
            assert score > other_score


def texts_after_sources():
    """Returns Gemma's golden rows as whole texts, their ends and expected logits."""
    golden = golden_of('gemma3')
    sides = golden['source'], golden['inputs'], golden['labels']
    rows = [[*x[x != 0], *y[z != 0]] for x, y, z in zip(*sides, strict=True)]
    real = golden['labels'] != 0
    logits = [x[is_real] for x, is_real in zip(golden['logits'], real, strict=True)]
    return np.asarray(tiny.padded(rows)), [len(row) for row in rows], logits


@pytest.mark.slow
@pytest.mark.parametrize('cross_attention', adaptation.CROSS_ATTENTION)
def test_adapted_decoder_without_a_source_computes_as_its_base(cross_attention):
    described = flaxformer_checkpoints.describe_pretrained(GOLDENS / 'gemma3')
    config = adaptation.to_encoder_decoder(described.config, cross_attention)
    model = builder.build(config, *described[1:])
    variables = adaptation.adapt_variables(config, load('gemma3')[1])
    source = golden_of('gemma3')['source']
    inputs, ends, expected = texts_after_sources()
    logits = np.asarray(tiny.apply(model, variables, np.zeros_like(source), inputs))
    for row, end, theirs in zip(logits, ends, expected, strict=True):
        ours = row[end - len(theirs) : end]
        np.testing.assert_allclose(ours, theirs, atol=3e-5 * ROUNDING['gemma3'])
    difference = abs(tiny.apply(model, variables, source, inputs) - logits)
    assert (difference.max((1, 2)) > 0.1).all()


def test_arrays_are_sharded_over_the_mesh_and_cast():
    axis_types = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ('fsdp', 'tensor'), axis_types=axis_types)
    model, sharded = flaxformer_checkpoints.from_pretrained(
        GOLDENS / 'bart', dtype='bfloat16', mesh=mesh
    )
    assert model.dense.dtype == jnp.bfloat16
    up = sharded['params']['encoder']['layer_0']['feed_forward']['up']['kernel']
    assert up.sharding.spec == PartitionSpec(('fsdp',), ('tensor',))
    expected = jax.tree.map(lambda x: np.asarray(x, jnp.bfloat16), load('bart')[1])
    jax.tree.map(np.testing.assert_array_equal, sharded, expected)


@pytest.mark.slow
def test_variables_in_bfloat16_are_trained(tmp_path):
    path = shutil.copytree(GOLDENS / 't5', tmp_path / 't5')
    change_config(path, dropout_rate=0.0)
    golden = golden_of('t5')

    def step(dtype):
        model, variables = flaxformer_checkpoints.from_pretrained(path, dtype=dtype)
        batch = flaxformer_lite.make_batch(
            golden['source'], golden['labels'], model=model
        )
        batch = {name: jnp.repeat(x, 2, 0) for name, x in batch.items()}
        optimizer = optax.adam(1e-3)
        step = jax.jit(make_train_step(model, optimizer, accumulate=2))
        return step(TrainState.create(variables, optimizer), batch, jax.random.key(0))

    state, metrics = step('bfloat16')
    _, expected = step('float32')
    assert state.skipped == 0
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(state.params))
    np.testing.assert_allclose(metrics.gradient_norm, expected.gradient_norm, rtol=0.02)


@pytest.fixture(scope='module')
def marian_step():
    optimizer = optax.adamw(1e-2)
    return optimizer, jax.jit(make_train_step(load('marian')[0], optimizer))


@pytest.mark.slow
@pytest.mark.parametrize('is_zero', [True, False])
def test_training_keeps_a_zero_start_embedding_of_marian(is_zero, marian_step):
    model, variables = load('marian')
    optimizer, step = marian_step
    start = model.special_tokens.bos
    before_VD = np.array(variables['params']['embedding'])
    if is_zero:
        before_VD[start] = 0.0
    params = variables['params'] | {'embedding': jnp.asarray(before_VD)}
    golden = golden_of('marian')
    batch = flaxformer_lite.make_batch(golden['source'], golden['labels'], model=model)
    state = TrainState.create({'params': params}, optimizer)
    for _ in range(3):
        state, _ = step(state, batch, jax.random.key(0))
    is_changed_V = (np.asarray(state.params['embedding']) != before_VD).any(1)
    assert is_changed_V[start] == (not is_zero)
    assert np.delete(is_changed_V, start).all()


@pytest.mark.parametrize(('bos', 'expected'), [(3, 0.0), (2, 1.0)])
def test_tokenizer_of_a_run_keeps_a_zero_start_embedding(bos, expected):
    fields = {'sums': {}, 'vocab_size': 4, 'languages': ['', '']}
    fields['config_tokens'] = {'padding': 3, 'bos': bos, 'eos': 0}
    tokenizer = HuggingfaceTokenizer().opened(json.dumps(fields).encode())
    params = {'embedding': jnp.ones((4, 2)).at[bos].set(0.0)}
    gradients = {'embedding': jnp.ones((4, 2))}
    adjusted = tokenizer.config_tokens.adjust_gradients(gradients, params)
    factors = [expected if token == bos else 1 for token in range(4)]
    assert adjusted['embedding'].sum(1).tolist() == [2 * x for x in factors]


# ---- Files, complete and damaged -----------------------------------------------------

ARRAY = 'model.encoder.layers.1.fc1.bias'


@pytest.fixture
def marian(tmp_path):
    path = shutil.copytree(GOLDENS / 'marian', tmp_path / 'marian')
    tokenizer = GOLDENS.with_name('tokenizers') / 'marian'
    return shutil.copytree(tokenizer, path, dirs_exist_ok=True)


def test_weights_may_be_in_several_files_or_without_the_head(marian):
    def remove_head(stored):
        del stored['final_logits_bias']
        for name in list(stored):
            stored[name.removeprefix('model.')] = stored.pop(name)

    expected = load('marian')[1]
    change_weights(marian, remove_head)
    _, variables = flaxformer_checkpoints.from_pretrained(marian)
    params = variables['params']
    assert not params['output_bias'].any()
    params['output_bias'] = expected['params']['output_bias']
    jax.tree.map(np.testing.assert_array_equal, variables, expected)
    shutil.copy(GOLDENS / 'marian' / folder.WEIGHTS, marian)
    split_weights(marian)
    _, variables = flaxformer_checkpoints.from_pretrained(marian)
    jax.tree.map(np.testing.assert_array_equal, variables, expected)


def write(file, text):
    return lambda path: (path / file).write_text(text, encoding='utf-8')


def cut_weights(path):
    file = path / folder.WEIGHTS
    file.write_bytes(file.read_bytes()[:200])


def empty_index(path):
    split_weights(path)
    write(folder.INDEX, '{"weight_map": {}}')(path)


def change_array(change):
    def change_stored(stored):
        stored[ARRAY] = change(stored[ARRAY])

    return lambda path: change_weights(path, change_stored)


def differ_from_tied(stored):
    stored['lm_head.weight'] = stored['model.shared.weight'] + 1


# Damage → pattern of the error.
DAMAGES = {
    'no config': (lambda x: (x / 'config.json').unlink(), ['config.json']),
    'config not JSON': (write('config.json', '{'), ['config.json']),
    'nested config': (write('config.json', '[' * 10**5), ['config.json']),
    'no weights': (lambda x: (x / folder.WEIGHTS).unlink(), ['model.safetensors']),
    'pickled weights': (
        lambda x: (x / folder.WEIGHTS).rename(x / 'pytorch_model.bin'),
        ['pytorch_model.bin'],
    ),
    'cut header': (cut_weights, ['model.safetensors']),
    'pointer file': (
        write('model.safetensors', 'version https://git-lfs.github.com/spec/v1\n'),
        ['model.safetensors', 'Git LFS'],
    ),
    'empty index': (empty_index, ['index.json', 'weight_map']),
    'missing file': (
        lambda x: split_weights(x)[1].unlink(),
        ['model-00002-of-00002.safetensors'],
    ),
    'missing array': (lambda x: change_weights(x, lambda y: y.pop(ARRAY)), [ARRAY]),
    'arrays of another family': (
        lambda x: shutil.copy(GOLDENS / 't5' / folder.WEIGHTS, x),
        ['missing: '],
    ),
    'NaN': (change_array(lambda x: np.where(x == x[2], np.nan, x)), [ARRAY, 'NaN']),
    'integers': (change_array(lambda x: x.astype(np.int8)), [ARRAY, 'int8']),
    'unequal tied arrays': (
        lambda x: change_weights(x, differ_from_tied),
        ['lm_head.weight', 'model.shared.weight'],
    ),
    'unknown family': (
        lambda x: change_config(x, model_type='bert'),
        ["model_type='bert'", 'bart'],
    ),
}


@pytest.mark.parametrize('name', DAMAGES)
def test_damaged_checkpoints_are_rejected_by_library_and_command(
    name, marian, monkeypatch, capsys
):
    damage, names = DAMAGES[name]
    damage(marian)
    with pytest.raises(ValueError, match='.') as caught:
        flaxformer_checkpoints.from_pretrained(marian)
    message = str(caught.value)
    assert message.startswith(str(marian)) and '\n' not in message
    assert all(part in message for part in names), message

    before = set(marian.parent.rglob('*'))
    workdir = marian.parent / 'run'
    argv = ['convert', str(marian), f'--workdir={workdir}', '--data=grammar']
    monkeypatch.setattr(sys, 'argv', argv)
    with pytest.raises(SystemExit) as exit:
        flags.main(convert.main)
    assert exit.value.code == 2
    assert capsys.readouterr().err == f'error: {message}\n'
    assert set(marian.parent.rglob('*')) == before


def test_equal_tied_arrays_are_accepted(marian):
    def copy_embedding(stored):
        stored['lm_head.weight'] = stored['model.shared.weight'] + 0

    change_weights(marian, copy_embedding)
    flaxformer_checkpoints.from_pretrained(marian)


def test_untied_output_matrix_needs_the_field_of_t5(tmp_path):
    path = shutil.copytree(GOLDENS / 't5_untied', tmp_path / 't5')

    def remove_shared(stored):
        stored['decoder.embed_tokens.weight'] = stored.pop('shared.weight')

    change_weights(path, remove_shared)
    change_config(path, tie_word_embeddings=True, scale_decoder_outputs=...)
    with pytest.raises(ValueError, match='tie_word_embeddings'):
        flaxformer_checkpoints.from_pretrained(path)
    change_config(path, tie_word_embeddings=False)
    flaxformer_checkpoints.from_pretrained(path)
