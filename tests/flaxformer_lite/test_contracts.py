"""Contracts of each component and of random combinations.

The default tests cover all components by a few models whose decoder layers differ. The
nightly run tests each component in a model of its own, and random combinations in
several forms.
"""

import functools
import itertools
import random
import re

import jax
import numpy as np
import pytest
import tiny
from draws import SEED
from flax.traverse_util import flatten_dict
from tiny import slow

from flaxformer_lite import remat
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.ops import use_reference
from flaxformer_lite.testing import forms, models, require, rows
from flaxformer_lite.training.train_step import init_variables

BASE = ModelConfig()
# Components that multiply float32 matrices in a model of 16 bits.
FLOAT32_PRODUCTS = {
    'architecture': ('recurrent',),
    'attention': ('additive', 'bilinear', 'linear', 'talking_heads'),
    'feed_forward': ('mixture',),
    'positions': ('shaw', 'transformer_xl'),
    'residual': ('hyper', 'mhc'),
}


def components(field):
    """Returns the components of a field but for the paper's."""
    return [name for name in tiny.here(field) if name != str(BASE.get(field))]


# Tested by default in reference tests alone. They differ from other components by a
# function of each number, of each position, or of each pair of positions.
ALIKE = {
    'architecture': ('multi_token',),
    'attention': ('additive', 'bilinear', 'cosine', 'relu', 'sigmoid'),
    'feed_forward': ('gated_tanh', 'geglu', 'gelu', 'linear', 'silu', 'squared_relu'),
    'norm': ('dynamic_tanh', 'identity', 'rms', 'scale'),
    'positions': ('alibi', 'none', 'sinusoidal_t2t'),
    'residual': (
        'deepnorm',
        'layer_scale',
        'mhc',
        'ngpt',
        'none',
        'rezero',
        'sandwich',
    ),
}
OTHER_MODELS = [
    {'attention': '[linear, local]', 'num_layers': 1, 'decoder.num_layers': 2},
    {
        'architecture': 'decoder_only',
        'residual': 'hyper',
        'positions': 'transformer_xl',
        'num_layers': 1,
    },
    {
        'architecture': 'prefix_lm',
        'projections': False,
        'd_k': None,
        'd_v': None,
        'positions': 'rotary',
        'num_layers': 1,
    },
    {'architecture': 'recurrent', 'num_layers': 1},
    tiny.UNEQUAL
    | {
        'architecture': 'encoder_decoder(reads="mixture")',
        'decoder.d_model': 10,
        'decoder.num_layers': 1,
        'tie': 'decoder',
        'dense': 'lora',
        'positions': 't5',
    },
]
LAYER_KINDS = ('norm', 'residual', 'feed_forward', 'block')


def distinct(field):
    """Returns the components of a field that the default tests cover."""
    return [x for x in components(field) if x not in ALIKE.get(field, ())]


def joined(names):
    return f'[{", ".join(names)}]'


def layered_models(depth=4):
    """Yields the fields of decoders of up to four kinds of layers.

    Layer i has entry i of each list.
    """
    elsewhere = ('linear', 'local', 'hyper')
    others = {
        kind: [x for x in distinct(kind) if x not in elsewhere] or [str(BASE.get(kind))]
        for kind in LAYER_KINDS
    }
    endless = {kind: itertools.cycle(names) for kind, names in others.items()}
    elsewhere += ('rotary', 't5', 'transformer_xl')
    positions = [x for x in distinct('positions') if x not in elsewhere]
    attentions = [*distinct('attention'), 'forgetting']
    attentions = [name for name in attentions if name not in elsewhere]
    for start in range(0, len(attentions), depth):
        names = attentions[start : start + depth]
        fields = {
            'architecture': 'decoder_only',
            'attention': joined(names),
            'num_layers': len(names),
        }
        for kind, values in endless.items():
            fields[kind] = joined(itertools.islice(values, len(names)))
        fields['positions'] = next(filter(fits(fields), [*positions, 'none']))
        positions = [name for name in positions if name != fields['positions']]
        yield fields
    for name in positions:
        yield {'architecture': 'decoder_only', 'positions': name, 'num_layers': 1}


def fits(fields):
    """Returns a test of whether a model can be built with positions."""

    def is_possible(name):
        try:
            tiny.model(**fields | {'positions': name})
        except ValueError:
            return False
        return True

    return is_possible


COVERING_MODELS = [*layered_models(), *OTHER_MODELS]
CHEAPEST_MODEL = OTHER_MODELS[2]


def name_of(fields):
    """Returns the specs in a model, without spaces."""
    specs = [str(x) for x in fields.values() if isinstance(x, str)]
    return '-'.join(specs).replace(' ', '')


def test_default_models_contain_every_component():
    def contained(kind):
        values = [
            value
            for fields in COVERING_MODELS
            for field, value in fields.items()
            if field.rpartition('.')[2] == kind
        ]
        return set(re.findall(r'\w+', ' '.join(map(str, values))))

    for field in variants.fields():
        if not field.endswith('init'):
            kind = field.rpartition('.')[2]
            assert set(distinct(kind)) <= contained(kind), field


def each_component():
    """Yields the base model, and each component in it or in a decoder alone."""
    yield {}
    for field in variants.fields():
        if not field.startswith(('decoder.', 'cross.', 'init')):
            for name in components(field):
                is_whole = field in ('attention', 'architecture')
                yield {field: name} | (
                    {} if is_whole else {'architecture': 'decoder_only'}
                )
    yield {'attention': 'forgetting', 'architecture': 'decoder_only'}
    yield {'decoder.attention': 'forgetting'}
    yield {'block': 'value_residual(learned=True)', 'num_layers': 2}
    yield {'architecture': 'encoder_decoder(reads="mixture")', 'num_layers': 2}
    yield dict(projections=False, d_k=None, d_v=None, positions='rotary')
    yield tiny.UNEQUAL | {'decoder.d_model': 10, 'tie': 'decoder'}


SINGLE_MODELS = [dict(num_layers=1) | fields for fields in each_component()]
every_model = pytest.mark.parametrize(
    'fields',
    [
        *(
            pytest.param(
                x,
                id=name_of(x),
                marks=[pytest.mark.ci] * (x != CHEAPEST_MODEL),
            )
            for x in COVERING_MODELS
        ),
        *(slow(x, id=f'alone {name_of(x)}') for x in SINGLE_MODELS),
    ],
)


@every_model
def test_contracts_hold_for_every_component(fields):
    model = tiny.model(**fields)
    found = models.examine(model, tiny.all_variables(model))
    require(models.findings(found), str(fields))
    assert model == tiny.model(**fields)


@pytest.mark.ci
@every_model
def test_layers_have_separate_parameters(fields):
    """Layers of equal components have parameters of equal names and shapes."""
    # The first layers of a recurrent network read vectors of another width.
    first = 1 if fields.get('architecture') == 'recurrent' else 0
    period = fields.get('decoder.num_layers', fields['num_layers'])
    depth = {'num_layers': first + 2 * period}
    if 'decoder.num_layers' in fields:
        depth['decoder.num_layers'] = first + 2 * period
    model = tiny.model(**fields | depth)
    init = functools.partial(init_variables, model, jax.random.key(0))
    tree = flatten_dict(jax.eval_shape(init)['params'], sep='/')

    def shapes_of_layer(i):
        """Returns the shapes of a layer, with `*` for its number."""
        number = re.compile(f'(?<=layer_|coder_|.cell_){i}(?=/)')
        found = {name: x.shape for name, x in tree.items() if number.search(name)}
        return {number.sub('*', name): shape for name, shape in found.items()}

    last = first + 2 * period - 1
    assert shapes_of_layer(last)
    assert shapes_of_layer(last) == shapes_of_layer(last - period)
    # Other parameters belong to the whole model, or to a stack by their name.
    of_stacks = [x for x in tree if re.match('(en|de)coder/(?!.*_[0-9]/)', x)]
    names = {name.split('/')[1] for name in of_stacks}
    ends = {'embedding_norm', 'initial', 'final'}
    assert names <= ends | {'positions', 'cross_attention'}


@pytest.mark.ci
@pytest.mark.parametrize(
    ('fields', 'dtype'),
    [
        *(pytest.param(x, 'bfloat16', id=name_of(x)) for x in COVERING_MODELS),
        pytest.param({'num_layers': 1}, 'float16', id='float16'),
        *(
            slow(x, dtype, id=f'{dtype} alone {name_of(x)}')
            for x in SINGLE_MODELS
            for dtype in ('bfloat16', 'float16')
        ),
    ],
)
def test_products_of_16_bits_accumulate_in_float32(fields, dtype):
    variables = tiny.all_variables(tiny.model(**fields))
    products = forms.products(tiny.model(**fields, dtype=dtype), variables)
    require([forms.float32_sums(products)], str(fields))
    operands = {dtype for product in products for dtype in product.operands}
    assert dtype in operands
    has_exception = any(
        set(re.findall(r'\w+', str(value)))
        & set(FLOAT32_PRODUCTS.get(field.rpartition('.')[2], ()))
        for field, value in fields.items()
    )
    assert ('float32' in operands) == has_exception


@pytest.mark.ci
@pytest.mark.parametrize(('dtype', 'fraction'), [('bfloat16', 8), ('float16', 11)])
@pytest.mark.parametrize(
    'overrides',
    [{}, slow({'attention': 'linear'}), slow({'feed_forward': 'mixture'})],
    ids=str,
)
def test_16_bits_round_operands_and_leave_logits_float32(overrides, dtype, fraction):
    fields = dict(num_layers=1, architecture='decoder_only') | overrides
    exact_model = tiny.model(**fields)
    variables = tiny.all_variables(exact_model)
    model = tiny.model(**fields, dtype=dtype)
    found = models.examine(model, variables, quick=True).logits
    exact = models.examine(exact_model, variables, quick=True).logits
    assert (found != np.float32(found.astype(dtype))).any()
    row = 0, rows.PLAIN
    error = np.abs(found - exact)[row].max() / np.std(exact[row])
    # Some ten roundings between tokens and logits.
    assert 0 < error < 10 * 2**-fraction * 4


OTHER_FIELDS = {
    'num_layers': (1, 2),
    'tie': ('all', 'decoder', 'source_target', 'none'),
    'attention_bias': (False, True),
    'output_bias': (False, True),
    'norm_embeddings': (False, True),
    'scale_logits': (False, True),
    # A high cap hardly changes logits.
    'logit_cap': (None, 50.0),
    'num_kv_heads': (None, 1),
    'share_layers': (None, None, 1),
    'continuous_positions': (False, True),
    'merged_attention': (False, False, True),
    'decoder.d_model': (None, None, 10),
    'scale_embeddings': (False, True),
    'dtype': ('float32', 'bfloat16', 'float16'),
    'd_v': (3, 4),
    'decoder.num_layers': (None, 2),
    'decoder.num_heads': (None, 1, 4),
    'decoder.num_kv_heads': (None, 1, 2),
    'decoder.d_k': (None, 6),
    'decoder.d_v': (None, 5),
    'decoder.d_ff': (None, 20),
    'cross.num_heads': (None, 1, 6),
    'cross.num_kv_heads': (None, 1, 2),
    'cross.d_k': (None, 8),
    'cross.d_v': (None, 2),
}
# Patterns of all messages that may reject a combination.
REJECTIONS = (
    r"model\.cross\.positions='(alibi|learned|sinusoidal|sinusoidal_t2t|t5)' has no "
    'effect in cross-attention',
    'positions: (Linear|Blockwise|Flash) attention has no scores that these positions',
    r'model\.tie=(all|source_target) shares source and target embeddings, but d_m',
    r'model\.merged_attention=True shares matrices between source and target, but d_m',
    r'model\.(decoder\.)?positions: (Shaw|TransformerXL) adds scores by dist',
    r'model\.[\w.]*num_kv_heads=2 does not divide [\w.]*num_heads=1',
    r'num_heads=\d+ must be even, because Differential(V2)? attention pairs its',
    r'model\.projections=False: this attention combines query heads, so its output is',
    r'model\.decoder\.attention: Forgetting supports only attention to ear',
    'attention: Flash needs dtype=bfloat16 and d_v = d_k, a multiple of 8',
)
NUM_DRAWS = 100
# The default test has a small model.
SMALL = {'architecture': 'decoder_only', 'num_layers': 1, 'share_layers': None}


@functools.cache
def values_to_draw():
    return {field: tiny.here(field) for field in variants.fields()} | OTHER_FIELDS


def random_model(number, overrides):
    """Returns the first combination of a random series that can be built."""
    rng = random.Random(f'{SEED}/{number}')
    while True:
        fields = {field: rng.choice(x) for field, x in values_to_draw().items()}
        fields |= overrides
        try:
            model = tiny.model(**fields)
            return fields, model, tiny.all_variables(model)
        except ValueError as error:
            is_documented = any(re.match(text, str(error)) for text in REJECTIONS)
            assert is_documented, f'{described(number, fields)}: {error}'


def described(number, fields):
    """Returns a line that reproduces a failing case."""
    changed = {k: x for k, x in fields.items() if str(x) != str(BASE.get(k))}
    return f'TEST_SEED={SEED}, number {number}: {changed}'


def scanned(fields, model, variables):
    return forms.examine_scanned(tiny.model(**fields, scan_layers=True), variables)


def rematerialized(fields, model, variables):
    rng = random.Random(described(0, fields))
    policy = rng.choice([remat.BLOCKS, *remat.POLICIES])
    if fields['architecture'] == 'recurrent':
        policy = remat.NONE
    return models.examine(model.with_remat(policy), variables)


def on_reference_operations(fields, model, variables):
    with use_reference():
        return models.examine(model, variables)


FORMS = (scanned, rematerialized, on_reference_operations)


@pytest.mark.ci
@pytest.mark.parametrize(
    ('number', 'overrides'),
    [(0, SMALL), *(slow(i, {}, id=str(i)) for i in range(NUM_DRAWS))],
)
def test_contracts_hold_for_random_combinations_in_any_form(number, overrides):
    fields, model, variables = random_model(number, overrides)
    dtype, form = fields['dtype'], FORMS[(SEED + number) % len(FORMS)]
    found = models.examine(model, variables)
    findings = models.findings(found, dtype, all_counts=False)
    other = form(fields, model, variables)
    findings.append(models.same(form.__name__, other, found, dtype))
    require(findings, described(number, fields))
