"""Tests of the contracts on each component and on random combinations."""

import functools
import random
import re

import jax
import numpy as np
import pytest
import tiny
from draws import SEED
from flax.traverse_util import flatten_dict

from flaxformer_lite import remat
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.ops import use_reference
from flaxformer_lite.testing import forms, models, require, rows
from flaxformer_lite.training.train_step import init_variables

# Slow tests. These differ from other variants by a function of each number, of each
# position, or of each pair of positions, which reference tests compare with a formula.
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


SLOW = pytest.mark.slow


def every_case():
    """Returns the base and each component with the base of the other kinds.

    Components other than attention run in a decoder alone, which halves the time.
    """
    base = ModelConfig()
    yield pytest.param({}, id='base')
    for field in variants.fields():
        # Those of one attention are the same files; how matrices begin has laws of its
        # own.
        if field.startswith(('decoder.', 'cross.', 'init')):
            continue
        for name in tiny.here(field):
            if name != base.get(field):
                marks = SLOW if name in ALIKE.get(field, ()) else []
                fields = {field: name}
                if field not in ('attention', 'architecture'):
                    fields['architecture'] = 'decoder_only'
                yield pytest.param(fields, id=f'{field}={name}', marks=marks)
    for fields in (
        {'attention': 'forgetting', 'architecture': 'decoder_only'},
        {'decoder.attention': 'forgetting'},
        {'block': 'value_residual(learned=True)', 'num_layers': 2},
        {'architecture': 'encoder_decoder(reads="mixture")', 'num_layers': 2},
    ):
        field, text = next(iter(fields.items()))
        yield pytest.param(fields, id=f'{field}={text}')
    yield pytest.param(
        dict(projections=False, d_k=None, d_v=None, positions='rotary'),
        id='no projections',
    )
    yield pytest.param(
        tiny.UNEQUAL | {'decoder.d_model': 10, 'tie': 'decoder'}, id='unequal stacks'
    )


every_variant = pytest.mark.parametrize('overrides', list(every_case()))


@every_variant
def test_contracts_hold_for_every_file(overrides):
    model = tiny.model(**dict(num_layers=1) | overrides)
    found = models.examine(model, tiny.all_variables(model))
    require(models.findings(found), str(overrides))
    assert model == tiny.model(**dict(num_layers=1) | overrides)


OTHERS = {
    'num_layers': (1, 2),
    'tie': ('all', 'decoder', 'source_target', 'none'),
    'attention_bias': (False, True),
    'output_bias': (False, True),
    'norm_embeddings': (False, True),
    'scale_logits': (False, True),
    # Wide, so that logits are about as large as what they are computed of.
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
# All that may be refused of what is drawn here: each a whole message.
REFUSALS = (
    r"model\.cross\.positions='(alibi|learned|sinusoidal|sinusoidal_t2t|t5)' has "
    'no effect in cross-attention. Choose positions that act on queries and keys, such '
    'as rotary or shaw, or none.',
    '(linear|blockwise|flash) attention has no scores that these positions could '
    'change. Choose positions that act on embeddings, queries and keys, or '
    'attention=softmax.',
    r'model\.tie=(all|source_target) shares source and target embeddings, but '
    r'model\.d_model=12 differs from model\.decoder\.d_model=10\. Set model\.tie to '
    'decoder or none.',
    r'model\.merged_attention=True shares matrices between source and target, but '
    r'model\.d_model=12 differs from model\.decoder\.d_model=10\. Make them equal\.',
    r'model\.(decoder\.)?positions=(shaw|transformer_xl) adds scores by distance, '
    r'which source keys do not have with model\.merged_attention=True\. Choose '
    '.*',
    r'model\.[\w.]*num_kv_heads=2 does not divide model\.[\w.]*num_heads=1',
    r'differential(_v2)? attention pairs its (query )?heads, so their number must be '
    r'even, not 1\. '
    r'Change model\.num_heads, or that of the decoder or of cross-attention\.',
    r'model\.projections=False: this attention combines query heads, so its output is '
    r'narrower than d_model\. Set it to True\.',
    r"model\.decoder\.attention='forgetting' supports only attention to earlier tokens "
    r'of the same text\. Leave model\.merged_attention=True out\.',
    r'flash attention needs model\.dtype=bfloat16 and d_v = d_k, a multiple of '
    '8, not .*',
)
NUMBER = 100
FIRST = 1  # of them, which the default run takes, in a form that the seed chooses


@functools.cache
def choices():
    return {field: tiny.here(field) for field in variants.fields()} | OTHERS


def combination(number):
    """Returns the first combination of a random series that can be built."""
    rng = random.Random(f'{SEED}/{number}')
    while True:
        drawn = {field: rng.choice(values) for field, values in choices().items()}
        try:
            model = tiny.model(**drawn)
            return drawn, model, tiny.all_variables(model)
        except ValueError as error:
            documented = any(re.fullmatch(text, str(error)) for text in REFUSALS)
            assert documented, f'{named(number, drawn)}: {error}'


def named(number, drawn):
    """Returns the line that reproduces a failing case."""
    base = ModelConfig()
    changed = {field: x for field, x in drawn.items() if x != base.get(field)}
    return f'TEST_SEED={SEED}, number {number}: {changed}'


def scanned(drawn, model, variables):
    return forms.examine_scanned(tiny.model(**drawn, scan_layers=True), variables)


def rematerialised(drawn, model, variables):
    choice = random.Random(named(0, drawn)).choice([remat.BLOCKS, *remat.POLICIES])
    if drawn['architecture'] == 'recurrent':
        choice = remat.NONE
    return models.examine(model.with_remat(choice), variables)


def on_references(drawn, model, variables):
    with use_reference():
        return models.examine(model, variables)


FORMS = (scanned, rematerialised, on_references)


@pytest.mark.parametrize(
    'number',
    [pytest.param(i, marks=[SLOW] if i >= FIRST else []) for i in range(NUMBER)],
)
def test_contracts_hold_for_any_combination_and_any_form_of_it(number):
    drawn, model, variables = combination(number)
    dtype, form = drawn['dtype'], FORMS[(SEED + number) % len(FORMS)]
    found = models.examine(model, variables)
    again = form(drawn, model, variables)
    findings = models.findings(found, dtype, all_counts=False)
    findings.append(models.same(form.__name__, again, found, dtype))
    require(findings, named(number, drawn))


# What has maps of its own, in float32.
FLOAT32_MAPS = {
    'architecture': ('recurrent',),
    'attention': ('additive', 'bilinear', 'linear', 'talking_heads'),
    'feed_forward': ('mixture',),
    'positions': ('shaw', 'transformer_xl'),
}


def in_dtype(dtype, overrides):
    fields = dict(num_layers=1) | overrides
    variables = tiny.all_variables(tiny.model(**fields))
    return tiny.model(**fields, dtype=dtype), variables


# Norms and residual connections multiply no matrices.
WITH_PRODUCTS = [
    x for x in every_case() if not {'norm', 'residual'} & x.values[0].keys()
]


def in_both(case):
    """Returns the case in bfloat16 and float16; float16 is slow except for the base."""
    slow = [*case.marks, SLOW] if case.values[0] else case.marks
    for dtype, marks in (('bfloat16', case.marks), ('float16', slow)):
        yield pytest.param(*case.values, dtype, id=f'{case.id}-{dtype}', marks=marks)


@pytest.mark.parametrize(
    ('overrides', 'dtype'), [x for case in WITH_PRODUCTS for x in in_both(case)]
)
def test_products_of_16_bits_are_summed_in_float32(overrides, dtype):
    products = forms.products(*in_dtype(dtype, overrides))
    require([forms.float32_sums(products)], str(overrides))
    operands = {dtype for product in products for dtype in product.operands}
    assert dtype in operands
    has_float32_maps = any(
        value in FLOAT32_MAPS.get(field, ()) for field, value in overrides.items()
    )
    assert ('float32' in operands) == has_float32_maps


@pytest.mark.parametrize(
    ('overrides', 'dtype', 'fraction'),
    [
        ({}, 'bfloat16', 8),
        ({}, 'float16', 11),
        ({'attention': 'linear'}, 'bfloat16', 8),
        ({'feed_forward': 'mixture'}, 'bfloat16', 8),
        pytest.param({'attention': 'linear'}, 'float16', 11, marks=pytest.mark.slow),
        pytest.param(
            {'feed_forward': 'mixture'}, 'float16', 11, marks=pytest.mark.slow
        ),
    ],
)
def test_16_bits_round_operands_and_leave_logits_float32(overrides, dtype, fraction):
    model, variables = in_dtype(dtype, overrides)
    model_in_float32 = tiny.model(num_layers=1, **overrides)
    found = models.examine(model, variables, quick=True).logits
    exact = models.examine(model_in_float32, variables, quick=True).logits
    assert (found != np.float32(found.astype(dtype))).any()
    row = 0, rows.PLAIN
    error = np.abs(found - exact)[row].max() / np.std(exact[row])
    # Some ten roundings between tokens and logits.
    assert 0 < error < 10 * 2**-fraction * 4


@every_variant
def test_layers_have_weights_of_their_own(overrides):
    # The first layers of a recurrent network read vectors of another width.
    last = 2 if overrides.get('architecture') == 'recurrent' else 1
    depths = dict(num_layers=last + 1)
    if 'decoder.num_layers' in overrides:
        depths['decoder.num_layers'] = last + 1
    model = tiny.model(**overrides | depths)
    init = functools.partial(init_variables, model, jax.random.key(0))
    tree = flatten_dict(jax.eval_shape(init)['params'], sep='/')

    def of_layer(i):
        """Returns the shapes of a layer, with `*` for its number."""
        number = re.compile(f'(?<=layer_|coder_|.cell_){i}(?=/)')
        found = {name: x.shape for name, x in tree.items() if number.search(name)}
        return {number.sub('*', name): shape for name, shape in found.items()}

    assert of_layer(last)
    assert of_layer(last) == of_layer(last - 1)
    # All else stands at the top, or belongs to a stack by its name.
    of_stacks = [x for x in tree if re.match('(en|de)coder/(?!.*_[012]/)', x)]
    rest = {name.split('/')[1] for name in of_stacks}
    ends = {'embedding_norm', 'initial', 'final'}
    assert rest <= ends | {'positions', 'cross_attention'}
