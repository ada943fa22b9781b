"""Tests that Flax's interceptors, captures and perturbations work in any order."""

import functools
import gc
import weakref

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from flaxformer_lite import generate, introspection, make_batch
from flaxformer_lite.config import build
from flaxformer_lite.feed_forward.base import FeedForward

BATCH = make_batch([[4, 5, 6, 1], [7, 1]], [[5, 4, 1], [8, 9, 1]])


def made(architecture, **sizes):
    """Returns a model and variables without zeros."""
    sizes |= {'d_model': 8, 'num_layers': 1, 'num_heads': 2}
    model = build.model({'architecture': architecture, **sizes}, 12)
    init = jax.jit(model.init)
    variables = init(jax.random.key(0), BATCH['source'], BATCH['inputs'])
    return model, jax.tree.map(lambda x: x + 0.1, variables)


def logits(model, variables, **options):
    return model.apply(variables, BATCH['source'], BATCH['inputs'], **options)


def halve(of, args, kwargs, context):
    y = of(*args, **kwargs)
    is_call = context.method_name == '__call__'
    if is_call and isinstance(context.module, FeedForward | nn.Embed):
        return y / 2
    return y


def halved_down(variables):
    """Returns variables for which a plain call equals a call under `halve`."""
    flat = traverse_util.flatten_dict(variables)
    changed = {
        path: x / 2 if 'feed_forward' in path and 'down' in path else x
        for path, x in flat.items()
    }
    return traverse_util.unflatten_dict(changed)


def plain(model, variables):
    return logits(model, variables)


def patched(model, variables):
    with nn.intercept_methods(halve):
        return logits(model, variables)


def captured(model, variables):
    y, written = logits(
        model, variables, capture_intermediates=True, mutable=['intermediates']
    )
    assert '__call__' in str(jax.tree.map(lambda x: 0, written))
    return y


def recorded(model, variables):
    found = introspection.record(model, variables, BATCH)
    return found.weights['decoder'][0]


def generated(model, variables):
    return generate(model, variables, BATCH['source'], max_length=3).scores_BN


def generated_patched(model, variables):
    with nn.intercept_methods(halve):
        return generated(model, variables)


LOOKS = {
    look.__name__: look
    for look in (plain, patched, captured, recorded, generated, generated_patched)
}


def in_every_order(names):
    """Returns a sequence in which each name follows each name, itself included."""
    for i, name in enumerate(names):
        yield from (name, name)
        for other in names[i + 1 :]:
            yield from (other, name)


@pytest.mark.slow
def test_hooks_give_the_same_in_any_order():
    parts = made('decoder_only', d_ff=16)
    alone = {}
    for changes in (True, False):
        jax.clear_caches()
        for name, look in LOOKS.items():
            if ('patched' in name) == changes:
                alone[name] = look(*parts)
    for name in in_every_order(list(LOOKS)):
        again = LOOKS[name](*parts)
        np.testing.assert_array_equal(again, alone[name], err_msg=name)
    np.testing.assert_array_equal(alone['captured'], alone['plain'])
    assert np.all(alone['generated'] != alone['generated_patched'])


def test_what_a_recurrent_decoder_gives_is_captured():
    model, variables = made('recurrent')
    found, expected = (
        jax.jit(functools.partial(look, model))(variables) for look in (captured, plain)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_interceptor_reaches_into_blocks_and_a_plain_call_forgets_it():
    model, variables = made('encoder_decoder', d_ff=16, residual='pre_norm')
    before = plain(model, variables)
    changed = patched(model, variables)
    expected = plain(model, halved_down(variables))
    np.testing.assert_allclose(changed, expected, atol=1e-5)
    assert np.abs(changed - before).max() > 1e-3
    np.testing.assert_array_equal(plain(model, variables), before)


class Halver:
    """Halves feed-forward networks and counts the calls that it intercepts."""

    def __init__(self):
        self.calls = 0

    def __eq__(self, other):
        return True

    __hash__ = None  # as of a dataclass

    def intercept(self, of, args, kwargs, context):
        self.calls += 1
        return halve(of, args, kwargs, context)


def intercepted(model, variables, interceptor):
    with nn.intercept_methods(interceptor):
        return generate(model, variables, [[4, 5, 1]], 'greedy', max_length=2)


def test_generate_is_traced_once_for_each_interceptor_and_keeps_none_alive():
    model, variables = made('encoder_decoder')
    one, other = Halver(), Halver()
    intercepted(model, variables, one.intercept)
    calls = one.calls
    intercepted(model, variables, one.intercept)
    intercepted(model, variables, other.intercept)
    assert one.calls == other.calls == calls > 0

    def halve_too(of, args, kwargs, context):
        return halve(of, args, kwargs, context)

    intercepted(model, variables, halve_too)
    references = weakref.ref(one), weakref.ref(halve_too)
    del one, halve_too
    gc.collect()
    assert [reference() for reference in references] == [None, None]
