"""Tests of export to Transformers and back; with it, slow tests open the folder."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
import tiny
from published import GOLDENS, weights_of
from published_tokenizers import TOKENIZERS

import flaxformer_checkpoints
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
from flaxformer_lite.config import builder
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
    't5 with a deeper encoder': dict(
        feed_forward='relu(bias=False)', num_layers=3, **T5
    ),
    'mt5': V11,
    'mt5 with equal depths': V11 | dict(decoder__num_layers=1),
    't5 without an output matrix': V11 | dict(tie='all', scale_logits=True),
    'marian with biases': dict(attention_bias=True, output_bias=True),
}


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
    pairs = Grammar(pairs=200)
    return small_runs.train_tokenizer(pairs, 200, tmp_path_factory.mktemp('cache'))


def trained_model(vocabulary, **fields):
    config = ModelConfig().with_values(tiny.dotted(SIZES | fields))
    model = builder.build(config, vocabulary.vocab_size)
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


def test_position_tables_match_those_of_transformers():
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
def test_exported_folder_has_our_arrays_and_logits(tmp_path, vocabulary, name):
    ours = trained_model(vocabulary, **CASES[name])
    huggingface.write(ours, tmp_path)
    family = huggingface.find_family(ours)
    assert flaxformer_checkpoints.describe_pretrained(tmp_path) == family.described
    model, variables = flaxformer_checkpoints.from_pretrained(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, variables, family.variables)

    family_name = name.partition(' ')[0]
    if family_name in ('marian', 'pegasus'):
        config = json.loads((tmp_path / 'config.json').read_text('utf-8'))
        tables = huggingface.tables_of_positions(config)
        assert tables.keys() <= weights_of(tmp_path).keys()
    arrays = [jnp.asarray(x) for x in batch(vocabulary)]
    logits = tiny.apply(model, variables, *arrays)
    own = tiny.apply(ours.model, ours.variables, *arrays)
    np.testing.assert_allclose(logits, own, atol=1e-4)

    config = json.loads((tmp_path / 'config.json').read_text('utf-8'))
    assert config['model_type'] == family_name
    assert (config['pad_token_id'], config['eos_token_id']) == (0, 1)
    generation = json.loads((tmp_path / 'generation_config.json').read_text('utf-8'))
    assert generation['decoder_start_token_id'] == 2
    assert generation['forced_eos_token_id'] == 1
    # As long as a translation of this run, or as the learned table.
    longest = ours.model.max_length or 2030
    assert generation['max_length'] == longest
    assert config.get('max_position_embeddings', longest) == longest


@pytest.mark.ci
@pytest.mark.parametrize(
    'fields',
    [
        dict(positions='rotary'),
        dict(norm='scale'),
        dict(tie='none'),
        dict(num_kv_heads=1),
        dict(attention='cosine'),
        dict(logit_cap=30.0),
        dict(block='parallel'),
        dict(architecture='recurrent'),
        dict(attention='[softmax, local]'),
    ],
    ids=str,
)
def test_unsupported_fields_are_rejected(vocabulary, fields):
    ((field, value),) = fields.items()
    with pytest.raises(UserError, match=re.escape(f'model.{field}=')) as caught:
        huggingface.find_family(trained_model(vocabulary, **fields))
    assert str(value) in str(caught.value)


@pytest.mark.slow
def test_transformers_tokenizes_as_we_do(tmp_path, vocabulary):
    transformers = pytest.importorskip('transformers')
    huggingface.write(trained_model(vocabulary), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    texts = [text for pair in Grammar(pairs=600).train() for text in pair]
    texts += ['  a\tb\x1c c\u3000', 'cafe\u0301 ▁ x', '日本 a', '']
    texts += ['</s>', 'a <s> b', 'The <pad>red</s> cat', '<unk>a']
    expected = [[*ids, tokenizer.EOS] for ids in vocabulary.encode(texts)]
    assert [theirs(text)['input_ids'] for text in texts] == expected
    decoded = theirs.batch_decode(expected[:50], skip_special_tokens=True)
    assert decoded == vocabulary.decode(expected[:50])


@pytest.mark.ci
def test_published_tokenizer_is_exported_with_our_model(tmp_path):
    pytest.importorskip('transformers')

    def open_tokenizer(path):
        spec = f'huggingface(path={str(path)!r})'
        untrained = tokenizers.make(spec)
        return spec, untrained.opened(untrained.train(()))

    spec, own = open_tokenizer(TOKENIZERS / 'bart')
    config = ModelConfig().with_values(tiny.dotted(SIZES))
    model = builder.build(config, own.vocab_size, own.special_tokens)
    variables = tiny.all_variables(model)
    ours = Trained(
        ExperimentConfig(model=config, tokenizer=spec), own, model, variables
    )
    huggingface.write_published(ours, tmp_path)
    texts = ['a red box', 'The dog sleeps.']
    _, exported_tokenizer = open_tokenizer(tmp_path)
    assert exported_tokenizer.encode(texts) == own.encode(texts)
    rows = np.full((2, 1, 5), 7, np.int32)
    exported = flaxformer_checkpoints.from_pretrained(tmp_path)
    np.testing.assert_allclose(
        tiny.apply(*exported, *rows), tiny.apply(model, variables, *rows), atol=1e-4
    )


def test_full_disk_names_the_file(tmp_path):
    resource = pytest.importorskip('resource')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(UserError, match='cannot write .*model.safetensors: '):
            config = {huggingface.CONFIG: {'model_type': 'bart'}}
            huggingface._save(tmp_path, config, {'a': jnp.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
