"""Tests that input is either used or rejected in one line, before anything is written.

`tests/flaxformer_lite/test_build.py` has the table of models that cannot be built, and
`tests/experiments/data/test_sources.py` the one of data.
"""

import functools
import random
import sys

import pytest
from draws import SEED

from experiments import run
from experiments.command_line import flags
from experiments.config import check, components, load, schema
from experiments.costs.ledger import ledger
from experiments.errors import UserError, line
from flaxformer_lite import validation
from flaxformer_lite.config import variants

# Arguments of `experiments.run` → the flag, field or value that the error names.
COMMAND_LINES = [
    ('--workdr=a', "--workdr; did you mean '--workdir'"),
    ('--worker 2', '--worker'),
    ('-x', '-x'),
    ('--noconfig', "--noconfig; did you mean '--config'"),
    ('--confg.model.num_heads=4', "did you mean '--config.model.num_heads'"),
    ('--train.steps=5', "did you mean '--config.train.steps'"),
    ('model.num_heads=4', "'model.num_heads=4'"),
    ('--workdir=', '--workdir: is empty'),
    ('--workdir=gs://b/x', '--workdir: gs://b/x'),
    ('--config', '--config'),
    ('--config=wmt_smal', "did you mean 'wmt_small'"),
    ('--config=nowhere --help', '--config=nowhere'),
    ('--config=' + 'x/' * 5000, 'file not found'),
    # Fields that don't exist
    ('--config.model.num_head=4', "did you mean 'model.num_heads'"),
    ('--config.num_heads=4', "did you mean 'model.num_heads'"),
    ('--config.model.decoder_attention=4', "did you mean 'model.decoder.attention'"),
    ('--config.workdir=x', "did you mean '--workdir'"),
    ('--config.model=4', "'model'"),
    # Values of the wrong type or beyond their range
    ('--config.model.num_heads', 'model.num_heads'),
    ('--noconfig.model.num_heads', 'model.num_heads'),
    ('--config.model.num_heads=-4', 'model.num_heads must be at least 1'),
    ('--config.model.num_heads=abc', 'model.num_heads must be int, from 1'),
    ('--config.train.log_every=a=b:c', 'train.log_every must be int'),
    ('--config.batch.packed=maybe', 'batch.packed must be bool'),
    # Components that don't exist, or whose arguments are wrong
    ('--config.data=tekst', "data: 'tekst'"),
    ('--config.tokenizer=sentencepice', "did you mean 'sentencepiece'"),
    ('--config.tokenizer=sentencepiece(vocab_size=3)', 'tokenizer: vocab_size'),
    ('--config.tokenizer=sentencepiece(model=b"x")', 'tokenizer: unknown argument'),
    ('--config.tokenizer=words(minimum=3)', "tokenizer: unknown argument 'minimum'"),
    ('--config.tokenizer=[bytes,bytes,bytes]', 'tokenizer: '),
    ('--config.tokenizer=[bytes,huggingface]', 'tokenizer: huggingface'),
    ('--config.tokenizer=[bytes,byte]', "tokenizer: 'byte'"),
    ('--config.tokenizer=[bytes,arrays(path="x")]', 'tokenizer: '),
    ('--config.filters=copy', "filters: 'copy'"),
    ('--config.filters=length_ratio(most=0.5)', 'filters: most'),
    ('--config.filters=[', 'filters: '),
    ('--config.objective=noise', "objective: 'noise'"),
    ('--config.objective=denoise(ratio=2)', 'objective: ratio'),
    ('--config.objective=denoise(pieces=())', "objective: unknown argument 'pieces'"),
    ('--config.optimizer.name=muon', "did you mean 'contrib.muon'"),
    ('--config.optimizer.name=sgd(b1=0.5)', "optimizer.name: unknown argument 'b1'"),
    ('--config.optimizer.schedule=noah(warmup=4)', "optimizer.schedule: 'noah'"),
    ('--config.optimizer.schedule=noam(warmup=0)', 'optimizer.schedule: warmup'),
    ('--config.model.decoder.norm=sofmax', "model.decoder.norm: 'sofmax'"),
    ('--config.train.freeze=(', 'train.freeze must be a regular expression'),
    ('--config.train.freeze=encodr', "train.freeze='encodr' matches no parameter"),
    ('--config.train.freeze=.', "train.freeze='.' matches every parameter"),
    # Fields that don't fit each other
    ('--config.train.steps=0', 'train.steps=0 and train.epochs=0'),
    ('--config.model.num_heads=7', 'model.d_model=128'),
    ('--config.tokenizer=[bytes,characters]', 'model.tie=all'),
    (
        '--config.optimizer.name=lion --config.optimizer.b1=0.5',
        'optimizer.b1=0.5 has no effect',
    ),
    ('--config.optimizer.weight_decay=0.1', 'optimizer.weight_decay=0.1'),
    (
        '--config.optimizer.name=lion(b1=0.8) --config.optimizer.weight_decay=0.1',
        'optimizer.weight_decay=0.1',
    ),
    (
        '--config.optimizer.name=contrib.schedule_free_sgd --config.train.ema=0.5',
        'train.ema=0.5',
    ),
    (
        '--config.optimizer.name=contrib.schedule_free_sgd --config.model.init=mu_p',
        'model.init=mu_p',
    ),
]


@pytest.mark.usefixtures('cache')
@pytest.mark.parametrize(('arguments', 'named'), COMMAND_LINES, ids=lambda x: x[:60])
def test_rejected_command_line_is_one_line_and_writes_nothing(
    arguments, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    argv = ['run', '--config=wmt_small', *arguments.split()]
    monkeypatch.setattr(sys, 'argv', argv)
    with pytest.raises(SystemExit) as exit:
        flags.main(run.main)
    assert exit.value.code == 2
    out, error = capsys.readouterr()
    assert out == '' and error.startswith('error: ') and error.count('\n') == 1
    assert named in error
    assert not list(tmp_path.iterdir())


SMALL = {
    'model.num_layers': 1,
    'model.d_model': 12,
    'model.num_heads': 2,
    'model.d_ff': 16,
    'tokenizer': 'sentencepiece(vocab_size=13)',
    'batch.tokens': 64,
    'batch.max_length': 8,
}
NUMBERS = [
    *('-1', '0', '1', '2', '3', '2147483647', '2147483648', '4294967296', '1e999'),
    *('100000000000000000000', '-1e999', 'nan', '1e300', '3e38', '1e-300', '0.9'),
    *('0.99999999999', '1j', '9' * 5000, '0x' + 'f' * 9000),
]
TEXTS = [
    *('', ' ', '(', 'x' * 5000, 'a(' * 10_000, '-' * 50_000 + '1', 'é', '\x00', 'a\nb'),
    *('\udcff', 'None', 'True', '"x"', '[1]', '{}', 'local(**{})', 'none', '\x1b[2J'),
]
UNSECTIONED = ('data', 'filters', 'init_', 'objective', 'tokenizer')
# Fewer values are drawn by default.
shares = pytest.mark.parametrize(
    'share', [1 / 16, pytest.param(1.0, marks=pytest.mark.slow)], ids=['drawn', 'all']
)


def drawn(values, share, name):
    return random.Random(f'{SEED}/{name}').sample(values, round(share * len(values)))


def is_one_line(text):
    return text.isprintable() and len(text) < 1100


def error_of(get_config, text, describe=False):
    """Returns the error for the config that `text` describes, or '' if it is valid."""
    build = ledger if describe else components.build
    try:
        build(get_config())
    except UserError as error:
        return line(error)
    except Exception as error:
        error.add_note(f'seed {SEED}: {validation.quote(text)}')
        raise
    return ''


def parse(overrides):
    arguments = [f'--config.{field}={value}' for field, value in overrides.items()]
    argv = ['--config=wmt_base', *arguments]
    _, settings = flags.parse(flags.Parser('test'), argv)
    check.check_overrides(settings.config, settings.overrides)
    return settings.config


@shares
@pytest.mark.parametrize('field', schema.fields())
def test_any_value_of_any_field_is_used_or_rejected_in_one_line(field, share):
    for value in drawn([*NUMBERS, *TEXTS], share, field):
        # A model of one layer is built in a fraction of the time.
        overrides = {'model.num_layers': 1} | {field: value}
        text = error_of(functools.partial(parse, overrides), value)
        assert is_one_line(text), f'seed {SEED}: {validation.quote(value)}'
        # The error names the field, or another field that the value doesn't fit.
        is_named = '.' in text.split(':')[0] or text.startswith(UNSECTIONED)
        assert not text or is_named, text


ARGUMENTS = [
    (field, name, argument)
    for field in ('architecture', 'attention', 'positions', 'norm', 'residual')
    + ('feed_forward', 'init')
    for name in variants.names(field)
    for argument in variants.FOLDERS[field].find(name).parameters
]


@functools.cache
def small_config():
    return flags.settings('wmt_base', SMALL).config


def with_variant(field, text):
    """Returns a small config without parsing flags, which is faster."""
    config = small_config().to_dict()
    config['model'][field] = text
    return load.from_dict(config)


@pytest.mark.ci
@shares
@pytest.mark.parametrize(('field', 'name', 'argument'), ARGUMENTS)
def test_any_value_of_a_variants_argument_is_used_or_rejected_in_one_line(
    field, name, argument, share
):
    """Traces all numbers, or one number of some of the arguments by default."""
    literals = [x for x in TEXTS if x not in ('', ' ')]
    where = f'{field}/{name}/{argument}'
    values = drawn([*NUMBERS, *literals], share, where)
    traced = [value for value in values if value in NUMBERS]
    if share < 1:
        is_traced = random.Random(f'{SEED}/{where}/traced').random() < 1 / 24
        traced = traced[:is_traced]
    for value in values:
        spec_text = f'{name}({argument}={value})'
        config = functools.partial(with_variant, field, spec_text)
        text = error_of(config, spec_text, describe=value in traced)
        assert is_one_line(text), f'seed {SEED}: {validation.quote(spec_text)}'


@pytest.mark.ci
def test_largest_model_is_described_without_allocating_arrays():
    sizes = {'model.d_model': 2**24, 'model.d_ff': 2**24, 'model.num_heads': 2**16}
    sizes |= {'model.d_k': 2**24, 'model.d_v': 2**24, 'model.num_layers': 1}
    sizes |= {'tokenizer': 'words(vocab_size=2147483647)', 'batch.tokens': 2**31 - 1}
    sizes |= {'batch.max_length': 2**20, 'model.positions': 'alibi'}
    assert error_of(lambda: parse(sizes), 'sizes', describe=True) == ''


def test_control_characters_of_an_error_are_escaped_on_one_line():
    text = line(UserError('a\nb\r\nc\x1b[2J\u2028d\x00\udcff' + 'x' * 5000))
    assert text.startswith('a b c\\x1b[2J d\\x00\\udcff')
    assert is_one_line(text)
