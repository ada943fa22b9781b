"""Tests of the configs of families, which fields describe and which they reject."""

import itertools
import json
import random
import shutil

import pytest
from draws import SEED
from published import GOLDENS, NAMES, family_of

import flaxformer_checkpoints
from flaxformer_checkpoints.loading import folder, load
from flaxformer_lite import validation
from flaxformer_lite.config import builder


def test_every_family_has_a_golden():
    files = {family_of(GOLDENS / name).__module__.rpartition('.')[2] for name in NAMES}
    assert files == set(load.FAMILIES.names())


@pytest.mark.ci
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
            text = written.get('encoder', written)
            text = text.get('text_config', text)
            assert text['layer_types'] == list(kinds)


def with_layers(config, layers):
    stacks = {'encoder', 'decoder', 'text_config'} & config.keys()
    if not stacks:
        return {**config, **layers}
    return {**config, **{x: with_layers(config[x], layers) for x in stacks}}


@pytest.mark.parametrize('size', ['270m', '4b'])
def test_published_gemma_3_states_layers_in_older_fields(size):
    config = folder.read_config(GOLDENS / 'gemma3')
    del config['rope_parameters'], config['layer_types']
    config |= dict(rope_theta=1_000_000.0, rope_local_base_freq=20_000.0)
    config |= dict(num_hidden_layers=6, rope_scaling=None)
    period, scale = 6, ''
    if size == '4b':
        scaling = {'factor': 8.0, 'rope_type': 'linear'}
        config |= dict(rope_scaling=scaling, sliding_window_pattern=3)
        period, scale = 3, ', scale=8.0'
    described = family_of(GOLDENS / 'gemma3').read(config, []).config
    near, far = 'rotary(max_wavelength=20000.0)', 'rotary(max_wavelength=1000000.0'
    expected = f'[{", ".join([near] * (period - 1))}, {far}{scale})]'
    assert str(described.positions) == expected
    kinds = [entry.name for entry in described.attention.entries]
    assert sorted(kinds) == ['local'] * (period - 1) + ['softmax']


@pytest.mark.parametrize('name', ['gemma3', 't5gemma2'])
@pytest.mark.parametrize('section', ['rope_parameters', 'rope_scaling'])
def test_rope_type_may_have_its_older_name(name, section):
    config = folder.read_config(GOLDENS / name)
    scaling = {'type': 'linear', 'factor': 8.0}
    own = {'full_attention': scaling} if section == 'rope_parameters' else scaling
    fields = {'rope_parameters': None, section: own}
    config = with_layers(config, {'rope_theta': 30_000.0, **fields})
    described = family_of(GOLDENS / name).read(config, []).config
    for positions in (described.positions, described.value('positions', 'decoder')):
        assert 'rotary(max_wavelength=30000.0, scale=8.0)' in str(positions)


def set_field(path, names, value):
    config = json.loads((path / folder.CONFIG).read_text('utf-8'))
    section = config
    for name in names[:-1]:
        section = section[name]
    section[names[-1]] = value
    (path / folder.CONFIG).write_text(json.dumps(config), encoding='utf-8')


LINEAR = {'type': 'linear', 'factor': 2.0}
ROPE_TYPE = 'decoder.rope_parameters.full_attention.rope_type'


# A family, a field with an unsupported value, and the field that the error names.
@pytest.mark.parametrize(
    ('name', 'field', 'value', 'problem'),
    [
        ('marian', 'normalize_before', True, 'normalize_before=True'),
        ('marian', 'encoder_layerdrop', 0.2, 'encoder_layerdrop=0.2'),
        ('marian', 'vocab_size', 16, 'padding=16'),
        ('t5gemma', 'encoder.hidden_activation', 'relu', 'encoder.hidden_activation'),
        ('t5gemma2', 'decoder.hidden_size', 14, 'decoder.hidden_size=14'),
        ('t5gemma2', ROPE_TYPE, 'yarn', "decoder.rope_parameters has rope_type='yarn'"),
        ('t5gemma', 'encoder.rope_parameters', LINEAR, "encoder.rope_type='linear'"),
        ('t5gemma', 'decoder.rope_scaling', LINEAR, "decoder.rope_type='linear'"),
    ],
)
def test_unsupported_fields_of_a_config_are_rejected(
    name, field, value, problem, tmp_path
):
    path = shutil.copytree(GOLDENS / name, tmp_path / name)
    set_field(path, field.split('.'), value)
    with pytest.raises(ValueError, match='.') as caught:
        flaxformer_checkpoints.from_pretrained(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and problem in message and '\n' not in message


def fields_of(config, names=()):
    for name, value in config.items():
        yield (*names, name)
        if isinstance(value, dict):
            yield from fields_of(value, (*names, name))


VALUES = [None, True, False, 0, -1, 3, 2.5, 1e999, float('nan'), 10**30, '', 'x']
VALUES += [[], ['x'], [3], {}, {'x': 1}, 'full_attention', [None]]


@pytest.mark.ci
@pytest.mark.parametrize(
    'count', [20, pytest.param(None, marks=pytest.mark.slow)], ids=['drawn', 'all']
)
@pytest.mark.parametrize('name', NAMES)
def test_any_value_of_a_field_is_used_or_rejected_in_one_line(name, count, tmp_path):
    path = shutil.copytree(GOLDENS / name, tmp_path / name)
    text = (path / folder.CONFIG).read_text('utf-8')
    changes = [(field, x) for field in fields_of(json.loads(text)) for x in VALUES]
    if count:
        changes = random.Random(f'{SEED}/{name}').sample(changes, count)
    for field, value in changes:
        (path / folder.CONFIG).write_text(text, encoding='utf-8')
        set_field(path, field, value)
        case = f'{".".join(field)}={validation.quote(value)}, seed {SEED}'
        try:
            builder.build(*flaxformer_checkpoints.describe_pretrained(path))
        except ValueError as error:
            assert str(error).isprintable() and len(str(error)) < 500, case
        except Exception as error:
            raise AssertionError(f'{case} gives {error!r}') from error
