"""What weight decay draws to 0, by every variant's parameters."""

import functools

import jax
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict

from experiments.optimizers.optimizer import decays
from flaxformer_lite.config import variants
from flaxformer_lite.training.train_step import init_variables


@functools.cache
def shapes(**overrides):
    """The shape of each parameter, by path."""
    model = tiny.model(**overrides, num_layers=1)
    first = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    return first['params']


def masks(**overrides):
    """Which parameters decay, by path."""
    return flatten_dict(decays(shapes(**overrides)), sep='/')


# An initialisation has no parameters.
FIELDS = [field for field in variants.FOLDERS if field != 'init']
VARIANTS = [{field: name} for field in FIELDS for name in tiny.here(field)]


@pytest.mark.parametrize('overrides', [*VARIANTS, dict(tie='none')], ids=str)
def test_matrices_and_embeddings_decay_and_nothing_else(overrides):
    found = masks(**overrides)
    decaying = {path for path, is_decaying in found.items() if is_decaying}
    names = ('kernel', 'embedding', 'source_embedding', 'output')
    assert decaying == {path for path in found if path.split('/')[-1] in names}
    assert not [path for path in decaying if 'positions' in path.split('/')]
    sizes = flatten_dict(shapes(**overrides), sep='/')
    assert all(sizes[path].ndim > 1 for path in decaying)


@pytest.mark.parametrize(
    ('overrides', 'own'),
    [
        (dict(attention='bilinear'), ['form']),
        (dict(attention='talking_heads'), ['before', 'after']),
        (
            dict(attention='additive'),
            ['core_attention/query', 'core_attention/key', 'core_attention/energy'],
        ),
        (dict(positions='learned'), ['positions/table']),
        (dict(positions='t5'), ['positions/table']),
        (dict(positions='shaw'), ['positions/key', 'positions/value']),
        (dict(architecture='recurrent'), ['ir/bias', 'hn/bias']),
        (dict(feed_forward='mixture'), ['up/bias', 'down/bias']),
        (dict(), ['scale', 'up/bias']),
        (
            dict(attention_bias=True, output_bias=True, norm_embeddings=True),
            ['query/bias', 'out_proj/bias', 'output_bias', 'embedding_norm/scale'],
        ),
    ],
    ids=str,
)
def test_what_sets_a_level_or_says_where_tokens_stand_stays(overrides, own):
    found = masks(**overrides)
    for name in own:
        some = [
            is_decaying for path, is_decaying in found.items() if path.endswith(name)
        ]
        assert some and not any(some), name


@pytest.mark.parametrize(
    'overrides', [dict(tie='none'), dict(architecture='recurrent')]
)
def test_what_decays_begins_around_zero(overrides):
    model = tiny.model(**overrides, num_layers=1)
    first = jax.jit(lambda: init_variables(model, jax.random.key(0)))()
    is_decaying = masks(**overrides)
    for path, x in flatten_dict(first['params'], sep='/').items():
        if is_decaying[path]:
            error = np.std(x) / np.sqrt(x.size)
            assert abs(np.mean(x)) < 5 * error, path
