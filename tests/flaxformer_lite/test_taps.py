"""Taps: their names, the order of observers, and what a trace depends on."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn

import flaxformer_lite
from flaxformer_lite import taps
from flaxformer_lite.interventions import intervene
from flaxformer_lite.masks import AttentionContext
from flaxformer_lite.shapes import fold_groups
from flaxformer_lite.training.batch import source_and_inputs

X_BTD = jnp.ones((1, 2, 3))


class Inner(nn.Module):
    def __call__(self, x_BTD):
        x_BTD = taps.tap(self, 'own', x_BTD)
        return taps.tap(self, '../outer', x_BTD)


class Outer(nn.Module):
    @nn.compact
    def __call__(self, x_BTD):
        x_BTD = Inner(name='a')(Inner(name='b')(x_BTD))
        with taps.unobserved():
            return Inner(name='hidden')(x_BTD)


class Log:
    """Observer of some names, which it logs in order."""

    def __init__(self, *names):
        self.offered, self.names, self.calls = [], names, []

    def wants(self, name):
        self.offered.append(name)
        return name in self.names

    def __call__(self, value, where):
        self.calls.append((where.name, where.axes, float(value[0, 0, 0])))
        return value + 1


def test_names_are_relative_to_the_path_of_the_module():
    log = Log('b/own', 'outer')
    with taps.observed_by(log):
        y_BTD = Outer().apply({}, X_BTD)
    assert log.offered == ['b/own', 'outer', 'a/own', 'outer']
    assert log.calls == [('b/own', 'BTD', 1), ('outer', 'BTD', 2), ('outer', 'BTD', 3)]
    np.testing.assert_array_equal(y_BTD, 4)
    assert taps.tap(Outer(), 'own', X_BTD) is X_BTD


def test_observers_of_outer_contexts_come_first():
    first, second = Log('a/own'), Log('a/own')
    with taps.observed_by(first), taps.observed_by(second):
        Outer().apply({}, X_BTD)
    assert (first.calls, second.calls) == ([('a/own', 'BTD', 1)], [('a/own', 'BTD', 2)])


def test_trace_keys_depend_on_observers_without_keeping_them_alive():
    assert taps.trace_keys() == ()
    one, other = Log(), Log()
    with taps.observed_by(one):
        keys = taps.trace_keys()
        with taps.observed_by(other):
            assert len(taps.trace_keys()) == 2
    with taps.observed_by(one):
        assert taps.trace_keys() == keys
    with taps.observed_by(other):
        assert taps.trace_keys() != keys
    reference = weakref.ref(one)
    del one
    gc.collect()
    assert reference() is None


def test_scores_of_grouped_queries_are_observed_by_head():
    scores_BHTS = tiny.normal32(2, 4, 3, 5)

    class Folded(nn.Module):
        def __call__(self, x_BHTS):
            by_query = jnp.swapaxes(x_BHTS, 1, 2)
            folded = jnp.swapaxes(fold_groups(by_query, 2), 1, 2)
            context = AttentionContext(jnp.zeros((2, 3), jnp.int32), jnp.ones(()))
            with taps.in_stack(True, context, None):
                return taps.tap(self, 'scores', folded, 'BHTS')

    observed = []

    def double(value, where):
        observed.append(value)
        return 2 * value

    with intervene({'scores': double}):
        found = Folded().apply({}, scores_BHTS)
    np.testing.assert_array_equal(observed[0], scores_BHTS)
    np.testing.assert_array_equal(found, 2 * Folded().apply({}, scores_BHTS))


def test_experts_and_recurrent_cells_are_unobserved():
    for fields in ({'feed_forward': 'mixture'}, {'architecture': 'recurrent'}):
        model = tiny.model(num_layers=1, **fields)
        record = functools.partial(flaxformer_lite.record, model)
        variables = tiny.all_variables(model)
        values = jax.eval_shape(record, variables, tiny.pairs_batch()).values
        assert 'logits' in values
        assert not any('mlp' in name and 'mlp_out' not in name for name in values)
        assert len(values) == 1 or model.stacks()


def test_scan_rejects_observers():
    model = tiny.model(num_layers=1, scan_layers=True)
    arguments = source_and_inputs(tiny.pairs_batch())
    variables = tiny.all_variables(model)
    message = 'interventions: the model scans its layers'
    with pytest.raises(ValueError, match=message), intervene({}):
        jax.eval_shape(model.apply, variables, *arguments)
