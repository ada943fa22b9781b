"""Tests of the config schema, of conversion to typed configs, and of stored configs."""

import dataclasses
import json
from pathlib import Path

import pytest
from made_runs import nest
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder
from test_ranges import lacks_limit

from configs import wmt_base, wmt_big
from experiments.command_line import flags
from experiments.config import components, load, schema
from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runs import directory, reading
from flaxformer_lite import validation
from flaxformer_lite.config import spec
from flaxformer_lite.config.schema import ModelConfig

ROOT = Path(__file__).parents[3]
# Each is looked at by who reads it: a spec, or the names of sets.
FREE_TEXT = {'optimizer.name', 'optimizer.schedule', 'evaluation.sets'}
FREE_TEXT |= {'init_from', 'train.teacher', 'evaluation.best'}


@pytest.mark.parametrize('name', schema.fields())
def test_every_field_says_what_it_means_and_what_it_may_be(name):
    field = schema.fields()[name]
    assert field.help and '\n' not in field.help
    validation.check(name, field.kind, field.default)
    kinds = set(validation.types_of(field.kind)) - {type(None)}
    is_spec = name in FREE_TEXT or name in schema.part_fields()
    assert validation.limit_of(field.kind) is not None or kinds == {bool} or is_spec


def test_every_field_of_a_config_has_a_type_and_every_number_a_range():
    kinds = {name: field.kind for name, field in schema.fields().items()}
    # Its reader checks free text; a component's folder checks its spec.
    text = {'init_from', 'train.teacher', 'evaluation.sets', 'evaluation.best'}
    assert {field for field, kind in kinds.items() if lacks_limit(kind)} == text


def test_the_documentation_lists_the_fields_as_they_are():
    page = (ROOT / 'docs/reference/configs.md').read_text('utf-8')
    assert page == schema.markdown(), (
        'python -m experiments.config.schema >docs/reference/configs.md'
    )


def test_the_base_config_is_the_defaults():
    assert load.from_config_dict(wmt_base.get_config()) == ExperimentConfig()
    assert load.from_config_dict(ConfigDict()) == ExperimentConfig()


def test_the_big_config_has_the_sizes_of_the_papers_big_model():
    big = ModelConfig(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3)
    assert load.from_config_dict(wmt_big.get_config()).model == big


def test_no_spec_of_a_loaded_config_is_parsed_again(monkeypatch):
    texts = {
        'model.attention': '[softmax(temperature=2.0), local(window=3)]',
        'model.norm': 'rms(epsilon=1e-3)',
        'train.loss': '[cross_entropy(label_smoothing=0.2), z_loss(weight=1e-3)]',
        'optimizer.name': 'lion(b1=0.8)',
        'optimizer.schedule': 'cosine(peak=3e-3)',
        'tokenizer': '[bytes(), characters()]',
        'filters': '[length_ratio(most=4)]',
        'evaluation.metrics': '[chrf(lowercase=True)]',
        'evaluation.decode': 'beam(beams=3)',
    }
    config = wmt_base.get_config()
    load.fill(config)
    load.override(config, texts | {'model.tie': 'decoder'})
    made = load.from_config_dict(config)
    stored = made.to_dict()
    assert {name: flatten(stored)[name] for name in texts} == texts
    parsed = []
    read = spec._parse
    monkeypatch.setattr(
        spec, '_parse', lambda text: [parsed.append(text), read(text)][1]
    )
    built = components.build(made, 9)
    assert built.model.encoder.block and set(built.metrics) == {'chrf'}
    entries = {str(entry) for name in texts for entry in made.get(name).entries}
    assert not {*texts.values(), *entries}.intersection(parsed)


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
        value = {int: 7, float: 0.25, str: 'other', bool: not field.default}[field.type]
        limit = validation.limit_of(field.kind)
        if isinstance(limit, validation.Choices):
            value = limit.words[-1]
        argv = [f'--config={path}', f'--config.{name}={value}']
        _, settings = flags.parse(flags.Parser('test'), argv)
        assert settings.overrides == {name: value}
        assert flatten(settings.config.to_dict())[name] == value


def test_what_a_file_gives_gets_the_type_of_its_field():
    config = ConfigDict(
        {'model': {'dropout': 0, 'd_k': None}, 'train': {'init_seed': placeholder(int)}}
    )
    load.fill(config)
    assert type(config.model.dropout) is float
    config.model.d_k = 64
    config.train.init_seed = 3
    with pytest.raises(TypeError):
        config.model.decoder.d_k = 'wide'
    assert load.from_config_dict(config).model.d_k == 64


def test_what_is_stored_is_read_as_it_was(tmp_path):
    nested = ExperimentConfig().to_dict()
    assert nest(flatten(nested)) == nested
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(load.to_store(nested)))
    assert load.read_stored(file) == nested


def old(tmp_path, version, **model):
    """Writes a config as release 0.3 and its successor stored it."""
    config = load.to_store(ExperimentConfig().to_dict()) | {'schema_version': version}
    for section in ('decoder', 'cross'):
        for name, value in config['model'].pop(section).items():
            config['model'][f'{section}_{name}'] = value
    config['model'] |= model
    (tmp_path / 'config.json').write_text(json.dumps(config))
    return tmp_path / 'config.json'


def test_a_field_without_its_section_is_recognized():
    with pytest.raises(UserError, match="did you mean 'model.decoder.attention'"):
        load.check_names(['model.decoder_attention'])
    with pytest.raises(ValueError, match="did you mean 'decoder.norm'"):
        ModelConfig.of({'decoder_norm': 'rms'})


def test_a_model_config_takes_sections_as_mappings_and_as_dataclasses():
    expected = ModelConfig().with_values({'decoder.norm': 'rms', 'd_ff': 8})
    assert str(expected.decoder.norm) == 'rms' and expected.cross == ModelConfig().cross
    for section in ({'norm': 'rms'}, ConfigDict({'norm': 'rms'}), expected.decoder):
        assert ModelConfig.of({'d_ff': 8, 'decoder': section}) == expected
    with pytest.raises(ValueError, match='model.decoder.d_ff must be at least 1'):
        ModelConfig.of({'decoder': {'d_ff': 0}})


def test_a_run_of_a_version_without_adapters_has_none(tmp_path):
    nested = ExperimentConfig().to_dict()
    config = load.to_store(nested) | {'schema_version': 15}
    config['model'] = {k: x for k, x in nested['model'].items() if k != 'dense'}
    (tmp_path / 'config.json').write_text(json.dumps(config))
    assert load.read_stored(tmp_path / 'config.json') == nested


@pytest.mark.parametrize('version', [13, 14])
def test_the_fields_of_a_stack_were_once_prefixed(version, tmp_path):
    file = old(tmp_path, version, decoder_norm='rms', cross_num_heads=2)
    found = load.from_dict(load.read_stored(file))
    model = ModelConfig().with_values({'decoder.norm': 'rms', 'cross.num_heads': 2})
    assert found == dataclasses.replace(ExperimentConfig(), model=model)


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
def test_cross_attention_of_release_0_3_inherits_a_window(model, expected, tmp_path):
    fields = {'attention': '[local(window=2), softmax]'} | model
    stored = load.read_stored(old(tmp_path, 13, **fields))['model']
    assert stored['cross']['attention'] == expected
    stored = load.read_stored(old(tmp_path, 14, **fields))['model']
    assert stored['cross']['attention'] == model.get('cross_attention')


@pytest.mark.parametrize('version', [None, 12, 99, 0, True, '14'])
def test_a_version_that_cannot_be_read_is_one_line(version, tmp_path):
    stored = ExperimentConfig().to_dict() | {'schema_version': version}
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(stored))
    message = (
        f'unsupported schema_version {version!r}. This code reads versions 13 to 16'
    )
    for read in (directory.read_config, OpenedRun, reading.read_run):
        with pytest.raises(UserError, match=message) as error:
            read(tmp_path)
        assert str(error.value).startswith(f'{file}: ')


def test_fields_that_do_not_fit_each_other_are_refused_by_name():
    config = ExperimentConfig()
    train_config = dataclasses.replace(config.train, steps=0, epochs=0)
    with pytest.raises(UserError, match='train.steps=0 and train.epochs=0'):
        components.build(dataclasses.replace(config, train=train_config))
    model = ModelConfig(num_heads=7)
    with pytest.raises(UserError, match='model.d_model=512 cannot be divided among'):
        components.build(dataclasses.replace(config, model=model))
