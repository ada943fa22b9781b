"""The contracts on variants thrown together at random: what holds for each must hold
for all."""

import functools
import os
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flaxformer_lite.architectures.base import grow
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite import fields, learning
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.shapes import Path

NUMBER = 100
SEED = int(os.environ.get('COMBINATIONS_SEED', random.randrange(10**6)))
OTHERS = {
    'tie': ('three', 'two', 'none'),
    'num_kv_heads': (None, 1),
    'parallel': (False, True),
    'scale_embeddings': (False, True),
    'dtype': ('float32', 'bfloat16'),
    'd_v': (3, 4),
}


@functools.cache
def choices():
    return {field: tiny.here(field) for field in fields.FOLDERS} | OTHERS


def combination(number):
    """The first of a random series that can be built; what cannot is refused by
    name."""
    rng = random.Random(f'{SEED}/{number}')
    while True:
        drawn = {field: rng.choice(values) for field, values in choices().items()}
        try:
            model = tiny.model(**drawn, num_layers=1)
            return drawn, model, tiny.all_variables(model)
        except ValueError as error:
            assert 'choose' in str(error), f'{drawn}: {error}'


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
        y_BTV = model.apply(variables | {'params': params}, *learning.texts(rows))
        return jnp.where(rows['labels'][..., None] != 0, y_BTV, 0).sum(), y_BTV

    gradient, whole = jax.grad(logits, has_aux=True)(variables['params'])
    memory = model.apply(variables, source, method='start')

    def step(memory, now):
        i, word_B = now
        # Two hypotheses that go on from themselves, the second with another sentence's
        # words.
        word_BN = jnp.stack([word_B, jnp.roll(word_B, 1)], 1)
        slot = jnp.arange(2 * t)
        seen_NS = (slot[None] % 2 == jnp.arange(2)[:, None]) & (slot[None] // 2 <= i)
        parent_BN = jnp.broadcast_to(jnp.arange(2)[None], (b, 2))
        path = Path(i, parent_BN, jnp.broadcast_to(seen_NS[None], (b, 2, 2 * t)))
        found, memory = model.apply(variables, word_BN, memory, path, method='step')
        return memory, found[:, 0]

    _, steps = jax.lax.scan(step, grow(memory, 2, t), (jnp.arange(t), inputs.T))
    return whole, jnp.moveaxis(steps, 0, 1), gradient


@pytest.mark.parametrize('number', range(NUMBER))
def test_contracts_hold_for_any_combination(number):
    drawn, model, variables = combination(number)
    changed = {k: v for k, v in drawn.items() if v != getattr(ModelConfig(), k)}
    print(
        f'COMBINATIONS_SEED={SEED}, number {number}: {changed}'
    )  # pytest shows it on failure
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
