"""Tests that all input is either used or rejected in one line."""

import functools
import random

import pytest
from draws import SEED

from experiments.command_line import flags
from experiments.config import check, components, load, schema
from experiments.costs.ledger import ledger
from experiments.errors import UserError, line
from flaxformer_lite import validation
from flaxformer_lite.config import variants

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


def answer(overrides, described):
    """Returns the error for a config with these overrides, or '' if it is valid."""
    arguments = [f'--config.{field}={value}' for field, value in overrides.items()]
    try:
        parser = flags.Parser('test')
        settings = flags.parse(parser, ['--config=wmt_base', *arguments])[1]
        check.check_overrides(settings.config, settings.overrides)
        if described:
            ledger(settings.config)
        else:
            components.build(settings.config)
    except UserError as error:
        return line(error)
    except Exception as error:
        given = {field: validation.quote(value) for field, value in overrides.items()}
        raise AssertionError(
            f'{given} gives {type(error).__name__}: {error}'
        ) from error
    return ''


UNSECTIONED = ('data', 'filters', 'init_', 'objective', 'tokenizer')


def is_a_line(text):
    return text.isprintable() and len(text) < 1100


# An eighth of the values is drawn for each field.
shares = pytest.mark.parametrize(
    'share', [1 / 8, pytest.param(1.0, marks=pytest.mark.slow)], ids=['drawn', 'all']
)


def drawn(values, share, name):
    return random.Random(f'{SEED}/{name}').sample(values, round(share * len(values)))


@shares
@pytest.mark.parametrize('field', schema.fields())
def test_any_value_of_any_field_is_used_or_refused_in_a_line(field, share):
    for value in drawn([*NUMBERS, *TEXTS], share, field):
        # A model of one layer is traced in a fraction of the time.
        text = answer({'model.num_layers': 1} | {field: value}, described=False)
        assert is_a_line(text), f'seed {SEED}: {validation.quote(value)}'
        # By its name, or by that of the other field that it does not fit.
        named = '.' in text.split(':')[0] or text.startswith(UNSECTIONED)
        assert not text or named, text


@pytest.mark.parametrize(
    'field',
    [name for name, f in schema.fields().items() if validation.limit_of(f.kind)],
)
def test_no_number_is_beyond_all_bounds(field):
    kind = schema.fields()[field].kind
    limit = validation.limit_of(kind)
    if not isinstance(limit, validation.Range):
        return
    beyond = ['-1', 'nan', '1e999', '-1e999']
    # 1e20 is a float32 like another.
    if float not in validation.types_of(kind):
        beyond += ['100000000000000000000']
    for value in beyond:
        assert answer({field: value}, described=False), (field, value)


ARGUMENTS = [
    (field, name, argument)
    for field in ('architecture', 'attention', 'positions', 'norm', 'residual')
    + ('feed_forward', 'init')
    for name in variants.names(field)
    for argument in variants.FOLDERS[field].find(name).parameters
]


@functools.cache
def small_config():
    parser = flags.Parser('test')
    given = [f'--config.{name}={value}' for name, value in SMALL.items()]
    return flags.parse(parser, ['--config=wmt_base', *given])[1].config


def answer_to_spec(field, text, traced):
    """Like `answer`, but faster, for a spec in a field of the model."""
    config = small_config().to_dict()
    config['model'][field] = text
    try:
        config = load.from_dict(config)
        components.build(config)
        if traced:
            ledger(config)
    except UserError as error:
        return line(error)
    return ''


@pytest.mark.parametrize(
    ('field', 'text', 'words'),
    [
        ('residual', 'ngpt(step=3e38)', ''),
        ('architecture', 'multi_token(heads=2147483647)', 'at most 1000'),
    ],
)
def test_an_extreme_argument_is_used_or_refused(field, text, words):
    answered = answer_to_spec(field, text, traced=True)
    assert words in answered
    assert bool(words) == bool(answered)


@shares
@pytest.mark.parametrize(('field', 'name', 'argument'), ARGUMENTS)
def test_any_value_of_any_argument_of_a_variant(field, name, argument, share):
    """Traces all numbers, or one number of a third of the arguments by default."""
    literals = [x for x in TEXTS if x not in ('', ' ')]
    where = f'{field}/{name}/{argument}'
    values = drawn([*NUMBERS, *literals], share, where)
    traced = [value for value in values if value in NUMBERS]
    if share < 1:
        is_traced = random.Random(f'{SEED}/{where}/traced').random() < 1 / 3
        traced = traced[:is_traced]
    for value in values:
        spec_text = f'{name}({argument}={value})'
        try:
            text = answer_to_spec(field, spec_text, value in traced)
        except Exception as error:
            shown = f'{validation.quote(spec_text)}, seed {SEED}'
            raise AssertionError(f'{shown} gives {error!r}') from error
        assert is_a_line(text), f'seed {SEED}: {value[:40]}'


def test_the_largest_model_is_described_without_an_array():
    sizes = {'model.d_model': 2**24, 'model.d_ff': 2**24, 'model.num_heads': 2**16}
    sizes |= {'model.d_k': 2**24, 'model.d_v': 2**24, 'model.num_layers': 1}
    sizes |= {'tokenizer': 'words(vocab_size=2147483647)', 'batch.tokens': 2**31 - 1}
    sizes |= {'batch.max_length': 2**20, 'model.positions': 'alibi'}
    assert answer(sizes, described=True) == ''


def test_a_line_is_one_whatever_is_in_it():
    text = line(UserError('a\nb\r\nc\x1b[2J\u2028d\x00\udcff' + 'x' * 5000))
    assert text.startswith('a b c\\x1b[2J d\\x00\\udcff')
    assert is_a_line(text)
