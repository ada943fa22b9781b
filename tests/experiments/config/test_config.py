"""Tests of the config schema, of conversion to typed configs, and of stored configs."""

import dataclasses
import json
import re
from pathlib import Path

import pages
import pytest
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder
from synthetic_runs import nest
from test_validation import lacks_limit

from configs import wmt_base, wmt_big
from experiments import registries
from experiments.command_line import flags
from experiments.config import load, schema
from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runs import directory, reading
from flaxformer_lite import validation
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig

ROOT = Path(__file__).parents[3]
# Their readers check them.
FREE_TEXT = {'init_from', 'train.teacher', 'evaluation.sets', 'evaluation.best'}


def test_fields_have_a_meaning_and_a_valid_default_and_numbers_have_ranges():
    fields = schema.fields()
    for name, field in fields.items():
        assert field.help and '\n' not in field.help
        validation.check(name, field.kind, field.default)
    assert {name for name in fields if lacks_limit(fields[name].kind)} == FREE_TEXT


def test_documentation_lists_the_fields_of_the_schema():
    page = (ROOT / 'docs/reference/configs.md').read_text('utf-8')
    assert page == schema.markdown(), (
        'python -m experiments.config.schema >docs/reference/configs.md'
    )


def test_page_about_components_lists_each_field_that_names_one():
    row = r'^\| `([\w.]+)` \| \[`(\S+)/`\].* \|$'
    rows = dict(re.findall(row, pages.text('docs/how_to/extend.md'), re.MULTILINE))
    of_stacks = ('model.decoder.', 'model.cross.')
    fields = {x for x in schema.part_fields() if not x.startswith(of_stacks)}
    assert set(rows) == fields - {'optimizer.name'}  # optax's; it has no folder
    folders = {f'model.{kind}': folder for kind, folder in variants.FOLDERS.items()}
    for field, folder in (folders | registries.FOLDERS).items():
        assert rows[field] == folder.package.replace('.', '/')


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


def test_base_config_states_the_papers_settings_which_are_the_defaults():
    assert flatten(wmt_base.get_config().to_dict()) == PAPER
    assert load.from_config_dict(wmt_base.get_config()) == ExperimentConfig()
    assert load.from_config_dict(ConfigDict()) == ExperimentConfig()
    # d_k = d_v = 64, by d_model and num_heads.
    assert ExperimentConfig().model.sizes('encoder').d_k == 64
    big = ModelConfig(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3)
    assert load.from_config_dict(wmt_big.get_config()).model == big


def test_every_field_that_a_file_omits_can_be_overridden(tmp_path):
    path = tmp_path / 'empty.py'
    path.write_text(
        'from ml_collections import ConfigDict\ndef get_config(): return ConfigDict()\n'
    )
    values = {}
    for name, field in schema.fields().items():
        value = {int: 7, float: 0.25, str: 'other', bool: not field.default}[field.type]
        limit = validation.limit_of(field.kind)
        is_choice = isinstance(limit, validation.Choices)
        values[name] = limit.words[-1] if is_choice else value
    overrides = [f'--config.{name}={value}' for name, value in values.items()]
    argv = [f'--config={path}', *overrides]
    _, settings = flags.parse(flags.Parser('test'), argv)
    assert settings.overrides == values
    assert flatten(settings.config.to_dict()) == values


def test_values_of_a_file_get_the_types_of_their_fields():
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


def test_model_config_accepts_sections_as_mappings_and_dataclasses():
    expected = ModelConfig().with_values({'decoder.norm': 'rms', 'd_ff': 8})
    assert str(expected.decoder.norm) == 'rms' and expected.cross == ModelConfig().cross
    for section in ({'norm': 'rms'}, ConfigDict({'norm': 'rms'}), expected.decoder):
        assert ModelConfig.of({'d_ff': 8, 'decoder': section}) == expected
    with pytest.raises(ValueError, match='model.decoder.d_ff must be at least 1'):
        ModelConfig.of({'decoder': {'d_ff': 0}})
    with pytest.raises(ValueError, match="did you mean 'decoder.norm'"):
        ModelConfig.of({'decoder_norm': 'rms'})


def write_config(tmp_path, config, version):
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(config | {'schema_version': version}))
    return file


def test_stored_config_is_read_unchanged(tmp_path):
    nested = ExperimentConfig().to_dict()
    assert nest(flatten(nested)) == nested
    stored = load.to_store(nested)
    assert load.read_stored(write_config(tmp_path, stored, load.VERSION)) == nested
    # Version 15 had no adapters.
    model = {name: x for name, x in stored['model'].items() if name != 'dense'}
    stored = stored | {'model': model}
    assert load.read_stored(write_config(tmp_path, stored, 15)) == nested


def write_prefixed(tmp_path, version, **model):
    """Writes a config as release 0.3 and its successor stored it."""
    config = load.to_store(ExperimentConfig().to_dict())
    for section in ('decoder', 'cross'):
        for name, value in config['model'].pop(section).items():
            config['model'][f'{section}_{name}'] = value
    config['model'] |= model
    return write_config(tmp_path, config, version)


@pytest.mark.parametrize('version', [13, 14])
def test_prefixed_fields_of_earlier_versions_belong_to_sections(version, tmp_path):
    file = write_prefixed(tmp_path, version, decoder_norm='rms', cross_num_heads=2)
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
    for version, attention in ((13, expected), (14, model.get('cross_attention'))):
        stored = load.read_stored(write_prefixed(tmp_path, version, **fields))
        assert stored['model']['cross']['attention'] == attention


@pytest.mark.parametrize('version', [None, 12, 99, 0, True, '14'])
def test_unsupported_schema_version_is_named(version, tmp_path):
    file = write_config(tmp_path, ExperimentConfig().to_dict(), version)
    message = f'^{file}: unsupported schema_version {version!r}. This code reads'
    for read in (directory.read_config, OpenedRun, reading.read_run):
        with pytest.raises(UserError, match=message):
            read(tmp_path)
