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


def test_label_smoothing_is_read_from_older_runs_and_said_by_the_loss_now(tmp_path):
    stored = load.to_store(ExperimentConfig().to_dict()) | {'schema_version': 8}
    for name in ('loss', 'teacher'):
        del stored['train'][name]
    stored['train']['label_smoothing'] = 0.2
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(stored))
    train = load.from_dict(load.read_stored(file)).train
    assert train.loss == 'cross_entropy(label_smoothing=0.2)'
    stored['train']['label_smoothing'] = 0.1
    file.write_text(json.dumps(stored))
    assert load.from_dict(load.read_stored(file)) == ExperimentConfig()

    message = "no train.label_smoothing any more: write train.loss='cross_entropy"
    with pytest.raises(UserError, match=message):
        load.fill(ConfigDict({'train': {'label_smoothing': 0.2}}))


@pytest.mark.parametrize('parallel', [True, False])
def test_parallel_blocks_of_older_runs_are_read_as_their_name(parallel, tmp_path):
    stored = load.to_store(ExperimentConfig().to_dict()) | {'schema_version': 11}
    del stored['model']['block']
    stored['model']['parallel'] = parallel
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(stored))
    block = 'parallel' if parallel else 'sequential'
    assert load.from_dict(load.read_stored(file)).model.block == block
    with pytest.raises(UserError, match='no model.parallel any more: write'):
        load.check_names(['model.parallel'])


@pytest.mark.parametrize(
    ('decode', 'spec'),
    [
        ('greedy', 'greedy'),
        ('beam', 'beam(beams=8, alpha=0.6)'),
        ('sample', 'sample(temperature=0.5, top_k=3, top_p=1.0)'),
    ],
)
def test_how_older_runs_decode_is_read_as_a_spec(decode, spec, tmp_path):
    stored = load.to_store(ExperimentConfig().to_dict()) | {'schema_version': 11}
    del stored['evaluation']['processors']
    stored['evaluation'] |= dict(decode=decode, beams=8, alpha=0.6)
    stored['evaluation'] |= dict(temperature=0.5, top_k=3, top_p=1.0)
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(stored))
    found = load.from_dict(load.read_stored(file))
    expected = dataclasses.replace(ExperimentConfig().evaluation, decode=spec)
    assert found == dataclasses.replace(ExperimentConfig(), evaluation=expected)


@pytest.mark.parametrize(
    ('kind', 'spec'),
    [
        ('trained', 'sentencepiece(vocab_size=4000)'),
        ('published', 'huggingface(vocab_size=4000)'),
    ],
)
def test_the_tokenizer_of_the_first_release_is_read_as_a_spec(kind, spec, tmp_path):
    section = {'vocab_size': 4000, 'kind': kind}
    stored = ExperimentConfig().to_dict() | {'tokenizer': section}
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(stored | {'schema_version': load.FIRST_VERSION}))
    assert load.from_dict(load.read_stored(file)).tokenizer == spec


def test_a_field_of_the_tokenizer_is_answered_with_how_it_is_written_now():
    with pytest.raises(
        UserError, match=r"tokenizer='sentencepiece\(vocab_size=8000\)'"
    ):
        load.check_names(['tokenizer.vocab_size'])


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
