"""Values inside of published families against those of Transformers.

goldens/make_inside.py recorded them.
"""

import functools

import jax
import numpy as np
import pytest
import tiny
from published import GOLDENS, golden_of

import flaxformer_checkpoints
import flaxformer_lite
from flaxformer_explain import explanations
from flaxformer_lite import interventions
from flaxformer_lite.training.batch import source_and_inputs

NAMES = ['bart', 't5', 'umt5']
every_name = pytest.mark.parametrize('name', NAMES)


@functools.cache
def loaded(name):
    return flaxformer_checkpoints.from_pretrained(GOLDENS / name)


def batch_of(name):
    model, _ = loaded(name)
    golden, tokens = golden_of(name), model.special_tokens
    return flaxformer_lite.make_batch(
        golden['source'], golden['labels'], tokens.bos, tokens.padding
    )


def inside_of(name):
    with np.load(GOLDENS / name / 'inside.npz') as file:
        return dict(file)


@functools.cache
def values_of(name):
    model, variables = loaded(name)
    return tiny.record(model, variables, batch_of(name)).values


@every_name
def test_the_logit_lens_is_that_of_the_hidden_states_of_transformers(name):
    batch = batch_of(name)
    lens = jax.jit(explanations.logit_lens, static_argnums=0)
    found_LBTV = np.asarray(lens(*loaded(name), batch))
    expected_LBTV = inside_of(name)['lens']
    valid_BT = np.asarray(batch['target_segments']) > 0
    assert found_LBTV.shape == expected_LBTV.shape
    np.testing.assert_allclose(
        found_LBTV[:, valid_BT], expected_LBTV[:, valid_BT], atol=3e-5
    )


@every_name
def test_streams_weights_and_results_of_heads_are_those_of_transformers(name):
    batch, values = batch_of(name), values_of(name)
    inside = inside_of(name)
    kinds = {key.rpartition('/')[2] for key in inside} - {'lens'}
    assert kinds == {'resid_pre', 'pattern', 'z', 'result'}
    for key in inside.keys() - {'lens'}:
        side = 'source' if key.startswith('encoder') else 'target'
        valid_BT = np.asarray(batch[f'{side}_segments']) > 0
        found, expected = np.asarray(values[key]), inside[key]
        if key.endswith('pattern'):
            found, expected = found.swapaxes(1, 2), expected.swapaxes(1, 2)
        assert found.shape == expected.shape, key
        np.testing.assert_allclose(
            found[valid_BT], expected[valid_BT], atol=3e-5, err_msg=key
        )


@every_name
def test_identity_interventions_change_no_bit(name):
    model, variables = loaded(name)
    batch = batch_of(name)

    def same(value, where):
        return value

    @jax.jit
    def logits(variables, given):
        if given is None:
            return model.apply(variables, *source_and_inputs(batch))
        with flaxformer_lite.intervene(given):
            return model.apply(variables, *source_and_inputs(batch))

    given = interventions.as_pytree(dict.fromkeys(values_of(name), same))
    plain = logits(variables, None)
    np.testing.assert_array_equal(logits(variables, given), plain)
