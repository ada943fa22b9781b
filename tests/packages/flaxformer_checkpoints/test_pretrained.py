"""Tests of Transformers checkpoints."""

import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
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
from flaxformer_checkpoints.loading import adaptation, arrays, folder, load
from flaxformer_checkpoints.tokenizer import HuggingfaceTokenizer
from flaxformer_lite.config import build
from flaxformer_lite.training.loss import loss_and_grads
from flaxformer_lite.training.train_step import TrainState, make_train_step

# The first token that a family's targets are told to have.
FIRST = {'bart': 0, 'mbart': 5, 'm2m100': 6}
LIMIT, BEAMS = 9, 3
# How much more is lost to rounding: a cap is a tanh, which XLA has to 3e-7 only, and a
# norm behind each sublayer makes it more. Transformers computes norms and softmax in
# float32 whatever it is told.
ROUNDING = {'gemma3': 5, 't5gemma': 5, 't5gemma2': 5}
every_golden = pytest.mark.parametrize('name', NAMES)


def by_cost(fast):
    """Marks the others as slow, since each compiles for seconds."""
    slow = pytest.mark.slow
    names = [name if name in fast else pytest.param(name, marks=slow) for name in NAMES]
    return pytest.mark.parametrize('name', names)


def test_every_family_has_a_golden():
    files = {family_of(GOLDENS / name).__module__.rpartition('.')[2] for name in NAMES}
    assert files == set(load.FAMILIES.names())


@by_cost(['bart', 'marian'])
def test_logits_loss_and_gradients_are_those_of_transformers(name):
    check_forward(GOLDENS / name, golden_of(name), ROUNDING.get(name, 1))


def check_forward(path, golden, rounding):
    model, variables = flaxformer_checkpoints.from_pretrained(path)
    tokens = model.special_tokens
    batch = flaxformer_lite.make_batch(
        golden['source'], golden['labels'], tokens.bos, tokens.padding
    )

    @jax.jit
    def compute(variables):
        logits = model.apply(variables, golden['source'], golden['inputs'])
        return logits, loss_and_grads(
            model, variables, batch, 'cross_entropy(label_smoothing=0)'
        )[0]

    logits, output = compute(variables)
    real = golden['labels'] != tokens.padding
    atol = 3e-5 * rounding
    np.testing.assert_allclose(logits[real], golden['logits'][real], atol=atol)
    loss = output.sums.loss / output.sums.tokens
    np.testing.assert_allclose(loss, golden['loss'], rtol=2e-6 * rounding)
    gradients = jax.tree.map(lambda x: x / output.sums.tokens, output.gradients)
    check_gradients(path, model, gradients, golden, rounding)


def check_gradients(path, model, gradients, golden, rounding):
    family = family_of(path)
    config = flaxformer_checkpoints.describe_pretrained(path).config
    given = {k.removeprefix('gradients/') for k in golden if k.startswith('gradients/')}
    for array in arrays.table(family, config, model):
        if array.name == 'final_logits_bias':
            continue  # Transformers does not train it
        found = gradients
        for key in array.path:
            found = found[key]
        found = np.array(found)
        expected = array.to_ours(golden[f'gradients/{array.name}'])
        if array.path == ('embedding',) and 't5' not in family.__module__:
            # PyTorch gives the row of padding no gradient of what is looked up, and
            # the start token is padding in some families.
            found[model.special_tokens.padding] = 0
            expected[model.special_tokens.padding] = 0
        atol = rounding * tolerance(expected)
        np.testing.assert_allclose(found, expected, 0, atol, err_msg=array.name)
        given.remove(array.name)
    for unread in given:
        assert is_unread(path, unread)
        assert not golden[f'gradients/{unread}'].any()


def tolerance(gradient):
    return 1e-7 + 1e-5 * abs(gradient).max()


@pytest.mark.parametrize('name', ['m2m100', 't5'])
def test_padding_on_the_left_changes_nothing(name):
    model, variables = flaxformer_checkpoints.from_pretrained(GOLDENS / name)
    golden = golden_of(name)
    source, inputs = golden['source'], golden['inputs']
    padding = model.special_tokens.padding
    lengths = (source != padding).sum(1)
    assert lengths.min() < lengths.max()
    moved = np.stack(
        [np.roll(row, len(row) - n) for row, n in zip(source, lengths, strict=True)]
    )
    apply = jax.jit(model.apply)
    found, expected = (apply(variables, x, inputs) for x in (moved, source))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@every_golden
def test_greedy_tokens_are_those_of_transformers(name):
    loaded = flaxformer_checkpoints.from_pretrained(GOLDENS / name)
    source = golden_of(name)['source']
    texts, _ = decoded(*loaded, source, 'greedy', FIRST.get(name))
    assert texts == texts_of(name)['greedy']


@by_cost(['t5_untied'])
def test_beam_search_finds_what_transformers_finds_or_better(name):
    loaded = flaxformer_checkpoints.from_pretrained(GOLDENS / name)
    source = golden_of(name)['source']
    check_beam(*loaded, source, texts_of(name), FIRST.get(name))


def check_beam(model, variables, source, golden, first):
    """Transformers lets a hypothesis end only if it is among the best of its step."""
    texts, scores = decoded(model, variables, source, 'beam', first)
    expected = log_probabilities(model, variables, source, texts, first)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    for text, score, other, other_score in zip(
        texts, scores, golden['beam'], golden['beam_scores'], strict=True
    ):
        if text == other:
            np.testing.assert_allclose(score, other_score, rtol=1e-5)
        else:
            assert score > other_score


def decoded(model, variables, source, strategy, first):
    """Returns the tokens before the end token, and the log-probability including it."""
    result = flaxformer_lite.generate(
        model,
        variables,
        source,
        f'beam(beams={BEAMS}, alpha=0)' if strategy == 'beam' else strategy,
        max_length=LIMIT,
        forced_first=first,
    )
    rows = np.asarray(result.tokens_BNL[:, 0]).tolist()
    texts = [row[: row.index(model.special_tokens.eos)] for row in rows]
    return texts, np.asarray(result.scores_BN[:, 0])


def log_probabilities(model, variables, source, texts, first):
    end = model.special_tokens.eos
    labels = np.full((len(texts), LIMIT), model.special_tokens.padding, np.int32)
    for row, text in zip(labels, texts, strict=True):
        row[: len(text) + 1] = [*text, end]
    start = np.full((len(texts), 1), model.special_tokens.bos, np.int32)
    inputs = np.concatenate([start, labels[:, :-1]], 1)
    logits = jax.jit(model.apply)(variables, source, inputs)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    given = int(first is not None)
    return [
        sum(log_p[i, t, token] for t, token in enumerate([*text, end]) if t >= given)
        for i, text in enumerate(texts)
    ]


@by_cost(['bart', 'marian', 't5_untied'])
def test_back_and_forth_is_the_same_to_the_bit(name):
    path = GOLDENS / name
    described = flaxformer_checkpoints.describe_pretrained(path)
    _, variables = flaxformer_checkpoints.from_pretrained(path)
    model_type = folder.read_config(path)['model_type']
    config, theirs = flaxformer_checkpoints.to_pretrained(
        described, variables, model_type
    )
    stored = weights_of(path)
    assert theirs.keys() == {x for x in stored if not is_unread(path, x)}
    for key, x in theirs.items():
        np.testing.assert_array_equal(np.asarray(x), stored[key], strict=True)
    assert family_of(path).read(config, theirs) == described


@pytest.mark.parametrize('name', ['gemma3', 't5gemma', 't5gemma2'])
def test_every_pattern_of_layers_survives_a_round_trip(name):
    family = family_of(GOLDENS / name)
    config = folder.read_config(GOLDENS / name)
    for depth in range(1, 6):
        for kinds in itertools.product(
            ['full_attention', 'sliding_attention'], repeat=depth
        ):
            layers = dict(num_hidden_layers=depth, layer_types=list(kinds))
            described = family.read(with_layers(config, layers), [])
            written = family.write(described, [])
            assert family.read(written, []) == described
            assert text_of(written)['layer_types'] == list(kinds)


def text_of(config):
    config = config.get('encoder', config)
    return config.get('text_config', config)


def with_layers(config, layers):
    stacks = {'encoder', 'decoder', 'text_config'} & config.keys()
    if not stacks:
        return {**config, **layers}
    return {**config, **{x: with_layers(config[x], layers) for x in stacks}}


@pytest.mark.parametrize('name', ['270m', '4b'])
def test_published_configs_of_gemma_3_state_kinds_of_layers_in_older_ways(name):
    config = folder.read_config(GOLDENS / 'gemma3')
    del config['rope_parameters'], config['layer_types']
    config |= dict(rope_theta=1_000_000.0, rope_local_base_freq=20_000.0)
    config |= dict(num_hidden_layers=6, rope_scaling=None)
    period, scale = 6, ''
    if name == '4b':
        scaling = {'factor': 8.0, 'rope_type': 'linear'}
        config |= dict(rope_scaling=scaling, sliding_window_pattern=3)
        period, scale = 3, ', scale=8.0'
    found = family_of(GOLDENS / 'gemma3').read(config, []).config
    near, far = 'rotary(max_wavelength=20000.0)', 'rotary(max_wavelength=1000000.0'
    expected = f'[{", ".join([near] * (period - 1))}, {far}{scale})]'
    assert str(found.positions) == expected
    kinds = [entry.name for entry in found.attention.entries]
    assert sorted(kinds) == ['local'] * (period - 1) + ['softmax']


@pytest.mark.parametrize('name', ['gemma3', 't5gemma2'])
@pytest.mark.parametrize('section', ['rope_parameters', 'rope_scaling'])
def test_type_is_the_older_name_of_rope_type(name, section):
    config = folder.read_config(GOLDENS / name)
    scaling = {'type': 'linear', 'factor': 8.0}
    own = {'full_attention': scaling} if section == 'rope_parameters' else scaling
    fields = {'rope_parameters': None, section: own}
    config = with_layers(config, {'rope_theta': 30_000.0, **fields})
    found = family_of(GOLDENS / name).read(config, []).config
    for positions in (found.positions, found.value('positions', 'decoder')):
        assert 'rotary(max_wavelength=30000.0, scale=8.0)' in str(positions)


def read_whole(folder_name):
    """Returns golden values with each source as the beginning of its target."""
    golden = golden_of(folder_name)
    sides = golden['source'], golden['inputs'], golden['labels']
    rows = [[*x[x != 0], *y[z != 0]] for x, y, z in zip(*sides, strict=True)]
    inputs = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, text in zip(inputs, rows, strict=True):
        row[: len(text)] = text
    ends = [len(text) for text in rows]
    real = golden['labels'] != 0
    expected = [x[is_real] for x, is_real in zip(golden['logits'], real, strict=True)]
    return golden['source'], inputs, ends, expected


@pytest.mark.slow
@pytest.mark.parametrize('cross_attention', adaptation.CROSS_ATTENTION)
def test_without_a_source_an_adapted_decoder_computes_what_its_base_does(
    cross_attention,
):
    path = GOLDENS / 'gemma3'
    described = flaxformer_checkpoints.describe_pretrained(path)
    _, variables = flaxformer_checkpoints.from_pretrained(path)
    config = adaptation.to_encoder_decoder(described.config, cross_attention)
    model = build.model(config, *described[1:])
    variables = adaptation.adapt_variables(config, variables)
    source, inputs, ends, expected = read_whole('gemma3')
    apply = jax.jit(model.apply)
    logits = np.asarray(apply(variables, np.zeros_like(source), inputs))
    for row, end, theirs in zip(logits, ends, expected, strict=True):
        ours = row[end - len(theirs) : end]
        np.testing.assert_allclose(ours, theirs, atol=3e-5 * ROUNDING['gemma3'])
    moved = abs(apply(variables, source, inputs) - logits).max((1, 2))
    assert (moved > 0.1).all()


def same(tree, other):
    equal = jax.tree.map(lambda x, y: np.array_equal(np.asarray(x), y), tree, other)
    return all(jax.tree.leaves(equal))


def test_arrays_are_read_to_where_the_mesh_has_them_and_in_the_dtype():
    axis_types = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ('fsdp', 'tensor'), axis_types=axis_types)
    _, whole = flaxformer_checkpoints.from_pretrained(GOLDENS / 'bart')
    model, divided = flaxformer_checkpoints.from_pretrained(
        GOLDENS / 'bart', dtype='bfloat16', mesh=mesh
    )
    assert model.dense.dtype == jnp.bfloat16
    up = divided['params']['encoder']['layer_0']['feed_forward']['up']['kernel']
    assert up.sharding.spec == PartitionSpec(('fsdp',), ('tensor',))
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), whole)
    for x, expected in zip(*map(jax.tree.leaves, (divided, rounded)), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(expected))


NO_DROPOUT = ('dropout', 'dropout_rate', 'attention_dropout', 'activation_dropout')


@pytest.mark.slow
@pytest.mark.parametrize('name', ['bart', 't5'])
def test_variables_in_bfloat16_are_trained(name, tmp_path):
    path = shutil.copytree(GOLDENS / name, tmp_path / name)
    change_config(path, **dict.fromkeys(NO_DROPOUT, 0.0))
    golden = golden_of(name)

    def stepped(dtype):
        model, variables = flaxformer_checkpoints.from_pretrained(path, dtype=dtype)
        batch = flaxformer_lite.make_batch(
            golden['source'], golden['labels'], model=model
        )
        batch = {name: jnp.repeat(x, 2, 0) for name, x in batch.items()}
        optimizer = optax.adam(1e-3)
        step = jax.jit(make_train_step(model, optimizer, accumulate=2))
        return step(TrainState.create(variables, optimizer), batch, jax.random.key(0))

    state, metrics = stepped('bfloat16')
    _, expected = stepped('float32')
    assert state.skipped == 0
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(state.params))
    np.testing.assert_allclose(metrics.gradient_norm, expected.gradient_norm, rtol=0.02)


@pytest.fixture(scope='module')
def marian_step():
    model, variables = flaxformer_checkpoints.from_pretrained(GOLDENS / 'marian')
    optimizer = optax.adamw(1e-2)
    step = jax.jit(make_train_step(model, optimizer))
    return model, variables, optimizer, step


@pytest.mark.parametrize('is_zero', [True, False])
def test_training_keeps_the_start_embedding_of_marian_at_zero(is_zero, marian_step):
    model, variables, optimizer, step = marian_step
    start = model.special_tokens.bos
    table_VD = variables['params']['embedding']
    if is_zero:
        table_VD = table_VD.at[start].set(0.0)
    params = variables['params'] | {'embedding': table_VD}
    before_VD = np.asarray(table_VD)
    golden = golden_of('marian')
    batch = flaxformer_lite.make_batch(golden['source'], golden['labels'], model=model)
    state = TrainState.create({'params': params}, optimizer)
    for _ in range(3):
        state, _ = step(state, batch, jax.random.key(0))
    moved_V = (np.asarray(state.params['embedding']) != before_VD).any(1)
    assert moved_V[start] == (not is_zero)
    assert np.delete(moved_V, start).all()


@pytest.mark.parametrize(('bos', 'expected'), [(3, 0.0), (2, 1.0)])
def test_tokenizer_of_a_run_keeps_a_zero_start_embedding(bos, expected):
    stored = {'padding': 3, 'bos': bos, 'eos': 0}
    fields = {
        'sums': {},
        'vocab_size': 4,
        'config_tokens': stored,
        'languages': ['', ''],
    }
    tokenizer = HuggingfaceTokenizer().opened(json.dumps(fields).encode())
    params = {'embedding': jnp.ones((4, 2)).at[bos].set(0.0)}
    gradients = {'embedding': jnp.ones((4, 2))}
    found = tokenizer.config_tokens.adjust_gradients(gradients, params)
    assert found['embedding'].sum(1).tolist() == [
        2 * (expected if token == bos else 1) for token in range(4)
    ]


@pytest.fixture
def marian(tmp_path):
    path = tmp_path / 'marian'
    shutil.copytree(GOLDENS / 'marian', path)
    return path


def test_the_parts_of_a_large_checkpoint_are_one(marian):
    split_weights(marian)
    _, variables = flaxformer_checkpoints.from_pretrained(marian)
    _, expected = flaxformer_checkpoints.from_pretrained(GOLDENS / 'marian')
    assert same(variables, expected)


def test_a_file_of_the_model_without_its_head_is_read(marian):
    def behead(stored):
        del stored['final_logits_bias']
        for name in list(stored):
            stored[name.removeprefix('model.')] = stored.pop(name)

    _, whole = flaxformer_checkpoints.from_pretrained(marian)
    change_weights(marian, behead)
    _, found = flaxformer_checkpoints.from_pretrained(marian)
    assert not found['params']['output_bias'].any()
    found['params']['output_bias'] = whole['params']['output_bias']
    assert same(found, whole)
