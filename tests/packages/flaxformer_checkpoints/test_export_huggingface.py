"""Tests of export to Transformers and back; with it, slow tests open the folder."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
import tiny
from published import GOLDENS, weights_of
from published_tokenizers import TOKENIZERS

import flaxformer_checkpoints
import flaxformer_lite
from experiments.config.schema import (
    BatchConfig,
    EvaluationConfig,
    ExperimentConfig,
)
from experiments.data import tokenizers
from experiments.data.tokenizers import base as tokenizer
from experiments.errors import UserError
from flaxformer_checkpoints.exports import huggingface
from flaxformer_checkpoints.exports.trained import Trained
from flaxformer_lite.config import build
from flaxformer_lite.config.schema import ModelConfig
from parallel_grammar.source import Grammar

pytest.importorskip('safetensors')

SIZES = dict(d_model=12, num_layers=1, decoder__num_layers=2, num_heads=2, d_ff=16)
T5 = dict(norm='rms', residual='pre_norm', positions='t5')
V11 = dict(
    feed_forward='geglu(tanh=True)',
    tie='source_target',
    scale_embeddings=False,
    d_k=4,
    d_v=4,
    **T5,
)
CASES = {
    'marian': dict(),
    'pegasus': dict(residual='pre_norm', head_dropout=0.1, feed_forward='gelu'),
    'bart': dict(positions='learned(max_length=70)', norm_embeddings=True),
    'mbart': dict(
        positions='learned',
        norm_embeddings=True,
        residual='pre_norm',
        share_layers=1,
    ),
    't5': dict(feed_forward='relu(bias=False)', **T5),
    'mt5': V11,
}
# The same families; above, decoders are the deeper stack.
OTHERS = {
    't5_of_a_deeper_encoder': CASES['t5'] | dict(num_layers=3),
    'mt5_of_equal_depths': V11 | dict(decoder__num_layers=1),
    't5_without_a_matrix_of_its_own': V11 | dict(tie='all', scale_logits=True),
    'marian_with_biases': dict(attention_bias=True, output_bias=True),
}


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
    pairs = Grammar(pairs=200)
    return small_runs.train_tokenizer(pairs, 200, tmp_path_factory.mktemp('cache'))


def trained(vocabulary, **fields):
    config = ModelConfig().with_values(tiny.dotted(SIZES | fields))
    model = build.model(config, vocabulary.vocab_size)
    variables = tiny.all_variables(model)
    experiment = ExperimentConfig(
        model=config,
        batch=BatchConfig(max_length=2000),
        evaluation=EvaluationConfig(extra_length=30),
    )
    return Trained(experiment, vocabulary, model, variables)


def batch(vocabulary):
    draw = np.random.default_rng(3).integers
    source = draw(4, vocabulary.vocab_size, (3, 7), np.int32)
    inputs = draw(4, vocabulary.vocab_size, (3, 5), np.int32)
    source[:, -1] = tokenizer.EOS
    source[1, 4:] = tokenizer.EOS, tokenizer.PAD, tokenizer.PAD
    inputs[:, 0] = tokenizer.BOS
    return source, inputs


def test_tables_of_positions_are_those_that_transformers_saved():
    path = GOLDENS / 'pegasus'
    config = json.loads((path / 'config.json').read_text('utf-8'))
    tables = huggingface.tables_of_positions(config)
    assert len(tables) == 2
    stored = weights_of(path)
    for name, table_TD in tables.items():
        np.testing.assert_array_equal(table_TD, stored[name], strict=True)


@pytest.mark.parametrize(
    'name',
    ['marian', *(pytest.param(x, marks=pytest.mark.slow) for x in [*CASES][1:])],
)
def test_exported_folder_gives_our_arrays_and_logits(tmp_path, vocabulary, name):
    ours = trained(vocabulary, **CASES[name])
    huggingface.write(ours, tmp_path)
    found = huggingface.find_family(ours)
    assert flaxformer_checkpoints.describe_pretrained(tmp_path) == found.described
    model, variables = flaxformer_checkpoints.from_pretrained(tmp_path)
    expected = jax.tree.leaves_with_path(found.variables)
    for path, x in expected:
        np.testing.assert_array_equal(
            x, dict(jax.tree.leaves_with_path(variables))[path]
        )
    assert len(expected) == len(jax.tree.leaves(variables))

    if name in ('marian', 'pegasus'):
        config = json.loads((tmp_path / 'config.json').read_text('utf-8'))
        tables = huggingface.tables_of_positions(config)
        assert tables.keys() <= weights_of(tmp_path).keys()
    arrays = [jnp.asarray(x) for x in batch(vocabulary)]
    logits = tiny.apply(model, variables, *arrays)
    own = tiny.apply(ours.model, ours.variables, *arrays)
    np.testing.assert_allclose(logits, own, atol=1e-4)

    config = json.loads((tmp_path / 'config.json').read_text('utf-8'))
    assert config['model_type'] == name
    assert (config['pad_token_id'], config['eos_token_id']) == (0, 1)
    generation = json.loads((tmp_path / 'generation_config.json').read_text('utf-8'))
    assert generation['decoder_start_token_id'] == 2
    assert generation['forced_eos_token_id'] == 1
    # As long as a translation of this run, or as the learned table.
    longest = ours.model.max_length or 2030
    assert generation['max_length'] == longest
    assert config.get('max_position_embeddings', longest) == longest


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        (dict(positions='rotary'), "model.positions='rotary'"),
        (dict(norm='scale'), "model.norm='scale'"),
        (dict(tie='none'), "model.tie='none'"),
        (dict(num_kv_heads=1), 'model.num_kv_heads=1'),
        (dict(attention='cosine'), "model.attention='cosine'"),
        (dict(logit_cap=30.0), 'model.logit_cap=30.0'),
        (dict(block='parallel'), "model.block='parallel'"),
        (dict(architecture='recurrent'), "model.architecture='recurrent'"),
        (dict(attention='[softmax, local]'), 'model.attention=[softmax, local]'),
    ],
)
def test_fields_that_no_family_supports_are_refused(vocabulary, fields, words):
    with pytest.raises(UserError) as caught:
        huggingface.find_family(trained(vocabulary, **fields))
    assert words in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize('name', [*CASES, *OTHERS])
def test_transformers_gives_our_logits_and_greedy_translations(
    tmp_path, vocabulary, name
):
    torch = pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    ours = trained(vocabulary, **(CASES | OTHERS)[name])
    huggingface.write(ours, tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, local_files_only=True
    ).eval()
    source, inputs = batch(vocabulary)
    with torch.no_grad():
        logits = theirs(
            input_ids=torch.tensor(source, dtype=torch.long),
            attention_mask=torch.tensor(source != tokenizer.PAD),
            decoder_input_ids=torch.tensor(inputs, dtype=torch.long),
        ).logits.numpy()
    own = tiny.apply(ours.model, ours.variables, jnp.array(source), jnp.array(inputs))
    np.testing.assert_allclose(logits, own, atol=1e-4)

    found = flaxformer_lite.generate(
        ours.model, ours.variables, source, 'greedy', max_length=9
    )
    generated = theirs.generate(
        torch.tensor(source, dtype=torch.long),
        attention_mask=torch.tensor(source != tokenizer.PAD),
        max_length=10,
    )
    expected = np.asarray(found.tokens_BNL[:, 0])
    width = generated.shape[1] - 1
    np.testing.assert_array_equal(generated[:, 1:], expected[:, :width])
    assert not expected[:, width:].any()


@pytest.mark.slow
def test_the_tokenizer_of_transformers_is_ours(tmp_path, vocabulary):
    transformers = pytest.importorskip('transformers')
    huggingface.write(trained(vocabulary), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    texts = [text for pair in Grammar(pairs=600).train() for text in pair]
    texts += ['  a\tb\x1c c\u3000', 'cafe\u0301 ▁ x', '日本 a', '']
    texts += ['</s>', 'a <s> b', 'The <pad>red</s> cat', '<unk>a']
    expected = [[*ids, tokenizer.EOS] for ids in vocabulary.encode(texts)]
    assert [theirs(text)['input_ids'] for text in texts] == expected
    decoded = theirs.batch_decode(expected[:50], skip_special_tokens=True)
    assert decoded == vocabulary.decode(expected[:50])


def test_a_published_tokenizer_is_written_with_a_model_that_was_trained_here(tmp_path):
    pytest.importorskip('transformers')
    theirs = shutil.copytree(TOKENIZERS / 'bart', tmp_path / 'theirs')
    out = tmp_path / 'out'
    out.mkdir()
    spec = f'huggingface(path={str(theirs)!r})'
    untrained = tokenizers.make(spec)
    own = untrained.opened(untrained.train(()))
    config = ModelConfig().with_values(tiny.dotted(SIZES))
    model = build.model(config, own.vocab_size, own.special_tokens)
    experiment = ExperimentConfig(model=config, tokenizer=spec)
    ours = Trained(experiment, own, model, tiny.all_variables(model))
    huggingface.write_published(ours, out)
    untrained = tokenizers.make(f'huggingface(path={str(out)!r})')
    written = untrained.opened(untrained.train(()))
    texts = ['a red box', 'The dog sleeps.']
    assert written.encode(texts) == own.encode(texts)
    source, inputs = np.full((2, 1, 5), 7, np.int32)
    model, variables = flaxformer_checkpoints.from_pretrained(out)
    np.testing.assert_allclose(
        model.apply(variables, source, inputs),
        ours.model.apply(ours.variables, source, inputs),
        atol=1e-4,
    )


def test_full_disk_is_an_error_of_one_line(tmp_path):
    resource = pytest.importorskip('resource')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(UserError, match='cannot write .*model.safetensors: '):
            config = {huggingface.CONFIG: {'model_type': 'bart'}}
            huggingface._save(tmp_path, config, {'a': jnp.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
