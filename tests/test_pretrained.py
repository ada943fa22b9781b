"""Checkpoints as Transformers saves them: the same numbers here; what is refused.

The checkpoints in goldens/families/ are small and random, and what Transformers
computes of them stands beside them: goldens/make_families.py.
"""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import AxisType, PartitionSpec

import flaxformer_lite
from flaxformer_lite.config import spec
from flaxformer_lite.pretrained import arrays, folder, load
from flaxformer_lite.training.loss import loss_and_grads

GOLDENS = Path(__file__).parent / 'goldens' / 'families'
# The first token that a family's targets are told to have.
FORCED = {'bart': 0, 'mbart': 5, 'm2m100': 6}
LIMIT, BEAMS = 9, 3
# How much more is lost to rounding: a cap is a tanh, which XLA has to 3e-7 only, and a
# norm behind each sublayer makes it more.
ROUNDING = {'t5gemma': 5, 't5gemma2': 5}
NAMES = sorted(path.name for path in GOLDENS.iterdir())
every_golden = pytest.mark.parametrize('name', NAMES)


def by_cost(fast):
    """The others take seconds each, most of which is compiling."""
    slow = pytest.mark.slow
    names = [name if name in fast else pytest.param(name, marks=slow) for name in NAMES]
    return pytest.mark.parametrize('name', names)


def golden_of(name):
    with np.load(GOLDENS / name / 'golden.npz') as file:
        return dict(file)


def batch_of(model, golden):
    tokens = model.special_tokens
    return flaxformer_lite.make_batch(
        golden['source'], golden['labels'], tokens.start, tokens.padding
    )


def table_of(path, model):
    config = folder.read_config(path)
    family = load.family_of(config['model_type'])
    described = load.describe_pretrained(path)
    return arrays.table(family, described.config, model)


def is_unread(name, array):
    """Whether an array may be in a family's files and nothing here reads it."""
    family = load.family_of(folder.read_config(GOLDENS / name)['model_type'])
    return any(re.fullmatch(pattern, array) for pattern in family.computed)


def test_every_family_has_a_golden():
    types = {folder.read_config(GOLDENS / name)['model_type'] for name in NAMES}
    families = {load.family_of(kind).__module__.rpartition('.')[2] for kind in types}
    assert families == set(spec.available('flaxformer_lite.families'))


@by_cost(['bart'])
def test_logits_loss_and_gradients_are_those_of_transformers(name):
    golden = golden_of(name)
    model, variables = flaxformer_lite.from_pretrained(GOLDENS / name)
    batch = batch_of(model, golden)
    real = golden['labels'] != model.special_tokens.padding

    @jax.jit
    def compute(variables):
        logits = model.apply(variables, golden['source'], golden['inputs'])
        return logits, loss_and_grads(model, variables, batch)[0]

    logits, output = compute(variables)
    more = ROUNDING.get(name, 1)
    atol = 3e-5 * more
    np.testing.assert_allclose(logits[real], golden['logits'][real], atol=atol)
    loss = output.sums.loss / output.sums.tokens
    np.testing.assert_allclose(loss, golden['loss'], rtol=2e-6 * more)
    given = {k.removeprefix('gradients/') for k in golden if k.startswith('gradients/')}
    for array in table_of(GOLDENS / name, model):
        found = output.gradients
        for key in array.path:
            found = found[key]
        if array.name == 'final_logits_bias':
            continue  # Transformers does not train it
        expected = array.to_ours(golden[f'gradients/{array.name}'])
        found = np.array(found / output.sums.tokens)
        if array.path == ('embedding',) and 't5' not in name:
            # PyTorch gives the row of padding no gradient of what is looked up, and
            # the start token is padding in some families.
            found[model.special_tokens.padding] = 0
            expected[model.special_tokens.padding] = 0
        atol = 1e-7 + 1e-5 * more * abs(expected).max()
        np.testing.assert_allclose(found, expected, 0, atol, err_msg=array.name)
        given.remove(array.name)
    for unread in given:
        assert is_unread(name, unread)
        assert not golden[f'gradients/{unread}'].any()


def decoded(name, strategy, model, variables):
    """The tokens before the end token, and the log-probability with it."""
    result = flaxformer_lite.generate(
        model,
        variables,
        golden_of(name)['source'],
        strategy,
        max_length=LIMIT,
        forced_first=FORCED.get(name),
        beams=BEAMS,
        alpha=0.0,
    )
    rows = np.asarray(result.tokens_BNL[:, 0]).tolist()
    texts = [row[: row.index(model.special_tokens.end)] for row in rows]
    return texts, np.asarray(result.scores_BN[:, 0])


def golden_texts(name):
    return json.loads((GOLDENS / name / 'decoded.json').read_text('utf-8'))


@pytest.mark.slow
@every_golden
def test_greedy_tokens_are_those_of_transformers(name):
    loaded = flaxformer_lite.from_pretrained(GOLDENS / name)
    texts, _ = decoded(name, 'greedy', *loaded)
    assert texts == golden_texts(name)['greedy']


@by_cost(['t5_untied'])
def test_beam_search_finds_what_transformers_finds_or_better(name):
    """Transformers lets a hypothesis end only if it is among the best of its step."""
    model, variables = flaxformer_lite.from_pretrained(GOLDENS / name)
    texts, scores = decoded(name, 'beam', model, variables)
    given = int(name in FORCED)
    expected = log_probabilities(model, variables, golden_of(name), texts, given)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    golden = golden_texts(name)
    for text, score, other, other_score in zip(
        texts, scores, golden['beam'], golden['beam_scores'], strict=True
    ):
        if text == other:
            np.testing.assert_allclose(score, other_score, rtol=1e-5)
        else:
            assert score > other_score


def log_probabilities(model, variables, golden, texts, given):
    """Of targets with their end tokens, by teacher forcing; the first may be given."""
    end = model.special_tokens.end
    labels = np.full((len(texts), LIMIT), model.special_tokens.padding, np.int32)
    for row, text in zip(labels, texts, strict=True):
        row[: len(text) + 1] = [*text, end]
    start = np.full((len(texts), 1), model.special_tokens.start, np.int32)
    inputs = np.concatenate([start, labels[:, :-1]], 1)
    logits = jax.jit(model.apply)(variables, golden['source'], inputs)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    return [
        sum(log_p[i, t, token] for t, token in enumerate([*text, end]) if t >= given)
        for i, text in enumerate(texts)
    ]


@by_cost(['bart', 'marian', 't5_untied'])
def test_back_and_forth_is_the_same_to_the_bit(name):
    path = GOLDENS / name
    described = flaxformer_lite.describe_pretrained(path)
    _, variables = flaxformer_lite.from_pretrained(path)
    model_type = folder.read_config(path)['model_type']
    config, theirs = flaxformer_lite.to_pretrained(described, variables, model_type)
    stored = safetensors.numpy.load_file(path / folder.WEIGHTS)
    assert theirs.keys() == {x for x in stored if not is_unread(name, x)}
    for key, x in theirs.items():
        np.testing.assert_array_equal(np.asarray(x), stored[key], strict=True)
    family = load.family_of(model_type)
    assert family.read(config, theirs) == described


def test_arrays_are_read_to_where_the_mesh_has_them_and_in_the_dtype():
    axis_types = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ('fsdp', 'tensor'), axis_types=axis_types)
    _, whole = flaxformer_lite.from_pretrained(GOLDENS / 'bart')
    model, divided = flaxformer_lite.from_pretrained(
        GOLDENS / 'bart', dtype='bfloat16', mesh=mesh
    )
    assert model.dense.dtype == jnp.bfloat16
    up = divided['params']['encoder']['layer_0']['feed_forward']['up']['kernel']
    assert up.sharding.spec == PartitionSpec(('fsdp',), ('tensor',))
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), whole)
    for x, expected in zip(*map(jax.tree.leaves, (divided, rounded)), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(expected))


def test_the_parts_of_a_large_checkpoint_are_one(tmp_path):
    shutil.copy(GOLDENS / 'marian' / 'config.json', tmp_path)
    stored = safetensors.numpy.load_file(GOLDENS / 'marian' / folder.WEIGHTS)
    weight_map = {}
    for i, name in enumerate(stored):
        file = f'model-0000{i % 2 + 1}-of-00002.safetensors'
        weight_map[name] = file
    for file in set(weight_map.values()):
        part = {n: x for n, x in stored.items() if weight_map[n] == file}
        safetensors.numpy.save_file(part, tmp_path / file)
    index = json.dumps({'weight_map': weight_map})
    (tmp_path / folder.INDEX).write_text(index, encoding='utf-8')
    _, variables = flaxformer_lite.from_pretrained(tmp_path)
    _, expected = flaxformer_lite.from_pretrained(GOLDENS / 'marian')
    same = jax.tree.map(lambda x, y: bool((x == y).all()), variables, expected)
    assert all(jax.tree.leaves(same))

    (tmp_path / file).unlink()
    refuses(tmp_path, f'{file} is not there, and the index names it')


def refuses(path, words):
    with pytest.raises(ValueError, match='.') as caught:
        flaxformer_lite.from_pretrained(path)
    message = str(caught.value)
    assert words in message
    assert str(path) in message and '\n' not in message


@pytest.fixture
def marian(tmp_path):
    """A copy of a checkpoint, to be damaged."""
    path = tmp_path / 'marian'
    shutil.copytree(GOLDENS / 'marian', path)
    return path


def change_config(path, file='config.json', **fields):
    config = json.loads((path / file).read_text('utf-8'))
    config.update(fields)
    config = {name: value for name, value in config.items() if value is not ...}
    (path / file).write_text(json.dumps(config), encoding='utf-8')


def change_weights(path, change):
    stored = safetensors.numpy.load_file(path / folder.WEIGHTS)
    change(stored)
    safetensors.numpy.save_file(stored, path / folder.WEIGHTS)


def test_a_folder_without_config_or_weights_is_refused(marian):
    (marian / 'model.safetensors').rename(marian / 'pytorch_model.bin')
    refuses(marian, 'holds its weights pickled (pytorch_model.bin), and nothing is')
    (marian / 'pytorch_model.bin').unlink()
    refuses(marian, 'holds no weights: neither model.safetensors nor')
    (marian / 'config.json').write_text('{', encoding='utf-8')
    refuses(marian, 'config.json cannot be read')
    (marian / 'config.json').unlink()
    refuses(marian, 'is no checkpoint: it holds no config.json')


def test_without_safetensors_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(ModuleNotFoundError, match=r"'flaxformer-lite\[pretrained\]'"):
        flaxformer_lite.from_pretrained(GOLDENS / 'marian')


@pytest.mark.parametrize('size', [0, 4, 200, -1])
def test_a_truncated_file_is_refused(marian, size):
    file = marian / 'model.safetensors'
    file.write_bytes(file.read_bytes()[:size])
    refuses(marian, 'model.safetensors is no whole safetensors file')


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        (dict(model_type='bert'), "model_type='bert' is not one of bart, "),
        (dict(activation_function='mish'), 'activation_function must be one of'),
        (dict(normalize_before=True), 'normalize_before=True: of marian only'),
        (
            dict(share_encoder_decoder_embeddings=False),
            'share_encoder_decoder_embeddings=False: of marian only',
        ),
        (dict(d_model=...), 'there is no d_model'),
        (dict(d_model='8'), "model.d_model must be of type int, not '8'"),
        (
            dict(encoder_layerdrop=0.2),
            'encoder_layerdrop=0.2 and decoder_layerdrop=0.0 must be equal',
        ),
        (dict(encoder_attention_heads=3), 'model.d_model=8 cannot be divided among'),
        (dict(vocab_size=16), 'padding=16 is none of the 16 tokens'),
    ],
)
def test_a_config_that_is_not_computed_is_refused_by_its_field(marian, fields, words):
    change_config(marian, **fields)
    refuses(marian, words)


def test_arrays_that_are_not_those_of_the_config_are_refused_by_name(marian):
    name = 'model.decoder.layers.0.fc1.bias'
    change_weights(marian, lambda stored: stored.pop(name))
    refuses(marian, f'missing: {name}')
    change_config(marian, encoder_layers=1, d_model=12)
    change_weights(marian, lambda stored: stored.update(new=np.zeros(2, np.float32)))
    refuses(
        marian,
        'left over: model.encoder.layers.1.fc1.bias, model.encoder.layers.1.fc1.weight,'
        ' model.encoder.layers.1.fc2.bias and 14 more; of another shape: ',
    )
    change_weights(marian, lambda stored: stored.pop('new'))
    change_config(marian, encoder_layers=2)
    refuses(marian, 'of another shape: model.decoder.layers.0.encoder_attn.k_proj.bias')


def test_what_is_no_number_or_no_weight_is_refused_by_name(marian):
    name = 'model.encoder.layers.1.fc1.bias'

    def spoil(stored):
        stored[name][2] = np.nan

    change_weights(marian, spoil)
    refuses(marian, f'{name} holds NaN or infinite numbers')
    change_weights(marian, lambda stored: stored.update({name: np.zeros(10, np.int8)}))
    refuses(marian, f'{name} holds int8, and no weights')


def test_an_array_that_is_there_twice_has_to_be_the_same(marian):
    def untie(stored):
        stored['lm_head.weight'] = stored['model.shared.weight'] + 0

    change_weights(marian, untie)
    flaxformer_lite.from_pretrained(marian)

    def differ(stored):
        stored['lm_head.weight'][3, 3] += 1

    change_weights(marian, differ)
    refuses(marian, 'lm_head.weight is not model.shared.weight, and the config ties')


def test_a_file_of_the_model_without_its_head_is_read(marian):
    def behead(stored):
        del stored['final_logits_bias']
        for name in list(stored):
            stored[name.removeprefix('model.')] = stored.pop(name)

    _, whole = flaxformer_lite.from_pretrained(marian)
    change_weights(marian, behead)
    _, found = flaxformer_lite.from_pretrained(marian)
    assert not found['params']['output_bias'].any()
    found['params']['output_bias'] = whole['params']['output_bias']
    same = jax.tree.map(lambda x, y: bool((x == y).all()), found, whole)
    assert all(jax.tree.leaves(same))


def test_of_several_end_tokens_one_has_to_be_chosen(marian):
    change_config(marian, eos_token_id=[0])
    change_config(marian, folder.GENERATION, eos_token_id=[0])
    assert flaxformer_lite.describe_pretrained(marian).special_tokens.end == 0
    change_config(marian, folder.GENERATION, eos_token_id=[0, 3])
    refuses(marian, 'eos_token_id=[0, 3]: decoding ends at one token here')


def test_a_model_that_a_family_cannot_have_is_refused_by_its_field():
    described = flaxformer_lite.describe_pretrained(GOLDENS / 'marian')
    _, variables = flaxformer_lite.from_pretrained(GOLDENS / 'marian')
    config = dataclasses.replace(described.config, residual='pre_norm')
    with pytest.raises(ValueError, match="Marian cannot have model.residual='pre_norm"):
        load.family_of('marian').write(described._replace(config=config), ())
    with pytest.raises(ValueError, match='Bart cannot have this model: there is'):
        flaxformer_lite.to_pretrained(described, variables, 'bart')


@pytest.mark.slow
@every_golden
def test_other_weights_give_the_logits_of_transformers(name, tmp_path):
    torch = pytest.importorskip('torch')
    pytest.importorskip('transformers')
    from goldens import make_families

    golden = golden_of(name)
    theirs = make_families.random_model(name, seed=1_000)
    theirs.save_pretrained(tmp_path)
    source, inputs = (torch.tensor(golden[x]).long() for x in ('source', 'inputs'))
    real = golden['labels'] != theirs.config.pad_token_id
    seen = np.concatenate([np.ones_like(real[:, :1]), real[:, :-1]], 1)
    with torch.no_grad():
        expected = theirs.double()(
            input_ids=source,
            attention_mask=source != theirs.config.pad_token_id,
            decoder_input_ids=inputs,
            decoder_attention_mask=torch.tensor(seen),
        ).logits.numpy()
    model, variables = flaxformer_lite.from_pretrained(tmp_path)
    logits = jax.jit(model.apply)(variables, golden['source'], golden['inputs'])
    atol = 3e-5 * ROUNDING.get(name, 1)
    np.testing.assert_allclose(logits[real], expected[real], atol=atol)
