"""The contracts on variants thrown together at random: what holds for each must hold
for all."""

import functools
import os
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.training.batch import source_and_inputs

NUMBER = 100
FIRST = 4  # of them, which the default run takes
SEED = int(os.environ.get('COMBINATIONS_SEED', random.randrange(10**6)))
OTHERS = {
    'tie': ('all', 'decoder', 'source_target', 'none'),
    'attention_bias': (False, True),
    'output_bias': (False, True),
    'norm_embeddings': (False, True),
    'scale_logits': (False, True),
    'logit_cap': (None, 5.0),
    'num_kv_heads': (None, 1),
    'parallel': (False, True),
    'continuous_positions': (False, True),
    'merged_attention': (False, False, True),
    'decoder_d_model': (None, None, 10),
    'scale_embeddings': (False, True),
    'dtype': ('float32', 'bfloat16'),
    'd_v': (3, 4),
    'decoder_num_layers': (None, 2),
    'decoder_num_heads': (None, 1, 4),
    'decoder_num_kv_heads': (None, 1, 2),
    'decoder_d_k': (None, 6),
    'decoder_d_v': (None, 5),
    'decoder_d_ff': (None, 20),
    'cross_num_heads': (None, 1, 6),
    'cross_num_kv_heads': (None, 1, 2),
    'cross_d_k': (None, 8),
    'cross_d_v': (None, 2),
}
# All that may be refused of what is drawn here: each a whole message.
REFUSALS = (
    r"model\.cross_positions='(alibi|learned|sinusoidal|sinusoidal_t2t|t5)' does "
    'nothing in cross-attention: choose what acts on queries and keys, such as rotary '
    'or shaw, or none',
    '(linear|blockwise|flash) attention holds no scores for these positions to act on: '
    'choose positions that act on embeddings, queries and keys, or attention=softmax',
    r'model\.tie=(all|source_target) shares embeddings of source and target, which '
    r'have model\.d_model=12 and model\.decoder_d_model=10: set model\.tie to decoder '
    'or none',
    r'model\.merged_attention=True shares its matrices between source and target, '
    r'which have model\.d_model=12 and model\.decoder_d_model=10: make them equal',
    r'model\.(decoder_)?positions=shaw adds to scores by distances, which keys of the '
    r'source have none of with model\.merged_attention=True: choose .*',
    r'model\.\w*num_kv_heads=2 does not divide model\.\w*num_heads=1',
    r'flash attention needs model\.dtype=bfloat16 and d_v = d_k, a multiple of '
    '8, not .*',
)


@functools.cache
def choices():
    return {field: tiny.here(field) for field in variants.fields()} | OTHERS


def combination(number):
    """The first of a random series that can be built; what cannot is refused as
    documented."""
    rng = random.Random(f'{SEED}/{number}')
    while True:
        drawn = {field: rng.choice(values) for field, values in choices().items()}
        try:
            model = tiny.model(**drawn, num_layers=1)
            return drawn, model, tiny.all_variables(model)
        except ValueError as error:
            documented = any(re.fullmatch(text, str(error)) for text in REFUSALS)
            assert documented, f'{named(number, drawn)}: {error}'


def named(number, drawn):
    """What a failure must print, so that it can be had again."""
    base = ModelConfig()
    changed = {field: x for field, x in drawn.items() if x != getattr(base, field)}
    return f'COMBINATIONS_SEED={SEED}, number {number}: {changed}'


@functools.partial(jax.jit, static_argnums=0)
def examined(model, variables):
    """Logits of sentences alone, of the same in one row, and word by word; and
    gradients.

    Whole sentences are divided among devices, and what goes word by word is not.
    """
    rows = tiny.batch([*([pair] for pair in tiny.PAIRS), tiny.PAIRS])
    source, inputs = rows['source'][:3], rows['inputs'][:3]
    devices = Mesh(np.array(jax.devices()), 'batch')
    rows = jax.lax.with_sharding_constraint(
        rows, NamedSharding(devices, PartitionSpec('batch'))
    )
    b, t = inputs.shape

    def logits(params):
        y_BTV = model.apply(variables | {'params': params}, *source_and_inputs(rows))
        return jnp.where(rows['labels'][..., None] != 0, y_BTV, 0).sum(), y_BTV

    gradient, whole = jax.grad(logits, has_aux=True)(variables['params'])
    state = model.apply(variables, source, method='prefill')

    def step(state, now):
        i, word_B = now
        # Two hypotheses that go on from themselves, the second with another sentence's
        # words.
        word_BN = jnp.stack([word_B, jnp.roll(word_B, 1)], 1)
        slot = jnp.arange(2 * t)
        visible_NS = (slot[None] % 2 == jnp.arange(2)[:, None]) & (slot[None] // 2 <= i)
        beam = BeamState(
            step=i,
            parent_BN=jnp.broadcast_to(jnp.arange(2)[None], (b, 2)),
            visible_BNS=jnp.broadcast_to(visible_NS[None], (b, 2, 2 * t)),
        )
        arguments = word_BN, state, beam
        found, state = model.apply(variables, *arguments, method='decode_step')
        return state, found[:, 0]

    state = state.allocate(2, t)
    _, steps = jax.lax.scan(step, state, (jnp.arange(t), inputs.T))
    return whole, jnp.moveaxis(steps, 0, 1), gradient


@pytest.mark.parametrize(
    'number',
    [
        pytest.param(i, marks=[pytest.mark.slow] if i >= FIRST else [])
        for i in range(NUMBER)
    ],
)
def test_contracts_hold_for_any_combination(number):
    drawn, model, variables = combination(number)
    print(named(number, drawn))  # pytest shows it on failure
    whole, steps, gradient = jax.device_get(examined(model, variables))
    assert np.isfinite(whole).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))
    # Sums in another order differ by float32's rounding, and in bfloat16 fall on either
    # side of it.
    precision = 4e-6 if drawn['dtype'] == 'float32' else 2**-5
    atol, start = precision * np.abs(whole).max() + 1e-5, 0
    for row, (_, labels) in enumerate(tiny.PAIRS):
        alone = whole[row, : len(labels)]
        packed = whole[3, start : start + len(labels)]
        start += len(labels)
        np.testing.assert_allclose(packed, alone, atol=atol, err_msg='packed')
        np.testing.assert_allclose(
            steps[row, : len(labels)], alone, atol=atol, err_msg='steps'
        )
