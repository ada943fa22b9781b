"""The schema of configs: what it says of each field, how a config file becomes typed,
and how the config of a run that an earlier version made is read."""

import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import small_runs
from experiments.config.upgrade import Change, Removed
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import wmt_base, wmt_base_bf16, wmt_big, wmt_big_bf16, wmt_small
from experiments import report, translate
from experiments.command_line import flags
from experiments.config import check, load, schema, table
from experiments.config.load import flatten, nest
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.runs import directory, trained_run
from flaxformer_lite import ranges
from flaxformer_lite.config import build
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.models.base import TIES

ROOT = Path(__file__).parent.parent
VERSION_1 = ROOT / 'tests' / 'goldens' / 'config_version_1.json'
# Each is looked at by who reads it: a spec, or the names of sets.
FREE_TEXT = {'data', 'optimizer.name', 'optimizer.schedule', 'evaluation.sets'}
FREE_TEXT |= {'init_from', 'train.profile'}


@pytest.mark.parametrize('name', schema.fields())
def test_every_field_says_what_it_means_and_what_it_may_be(name):
    field = schema.fields()[name]
    assert field.help and '\n' not in field.help
    ranges.check(name, field.kind, field.default)
    kinds = set(ranges.types_of(field.kind)) - {type(None)}
    is_spec = name in FREE_TEXT or (name.startswith('model.') and kinds == {str})
    assert ranges.limit_of(field.kind) is not None or kinds == {bool} or is_spec


def test_the_documentation_lists_the_fields_as_they_are():
    page = (ROOT / 'docs' / 'configs.md').read_text('utf-8')
    assert page == table.markdown(), (
        'python -m experiments.config.table >docs/configs.md'
    )
    for name, field in schema.fields().items():
        assert f'| `{name}` | `{table.shown(field.default)}` |' in page


@pytest.mark.parametrize(
    ('field', 'words'),
    [
        ('batch.packed', 'bool'),
        ('model.num_layers', 'int, from 1 to 1000'),
        ('model.d_k', 'int, from 1 to 16777216; or empty'),
        ('model.dropout', 'float, at least 0 and below 1'),
        ('model.tie', 'all, decoder, source_target, none'),
        ('model.decoder_norm', 'str; or empty'),
    ],
)
def test_what_a_field_may_be_in_words(field, words):
    assert table.allowed(schema.fields()[field].kind) == words


def test_words_that_the_library_knows_twice_are_the_same():
    assert ranges.limit_of(schema.fields()['model.tie'].kind).words == TIES


def test_the_base_config_is_the_defaults():
    assert load.from_config_dict(wmt_base.get_config()) == ExperimentConfig()
    assert load.from_config_dict(ConfigDict()) == ExperimentConfig()


# The paper's §3 and Table 3, §5 on training and §6.1 on decoding.
PAPER = {
    'data': 'tfds(name="wmt14_translate/de-en", source="en", target="de")',
    'tokenizer.vocab_size': 37_000,
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
    'train.label_smoothing': 0.1,
    'evaluation.decode': 'beam',
    'evaluation.beams': 4,
    'evaluation.alpha': 0.6,
    'evaluation.extra_length': 50,
    'evaluation.average': 5,
    'checkpoint.every': 1_500,
    'checkpoint.keep': 5,
}


def test_the_base_config_states_what_the_paper_does_and_nothing_else():
    assert flatten(wmt_base.get_config().to_dict()) == PAPER
    # d_k = d_v = 64, by d_model and num_heads.
    assert ExperimentConfig().model.sizes('encoder').d_k == 64


@pytest.mark.parametrize(
    'file', [wmt_base, wmt_base_bf16, wmt_big, wmt_big_bf16, wmt_small]
)
def test_a_config_file_is_taken_as_it_is(file):
    given = flatten(file.get_config().to_dict())
    values = flatten(load.from_config_dict(file.get_config()).to_dict())
    assert given == {name: values[name] for name in given}


@pytest.mark.parametrize(
    ('file', 'plain'), [(wmt_base_bf16, wmt_base), (wmt_big_bf16, wmt_big)]
)
def test_configs_for_accelerators_differ_in_their_products_and_rows_alone(file, plain):
    for_accelerators = {'model.dtype': 'bfloat16', 'batch.rows_multiple': 8}
    expected = flatten(plain.get_config().to_dict()) | for_accelerators
    assert flatten(file.get_config().to_dict()) == expected


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


def test_a_reference_between_fields_stays_one():
    config = ConfigDict({'model': {'d_model': 64}})
    config.model.d_ff = config.model.get_ref('d_model') * 4
    load.fill(config)
    config.model.d_model = 128
    assert load.from_config_dict(config).model.d_ff == 512


def test_the_typed_config_is_not_to_be_changed_but_replaced():
    config = ExperimentConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.steps = 3  # pyright: ignore[reportAttributeAccessIssue]
    evaluation = dataclasses.replace(config.evaluation, beams=2)
    assert dataclasses.replace(config, evaluation=evaluation).evaluation.beams == 2
    with pytest.raises(UserError, match='evaluation.beams must be at least 1 and at'):
        dataclasses.replace(config.evaluation, beams=0)
    assert load.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (
            {'model.num_head': 4},
            "field model.num_head .*did you mean 'model.num_heads'",
        ),
        ({'model.tie': 'three'}, 'model.tie=three is now model.tie=all: give that'),
        ({'model.tie': 'two'}, 'model.tie=two is now model.tie=decoder: give that'),
        (
            {'model.architecture': 'language_model'},
            'model.architecture=language_model is now model.architecture=decoder_only',
        ),
        ({'schema_version': 1}, 'nothing reads the field schema_version'),
        (
            {'train': 3},
            'the field train of the config: it is a section, of train.steps',
        ),
        ({'train.steps.most': 3}, 'nothing reads the field train.steps.most'),
    ],
)
def test_what_is_not_in_the_schema_is_named_with_what_may_be_meant(given, message):
    with pytest.raises(UserError, match=message):
        load.from_config_dict(ConfigDict(nest(given)))


def test_flat_and_nested_say_the_same():
    nested = {'a': 1, 'b': {'c': 2, 'd': {'e': None}}}
    assert flatten(nested) == {'a': 1, 'b.c': 2, 'b.d.e': None}
    assert nest(flatten(nested)) == nested
    for clash in ({'a': 1, 'a.b': 2}, {'a.b': 2, 'a': 1}):
        with pytest.raises(ValueError, match='a'):
            nest(clash)


@pytest.fixture
def changes(monkeypatch):
    """Versions that the schema has after the present one."""

    def change(*later):
        monkeypatch.setattr(upgrade, 'CHANGES', [*upgrade.CHANGES, *later])

    return change


def test_a_config_of_version_1_means_what_it_meant():
    """Where this fails for a field that is new, gone or renamed, append a `Change` to
    `upgrade.CHANGES`; the golden file stays as it is."""
    stored = json.loads(VERSION_1.read_text('utf-8'))
    assert stored['schema_version'] == 1
    assert load.from_dict(upgrade.upgrade(stored)) == ExperimentConfig()


def test_a_field_that_did_not_exist_has_the_value_of_what_was_done(changes):
    stored = load.to_store(ExperimentConfig().to_dict())
    del stored['train']['on_nonfinite']
    changes(Change(added={'train.on_nonfinite': 'skip'}))
    assert load.from_dict(upgrade.upgrade(stored)).train.on_nonfinite == 'skip'
    # One that the present version made says itself what it did.
    present = ExperimentConfig().to_dict()
    assert upgrade.upgrade(load.to_store(present)) == present
    assert load.to_store(present)['schema_version'] == upgrade.present_version()


def test_a_renamed_field_and_a_renamed_value_are_read(changes):
    stored = load.to_store(ExperimentConfig().to_dict())
    stored['train']['updates'] = stored['train'].pop('steps')
    stored['model']['norm'] = 'layers(epsilon=0.1)'
    changes(
        Change(renamed={'train.updates': 'train.steps'}),
        Change(values={'model.norm': {'layers': 'layer'}}),
    )
    config = load.from_dict(upgrade.upgrade(stored))
    assert config.train.steps == 100_000
    assert config.model.norm == 'layer(epsilon=0.1)'


def test_a_field_that_is_gone_is_named_with_what_took_its_place(changes):
    changes(
        Change(renamed={'train.updates': 'train.steps'}),
        Change(removed={'train.skip': Removed(False, 'use train.on_nonfinite=skip')}),
    )
    with pytest.raises(UserError, match='train.updates.*: its name is now train.steps'):
        load.from_config_dict(ConfigDict({'train': {'updates': 3}}))
    with pytest.raises(UserError, match='train.skip.*: use train.on_nonfinite=skip'):
        load.from_config_dict(ConfigDict({'train': {'skip': True}}))
    argv = ['--config=wmt_small', '--config.train.updates=3']
    with pytest.raises(UserError, match="'train.updates': its name is now train.steps"):
        flags.parse(flags.Parser('test'), argv)


def test_a_removed_field_counts_only_where_it_did_what_is_no_more(changes):
    stored = load.to_store(ExperimentConfig().to_dict() | {'skip': False})
    changes(Change(removed={'skip': Removed(False, 'use train.on_nonfinite=skip')}))
    assert load.from_dict(upgrade.upgrade(stored)) == ExperimentConfig()
    with pytest.raises(UserError, match='skip=True is no more: use train.on_nonfinite'):
        upgrade.upgrade(stored | {'skip': True})


@pytest.mark.parametrize(
    ('version', 'message'),
    [
        (
            None,
            'from before configs had a schema_version, .*its environment.json names',
        ),
        (99, 'its schema_version is 99, and this code knows no later one than'),
        (0, 'schema_version must be a whole number from 1, not 0'),
        (True, 'schema_version must be a whole number from 1, not True'),
        ('1', 'schema_version must be a whole number from 1, not 1'),
    ],
)
def test_a_version_that_cannot_be_read_is_one_line(version, message, tmp_path):
    stored = ExperimentConfig().to_dict() | {'schema_version': version}
    (tmp_path / 'config.json').write_text(json.dumps(stored))
    for read in (directory.read_config, trained_run.open_trained, report.read_run):
        with pytest.raises(UserError, match=message) as error:
            read(tmp_path)
        assert 'config.json: ' in str(error.value) and '\n' not in str(error.value)


def test_a_stored_config_of_another_shape_is_one_line_after_a_change(changes):
    changes(Change(added={'train.new': 1}))
    stored = ExperimentConfig().to_dict() | {'train': 3, 'schema_version': 1}
    with pytest.raises(UserError, match='train of train.new is a value|train is a sec'):
        upgrade.upgrade(stored)


# The run of test_run, on its text: what one has compiled is there for the other.
SMALL = small_runs.SHORT


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    return small_runs.write_text(tmp_path_factory.mktemp('text'), val=4, news=3)


def train(patch, text, workdir):
    """Runs `experiments.run` here, and counts how often it builds a model."""
    fields = SMALL | {'data': small_runs.source(text)}
    built = []
    make = build.model
    with patch.context() as inner:
        inner.setattr(build, 'model', lambda *x: built.append(x) or make(*x))
        small_runs.train(workdir, *small_runs.flags(fields))
    return len(built)


@pytest.fixture(scope='module')
def whole(text, cache, tmp_path_factory):
    """A run of the present version, and how often a model was built for it."""
    workdir = tmp_path_factory.mktemp('runs') / 'whole'
    with pytest.MonkeyPatch.context() as patch:
        built = train(patch, text, workdir)
        yield workdir, built


@pytest.fixture
def older(whole, tmp_path, changes):
    """The same run as it was before the schema had the field `train.on_nonfinite`."""
    workdir = tmp_path / 'older'
    shutil.copytree(whole[0], workdir)
    config = json.loads((workdir / 'config.json').read_text())
    assert config['schema_version'] == upgrade.present_version()
    del config['train']['on_nonfinite']
    (workdir / 'config.json').write_text(json.dumps(config))
    changes(Change(added={'train.on_nonfinite': 'stop'}))
    return workdir


@pytest.mark.slow
def test_a_start_builds_the_model_once(whole):
    assert whole[1] == 1


def translated(monkeypatch, capsys, workdir):
    with tempfile.TemporaryFile() as file, monkeypatch.context() as patch:
        file.write(b'the dog sees a cat .\n')
        file.seek(0)
        patch.setattr(sys, 'stdin', file)
        patch.setattr(sys, 'argv', ['translate', f'--workdir={workdir}', '--scores'])
        capsys.readouterr()
        translate.main()
    return capsys.readouterr().out


def test_a_run_from_before_a_field_opens_reports_and_translates(
    whole, older, monkeypatch, capsys
):
    present = trained_run.open_trained(whole[0])
    stored = json.loads((older / 'config.json').read_text())
    assert stored['schema_version'] < upgrade.present_version()
    assert trained_run.open_trained(older).config == present.config
    assert report.read_run(older)['config'] == flatten(present.config.to_dict())
    output = translated(monkeypatch, capsys, older)
    assert output == translated(monkeypatch, capsys, whole[0])
    assert output.count('\n') == 1


def test_a_run_from_before_a_field_resumes(whole, older, text, monkeypatch, capsys):
    expected = json.loads((older / 'result.json').read_text())
    (older / 'result.json').unlink()
    shutil.rmtree(older / 'checkpoints' / '12')
    assert train(monkeypatch, text, older) == 1
    assert 'resuming at step 8' in capsys.readouterr().out
    result = json.loads((older / 'result.json').read_text())
    assert result['step'] == 12
    assert result['parameters_sha256'] == expected['parameters_sha256']


def test_a_run_from_before_schemas_is_refused_in_a_line(whole, tmp_path, capsys):
    stored = json.loads((whole[0] / 'config.json').read_text())
    del stored['schema_version']
    (tmp_path / 'config.json').write_text(json.dumps(stored))
    with pytest.raises(UserError, match='from before configs had a schema_version'):
        directory.check(tmp_path, ExperimentConfig().to_dict())


def test_fields_that_do_not_fit_each_other_are_refused_by_name():
    config = ExperimentConfig()
    train_config = dataclasses.replace(config.train, steps=0, epochs=0)
    with pytest.raises(UserError, match='train.steps=0 and train.epochs=0'):
        check.check_config(dataclasses.replace(config, train=train_config))
    model = ModelConfig(num_heads=7)
    with pytest.raises(UserError, match='model.d_model=512 cannot be divided among'):
        check.check_config(dataclasses.replace(config, model=model))
