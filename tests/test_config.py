"""The schema of configs: what it says of each field, how a config file becomes typed,
and how the config of a run is stored and read."""

import dataclasses
import json
from pathlib import Path

import pytest
from made_runs import nest
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import wmt_base
from experiments.command_line import flags
from experiments.config import check, load, schema, table
from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.runs import directory, reading, trained_run
from flaxformer_lite import ranges
from flaxformer_lite.config.schema import ModelConfig

ROOT = Path(__file__).parent.parent
# Each is looked at by who reads it: a spec, or the names of sets.
FREE_TEXT = {'optimizer.name', 'optimizer.schedule', 'evaluation.sets'}
FREE_TEXT |= {'init_from', 'train.teacher', 'evaluation.best'}


@pytest.mark.parametrize('name', schema.fields())
def test_every_field_says_what_it_means_and_what_it_may_be(name):
    field = schema.fields()[name]
    assert field.help and '\n' not in field.help
    ranges.check(name, field.kind, field.default)
    kinds = set(ranges.types_of(field.kind)) - {type(None)}
    is_spec = name in FREE_TEXT or name in schema.part_fields()
    assert ranges.limit_of(field.kind) is not None or kinds == {bool} or is_spec


def test_the_documentation_lists_the_fields_as_they_are():
    page = (ROOT / 'docs' / 'configs.md').read_text('utf-8')
    assert page == table.markdown(), (
        'python -m experiments.config.table >docs/configs.md'
    )


def test_the_base_config_is_the_defaults():
    assert load.from_config_dict(wmt_base.get_config()) == ExperimentConfig()
    assert load.from_config_dict(ConfigDict()) == ExperimentConfig()


# The paper's §3 and Table 3, §5 on training and §6.1 on decoding.
PAPER = {
    'data': 'tfds(name="wmt14_translate/de-en", source="en", target="de")',
    'tokenizer': 'sentencepiece(vocab_size=37000)',
    'batch.tokens': 25_000,
    'model.num_layers': 6,
    'model.d_model': 512,
    'model.d_ff': 2048,
    'model.num_heads': 8,
    'model.dropout': 0.1,
    'model.attention': 'softmax',
    'model.positions': 'sinusoidal',
    'model.norm': 'layer',
    'model.residual': 'post_norm',
    'model.feed_forward': 'relu',
    'model.tie': 'all',
    'model.scale_embeddings': True,
    'optimizer.name': 'adam',
    'optimizer.b1': 0.9,
    'optimizer.b2': 0.98,
    'optimizer.eps': 1e-9,
    'optimizer.schedule': 'noam(warmup=4000)',
    'train.steps': 100_000,
    'train.loss': 'cross_entropy(label_smoothing=0.1)',
    'evaluation.decode': 'beam(beams=4, alpha=0.6)',
    'evaluation.extra_length': 50,
    'evaluation.average': 5,
    'checkpoint.every': 1_500,
    'checkpoint.keep': 5,
}


def test_the_base_config_states_what_the_paper_does_and_nothing_else():
    assert flatten(wmt_base.get_config().to_dict()) == PAPER
    # d_k = d_v = 64, by d_model and num_heads.
    assert ExperimentConfig().model.sizes('encoder').d_k == 64


def test_a_file_may_leave_fields_out_and_each_can_be_overridden(tmp_path):
    path = tmp_path / 'empty.py'
    path.write_text(
        'from ml_collections import ConfigDict\ndef get_config(): return ConfigDict()\n'
    )
    for name, field in schema.fields().items():
        value = {int: 7, float: 0.25, str: 'other', bool: not field.default}[
            ranges.types_of(field.kind)[0]
        ]
        limit = ranges.limit_of(field.kind)
        if isinstance(limit, ranges.Choices):
            value = limit.words[-1]
        argv = [f'--config={path}', f'--config.{name}={value}']
        _, settings = flags.parse(flags.Parser('test'), argv)
        assert settings.overrides == {name: value}
        assert flatten(settings.config.to_dict())[name] == value


def test_what_a_file_gives_gets_the_type_of_its_field():
    """A whole number where a float is meant, and an empty value without a type."""
    config = ConfigDict(
        {'model': {'dropout': 0, 'd_k': None}, 'train': {'init_seed': placeholder(int)}}
    )
    load.fill(config)
    assert type(config.model.dropout) is float
    config.model.d_k = 64
    config.train.init_seed = 3
    with pytest.raises(TypeError):
        config.model.decoder_d_k = 'wide'
    assert load.from_config_dict(config).model.d_k == 64


def test_what_is_stored_is_read_as_it_was(tmp_path):
    nested = ExperimentConfig().to_dict()
    assert nest(flatten(nested)) == nested
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(load.to_store(nested)))
    assert load.read_stored(file) == nested


def test_a_field_of_a_later_version_has_the_value_of_what_was_done(
    tmp_path, monkeypatch
):
    stored = load.to_store(ExperimentConfig().to_dict())
    del stored['train']['on_nonfinite']
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(stored))
    later = [*load.ADDED, {'train.on_nonfinite': 'skip'}]
    monkeypatch.setattr(load, 'ADDED', later)
    assert load.from_dict(load.read_stored(file)).train.on_nonfinite == 'skip'
    # A config of the version that has the field says itself what it did.
    present = ExperimentConfig().to_dict()
    file.write_text(json.dumps(load.to_store(present)))
    assert load.read_stored(file) == present


SAMPLED = dict(decode='sample', temperature=0.5, top_k=3, top_p=1.0, beams=4, alpha=0)


@pytest.mark.parametrize(
    ('section', 'stored', 'field', 'expected'),
    [
        (
            'train',
            dict(label_smoothing=0.2),
            'loss',
            'cross_entropy(label_smoothing=0.2)',
        ),
        ('model', dict(parallel=True), 'block', 'parallel'),
        ('model', dict(parallel=False), 'block', 'sequential'),
        ('model', dict(attention='softmax'), 'cross_attention', None),
        ('evaluation', dict(decode='greedy', beams=8), 'decode', 'greedy'),
        (
            'evaluation',
            dict(decode='beam', beams=8, alpha=0.6, top_k=0),
            'decode',
            'beam(beams=8, alpha=0.6)',
        ),
        (
            'evaluation',
            SAMPLED,
            'decode',
            'sample(temperature=0.5, top_k=3, top_p=1.0)',
        ),
    ],
)
def test_what_older_runs_say_is_read_in_the_words_of_now(
    section, stored, field, expected, tmp_path
):
    config = load.to_store(ExperimentConfig().to_dict())
    config['schema_version'] = load.FIRST_VERSION
    config['tokenizer'] = {'vocab_size': 4000, 'kind': 'trained'}
    config['train']['profile'] = None
    for added in load.ADDED:
        for name in added:
            place, _, key = name.rpartition('.')
            (config[place] if place else config).pop(key)
    config[section] |= stored
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(config))
    found = load.from_dict(load.read_stored(file))
    assert getattr(getattr(found, section), field) == expected
    usual = dataclasses.replace(
        ExperimentConfig(), tokenizer='sentencepiece(vocab_size=4000)'
    )
    part = dataclasses.replace(getattr(usual, section), **{field: expected})
    assert found == dataclasses.replace(usual, **{section: part})


@pytest.mark.parametrize(
    ('model', 'expected'),
    [
        ({}, '[local(window=2), softmax]'),
        (dict(cross_attention='cosine'), 'cosine'),
        (dict(merged_attention=True), None),
        (dict(architecture='decoder_only'), None),
    ],
    ids=str,
)
def test_a_window_of_older_runs_is_that_of_cross_attention_too(
    model, expected, tmp_path
):
    config = load.to_store(ExperimentConfig().to_dict()) | {'schema_version': 12}
    config['model'] |= {'attention': '[local(window=2), softmax]'} | model
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(config))
    assert load.read_stored(file)['model']['cross_attention'] == expected
    file.write_text(json.dumps(config | {'schema_version': 14}))
    now = load.read_stored(file)['model']['cross_attention']
    assert now == model.get('cross_attention')


def test_a_published_tokenizer_of_older_runs_is_read_as_a_spec(tmp_path):
    config = load.to_store(ExperimentConfig().to_dict())
    config['schema_version'] = load.FIRST_VERSION
    config['tokenizer'] = {'vocab_size': 4000, 'kind': 'published'}
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(config))
    assert load.read_stored(file)['tokenizer'] == 'huggingface(vocab_size=4000)'


@pytest.mark.parametrize(
    ('name', 'instead'),
    [
        ('train.label_smoothing', "train.loss='cross_entropy"),
        ('model.parallel', 'model.block=parallel'),
        ('tokenizer.vocab_size', "tokenizer='sentencepiece"),
        ('evaluation.beams', "evaluation.decode='beam"),
    ],
)
def test_a_field_that_there_was_is_answered_with_how_it_is_written_now(name, instead):
    with pytest.raises(UserError, match=f'no {name} any more: write {instead}'):
        load.check_names([name])


@pytest.mark.parametrize('version', [None, load.FIRST_VERSION - 1, 99, 0, True, '8'])
def test_a_version_that_cannot_be_read_is_one_line(version, tmp_path):
    stored = ExperimentConfig().to_dict() | {'schema_version': version}
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(stored))
    message = f'its schema_version is {version!r}, and this code reads those from 8'
    for read in (directory.read_config, trained_run.open_trained, reading.read_run):
        with pytest.raises(UserError, match=message) as error:
            read(tmp_path)
        assert str(error.value).startswith(f'{file}: ')


def test_fields_that_do_not_fit_each_other_are_refused_by_name():
    config = ExperimentConfig()
    train_config = dataclasses.replace(config.train, steps=0, epochs=0)
    with pytest.raises(UserError, match='train.steps=0 and train.epochs=0'):
        check.check_config(dataclasses.replace(config, train=train_config))
    model = ModelConfig(num_heads=7)
    with pytest.raises(UserError, match='model.d_model=512 cannot be divided among'):
        check.check_config(dataclasses.replace(config, model=model))
