"""Tests that damaged or unsupported checkpoints are rejected in one line.

`from_pretrained` and the command `convert` print the same words and name the file, the
field or the array. The command writes nothing.
"""

import json
import random
import shutil
import sys

import numpy as np
import pytest
from draws import SEED
from published import (
    GOLDENS,
    NAMES,
    change_config,
    change_weights,
    split_weights,
)

import flaxformer_checkpoints
from experiments.command_line import flags
from flaxformer_checkpoints import convert
from flaxformer_checkpoints.loading import folder
from flaxformer_lite import validation
from flaxformer_lite.config import build

ARRAY = 'model.encoder.layers.1.fc1.bias'


@pytest.fixture
def marian(tmp_path):
    path = tmp_path / 'marian'
    shutil.copytree(GOLDENS / 'marian', path)
    tokenizer = GOLDENS.with_name('tokenizers') / 'marian'
    shutil.copytree(tokenizer, path, dirs_exist_ok=True)
    return path


def refusal(path):
    with pytest.raises(ValueError, match='.') as caught:
        flaxformer_checkpoints.from_pretrained(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and '\n' not in message
    return message


def write(file, text):
    return lambda path: (path / file).write_text(text, encoding='utf-8')


def remove(file):
    return lambda path: (path / file).unlink()


def cut(size):
    def damage(path):
        file = path / folder.WEIGHTS
        file.write_bytes(file.read_bytes()[:size])

    return damage


def pickle(path):
    (path / folder.WEIGHTS).rename(path / 'pytorch_model.bin')


def map_weights_to(value):
    def damage(path):
        split_weights(path)
        write(folder.INDEX, json.dumps({'weight_map': value}))(path)

    return damage


def lose_a_part(path):
    split_weights(path)[1].unlink()


def take_arrays_of(name):
    return lambda path: shutil.copy(GOLDENS / name / folder.WEIGHTS, path)


def set_array(value):
    def change(stored):
        stored[ARRAY][2] = value

    return lambda path: change_weights(path, change)


def cast_array(dtype):
    def change(stored):
        stored[ARRAY] = stored[ARRAY].astype(dtype)

    return lambda path: change_weights(path, change)


def lose_array(path):
    change_weights(path, lambda stored: stored.pop(ARRAY))


def set_field(**fields):
    return lambda path: change_config(path, **fields)


# Name → a damage, and words that the error has.
DAMAGES = {
    'no config': (remove('config.json'), ['config.json']),
    'config no JSON': (write('config.json', '{'), ['config.json']),
    'deep config': (write('config.json', '[' * 10**5), ['config.json']),
    'no weights': (remove('model.safetensors'), ['model.safetensors']),
    'pickled weights': (pickle, ['pytorch_model.bin']),
    'half a header': (cut(200), ['model.safetensors']),
    'a pointer to a file': (
        write('model.safetensors', 'version https://git-lfs.github.com/spec/v1\n'),
        ['model.safetensors', 'Git LFS'],
    ),
    'an empty index': (map_weights_to({}), ['index.json', 'weight_map']),
    'a lost part': (lose_a_part, ['model-00002-of-00002.safetensors']),
    'a lost array': (lose_array, [ARRAY]),
    'arrays of another family': (take_arrays_of('t5'), ['missing: ']),
    'NaN': (set_array(np.nan), [ARRAY, 'NaN']),
    'integers': (cast_array(np.int8), [ARRAY, 'int8']),
    'unknown family': (set_field(model_type='bert'), ["model_type='bert'", 'bart']),
}


@pytest.mark.parametrize('name', DAMAGES)
def test_damaged_checkpoints_are_refused_by_library_and_command(
    name, marian, monkeypatch, capsys
):
    damage, words = DAMAGES[name]
    damage(marian)
    message = refusal(marian)
    assert all(word in message for word in words), message

    before = set(marian.parent.rglob('*'))
    workdir = marian.parent / 'run'
    argv = ['convert', str(marian), f'--workdir={workdir}', '--data=grammar']
    monkeypatch.setattr(sys, 'argv', argv)
    with pytest.raises(SystemExit) as exit:
        flags.main(convert.main)
    assert exit.value.code == 2
    assert capsys.readouterr().err == f'error: {message}\n'
    assert set(marian.parent.rglob('*')) == before


LINEAR = {'type': 'linear', 'factor': 2.0}
ROPE_TYPE = 'decoder.rope_parameters.full_attention.rope_type'


# A family, and a field of config.json whose value it does not support.
@pytest.mark.parametrize(
    ('name', 'field', 'value', 'words'),
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
def test_unsupported_fields_of_a_config_are_refused(
    name, field, value, words, tmp_path
):
    path = tmp_path / name
    shutil.copytree(GOLDENS / name, path)
    set_nested(path, field.split('.'), value)
    assert words in refusal(path)


def set_nested(path, names, value):
    config = json.loads((path / folder.CONFIG).read_text('utf-8'))
    place = config
    for name in names[:-1]:
        place = place[name]
    place[names[-1]] = value
    (path / folder.CONFIG).write_text(json.dumps(config), encoding='utf-8')


def fields_of(config, names=()):
    for name, value in config.items():
        yield (*names, name)
        if isinstance(value, dict):
            yield from fields_of(value, (*names, name))


VALUES = [None, True, False, 0, -1, 3, 2.5, 1e999, float('nan'), 10**30, '', 'x']
VALUES += [[], ['x'], [3], {}, {'x': 1}, 'full_attention', [None]]
counts = pytest.mark.parametrize(
    'count', [20, pytest.param(None, marks=pytest.mark.slow)], ids=['drawn', 'all']
)


@counts
@pytest.mark.parametrize('name', NAMES)
def test_any_value_of_a_field_is_used_or_refused_in_one_line(name, count, tmp_path):
    path = tmp_path / name
    shutil.copytree(GOLDENS / name, path)
    text = (path / folder.CONFIG).read_text('utf-8')
    changes = [(field, x) for field in fields_of(json.loads(text)) for x in VALUES]
    if count:
        changes = random.Random(f'{SEED}/{name}').sample(changes, count)
    for field, value in changes:
        write(folder.CONFIG, text)(path)
        set_nested(path, field, value)
        given = f'{".".join(field)}={validation.quote(value)}, seed {SEED}'
        try:
            build.model(*flaxformer_checkpoints.describe_pretrained(path))
        except ValueError as error:
            assert str(error).isprintable() and len(str(error)) < 500, given
        except Exception as error:
            raise AssertionError(f'{given} gives {error!r}') from error


def test_tied_arrays_must_be_equal(marian):
    def untie(stored):
        stored['lm_head.weight'] = stored['model.shared.weight'] + 0

    change_weights(marian, untie)
    flaxformer_checkpoints.from_pretrained(marian)

    def differ(stored):
        stored['lm_head.weight'][3, 3] += 1

    change_weights(marian, differ)
    message = refusal(marian)
    assert 'lm_head.weight' in message and 'model.shared.weight' in message


def test_t5_with_an_untied_output_matrix_names_the_field_to_set(tmp_path):
    path = shutil.copytree(GOLDENS / 't5_untied', tmp_path / 't5')

    def without_shared(stored):
        stored['decoder.embed_tokens.weight'] = stored.pop('shared.weight')

    change_weights(path, without_shared)
    change_config(path, tie_word_embeddings=True, scale_decoder_outputs=...)
    assert 'tie_word_embeddings' in refusal(path)
    change_config(path, tie_word_embeddings=False)
    flaxformer_checkpoints.from_pretrained(path)
