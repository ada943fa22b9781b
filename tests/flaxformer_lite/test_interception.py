"""Tests of the only use of a private name of Flax, for the versions that have it."""

import flax
import pytest
from flax import linen as nn

from flaxformer_lite.interception import interceptor_keys

# The releases, without patches, whose stack of interceptors was read.
READ = ('0.11', '0.12')


def test_flax_is_a_release_whose_interceptors_were_read():
    release = flax.__version__.rpartition('.')[0]
    assert release in READ, (
        f'Flax {release}: check flax.linen.module._global_interceptor_stack, then add '
        'the release to READ.'
    )


def call(of, args, kwargs, context):
    return of(*args, **kwargs)


def other(of, args, kwargs, context):
    return of(*args, **kwargs)


def test_keys_are_those_of_the_active_interceptors_innermost_first():
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
