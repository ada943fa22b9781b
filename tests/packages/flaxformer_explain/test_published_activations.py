"""Values inside of published families against those of Transformers.

goldens/make_inside.py recorded them.
"""

import jax
import numpy as np
import pytest
from published import GOLDENS, golden_of

import flaxformer_checkpoints
import flaxformer_lite
from flaxformer_explain import explanations

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ('bart', 'umt5')]


@pytest.mark.ci
@pytest.mark.parametrize('name', ['t5', *SLOW])
def test_streams_attention_heads_and_lens_match_transformers(name):
    model, variables = flaxformer_checkpoints.from_pretrained(GOLDENS / name)
    golden = golden_of(name)
    batch = flaxformer_lite.make_batch(golden['source'], golden['labels'], model=model)

    @jax.jit
    def inspect(variables):
        values = flaxformer_lite.record(model, variables, batch).values
        return values, explanations.logit_lens(model, variables, batch)

    values, lens_LBTV = inspect(variables)
    with np.load(GOLDENS / name / 'inside.npz') as file:
        inside = dict(file)
    is_token = {
        stack: np.asarray(batch[f'{side}_segments']) > 0
        for stack, side in {'encoder': 'source', 'decoder': 'target'}.items()
    }
    np.testing.assert_allclose(
        lens_LBTV[:, is_token['decoder']],
        inside.pop('lens')[:, is_token['decoder']],
        atol=3e-5,
    )
    kinds = {key.rpartition('/')[2] for key in inside}
    assert kinds == {'resid_pre', 'pattern', 'z', 'result'}
    for key, expected in inside.items():
        value = np.asarray(values[key])
        assert value.shape == expected.shape, key
        if key.endswith('pattern'):
            value, expected = value.swapaxes(1, 2), expected.swapaxes(1, 2)
        valid_BT = is_token[key.partition('/')[0]]
        np.testing.assert_allclose(
            value[valid_BT], expected[valid_BT], atol=3e-5, err_msg=key
        )
