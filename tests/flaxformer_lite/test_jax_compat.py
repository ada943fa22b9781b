"""Tests of compatibility with older versions of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import jax_compat


def test_unknown_compile_options_are_omitted():
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    known = {'xla_backend_optimization_level': 0}
    unknown = {'xla_cpu_no_such_option': 1, 'xla_gpu_no_such_option': True}
    assert jax_compat.compile_with(lowered, known | unknown)(1.0) == 2.0


def test_invalid_value_of_a_compile_option_is_an_error():
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match='xla_backend_optimization'):
        jax_compat.compile_with(lowered, {'xla_backend_optimization_level': 'high'})


def test_float64_is_enabled_within_its_context():
    with jax_compat.enable_x64(True):
        assert jnp.asarray(np.float64(1)).dtype == jnp.float64
    assert jnp.asarray(np.float64(1)).dtype == jnp.float32


def test_inner_jaxprs_are_those_of_loops_and_branches():
    def loop(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: jax.lax.cond(True, *f, y), x)

    f = jnp.sin, jnp.cos
    (scan,) = jax.make_jaxpr(loop)(1.0).eqns
    (body,) = jax_compat.jaxprs_in_params(scan.params)
    branches = jax_compat.jaxprs_in_params(body.eqns[-1].params)
    names = {eqn.primitive.name for jaxpr in branches for eqn in jaxpr.eqns}
    assert names == {'sin', 'cos'}
