"""Tests of Flax's interceptors, captures and perturbations, in any order."""

import functools
import gc
import weakref

import flax
import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from flaxformer_lite import generate, introspection, make_batch
from flaxformer_lite.config import builder
from flaxformer_lite.decoding import Greedy
from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.interception import interceptor_keys

# Releases of Flax, without patches, whose private stack of interceptors was checked.
CHECKED_RELEASES = ('0.11', '0.12')


def test_flax_is_a_release_whose_interceptors_were_checked():
    release = flax.__version__.rpartition('.')[0]
    assert release in CHECKED_RELEASES, (
        f'Flax {release}: check flax.linen.module._global_interceptor_stack, then add '
        'the release to CHECKED_RELEASES.'
    )


def test_keys_are_those_of_active_interceptors_from_the_innermost():
    def call(next_fun, args, kwargs, context):
        return next_fun(*args, **kwargs)

    def other(next_fun, args, kwargs, context):
        return next_fun(*args, **kwargs)

    assert interceptor_keys() == ()
    with nn.intercept_methods(call):
        (key,) = interceptor_keys()
        with nn.intercept_methods(other):
            innermost, outer = interceptor_keys()
            assert outer == key != innermost
        assert interceptor_keys() == (key,)
    with nn.intercept_methods(other):
        assert interceptor_keys() != (key,)
    with pytest.raises(RuntimeError), nn.intercept_methods(call):
        raise RuntimeError
    assert interceptor_keys() == ()


BATCH = make_batch([[4, 5, 6, 1], [7, 1]], [[5, 4, 1], [8, 9, 1]])


def model_and_variables(architecture, **sizes):
    """Returns a model and variables without zeros."""
    sizes |= {'d_model': 8, 'num_layers': 1, 'num_heads': 2}
    model = builder.build({'architecture': architecture, **sizes}, 12)
    init = jax.jit(model.init)
    variables = init(jax.random.key(0), BATCH['source'], BATCH['inputs'])
    return model, jax.tree.map(lambda x: x + 0.1, variables)


def plain(model, variables, **options):
    return model.apply(variables, BATCH['source'], BATCH['inputs'], **options)


def halve(next_fun, args, kwargs, context):
    y = next_fun(*args, **kwargs)
    is_call = context.method_name == '__call__'
    if is_call and isinstance(context.module, FeedForward | nn.Embed):
        return y / 2
    return y


def with_half_outputs(variables):
    """Returns variables for which a plain call equals a call under `halve`."""
    flat = traverse_util.flatten_dict(variables)
    changed = {
        path: x / 2 if 'feed_forward' in path and 'down' in path else x
        for path, x in flat.items()
    }
    return traverse_util.unflatten_dict(changed)


def patched(model, variables):
    with nn.intercept_methods(halve):
        return plain(model, variables)


def captured(model, variables):
    options = dict(capture_intermediates=True, mutable=['intermediates'])
    y, written = plain(model, variables, **options)
    assert '__call__' in str(jax.tree.map(lambda x: 0, written))
    return y


def recorded(model, variables):
    return introspection.record(model, variables, BATCH).weights['decoder'][0]


def generated(model, variables):
    return generate(model, variables, BATCH['source'], max_length=3).scores


def generated_patched(model, variables):
    with nn.intercept_methods(halve):
        return generated(model, variables)


CALLS = {
    call.__name__: call
    for call in (plain, patched, captured, recorded, generated, generated_patched)
}


def in_every_order(names):
    """Returns a sequence in which each name follows each name, itself included."""
    for i, name in enumerate(names):
        yield from (name, name)
        for other in names[i + 1 :]:
            yield from (other, name)


@pytest.mark.slow
def test_hooks_give_the_same_results_in_any_order():
    opened = model_and_variables('decoder_only', d_ff=16)
    alone = {}
    for changes in (True, False):
        jax.clear_caches()
        for name, call in CALLS.items():
            if ('patched' in name) == changes:
                alone[name] = call(*opened)
    for name in in_every_order(list(CALLS)):
        again = CALLS[name](*opened)
        np.testing.assert_array_equal(again, alone[name], err_msg=name)
    np.testing.assert_array_equal(alone['captured'], alone['plain'])
    assert np.all(alone['generated'] != alone['generated_patched'])


@pytest.mark.slow
def test_results_of_a_recurrent_decoder_are_captured():
    model, variables = model_and_variables('recurrent')
    found, expected = (
        jax.jit(functools.partial(call, model))(variables) for call in (captured, plain)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_interceptor_reaches_into_blocks_and_later_calls_are_plain():
    model, variables = model_and_variables('decoder_only', d_ff=16, residual='pre_norm')
    before = plain(model, variables)
    changed = patched(model, variables)
    expected = plain(model, with_half_outputs(variables))
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

    def intercept(self, next_fun, args, kwargs, context):
        self.calls += 1
        return halve(next_fun, args, kwargs, context)


@pytest.mark.ci
def test_generate_is_traced_once_per_interceptor_and_keeps_none_alive():
    model, variables = model_and_variables('decoder_only')

    def run(interceptor):
        with nn.intercept_methods(interceptor):
            return generate(model, variables, [[4, 5, 1]], Greedy(), max_length=2)

    one, other = Halver(), Halver()
    run(one.intercept)
    calls = one.calls
    run(one.intercept)
    run(other.intercept)
    assert one.calls == other.calls == calls > 0

    def halve_too(next_fun, args, kwargs, context):
        return halve(next_fun, args, kwargs, context)

    run(halve_too)
    references = weakref.ref(one), weakref.ref(halve_too)
    del one, halve_too
    gc.collect()
    assert [reference() for reference in references] == [None, None]
