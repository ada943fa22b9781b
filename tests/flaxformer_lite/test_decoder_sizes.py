"""Tests of a decoder with its own depth and sizes.

test_contracts covers decoding, packing and training; test_introspection covers
recording and masking.
"""

import pytest
import tiny
from flax.traverse_util import flatten_dict


def test_a_decoder_of_another_width_reads_the_source_by_its_own():
    d, e = 10, tiny.SIZES['d_model']
    model = tiny.model(decoder__d_model=d, tie='decoder', d_k=None, d_v=None)
    p = flatten_dict(tiny.parameters(model), sep='/')
    assert p['embedding'].shape == (tiny.VOCAB, d)
    assert p['source_embedding'].shape == (tiny.VOCAB, e)
    cross = {
        name: p[f'decoder/layer_0/cross_attention/{name}/kernel'].shape
        for name in ('query', 'key', 'value', 'out_proj')
    }
    h, k = 2, d // 2
    assert cross == dict(
        query=(d, h, k), key=(e, h, k), value=(e, h, k), out_proj=(h, k, d)
    )
    assert p['encoder/layer_0/self_attention/query/kernel'].shape == (e, h, e // h)
    assert p['decoder/layer_0/feed_forward/up/kernel'].shape[0] == d


def test_mu_ps_rates_go_by_the_width_that_a_matrix_reads():
    model = tiny.model(init='mu_p(base=3)', decoder__d_model=6, tie='none', d_k=4)
    cross = 'decoder', 'layer_0', 'cross_attention'
    rates = {
        ('encoder', 'layer_0', 'feed_forward', 'up', 'kernel'): 1 / 4,
        ('decoder', 'layer_0', 'feed_forward', 'up', 'kernel'): 1 / 2,
        (*cross, 'query', 'kernel'): 1 / 2,
        (*cross, 'key', 'kernel'): 1 / 4,
        (*cross, 'value', 'kernel'): 1 / 4,
        (*cross, 'out_proj', 'kernel'): 1 / 2,
        ('embedding',): 2**-0.5,
        ('output',): 2**-0.5,
        ('source_embedding',): 4**-0.5,
    }
    found = {path: model.lr_multiplier(path) for path in rates}
    assert found == pytest.approx(rates)
    assert model.dense.kernel_init.logit_scale == pytest.approx(2**-0.5)


@pytest.mark.parametrize(
    ('overrides', 'message'),
    [
        (
            dict(decoder__num_heads=5, d_v=None),
            'model.d_model=12 cannot be divided among model.decoder.num_heads=5',
        ),
        (
            dict(num_kv_heads=2, decoder__num_heads=3),
            'model.num_kv_heads=2 does not divide model.decoder.num_heads=3',
        ),
        (
            dict(projections=False, d_k=None, d_v=None, decoder__d_k=4),
            'model.projections=False .* model.decoder.d_k has no effect',
        ),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused_by_the_fields_that_decide(
    overrides, message
):
    with pytest.raises(ValueError, match=f'^{message}'):
        tiny.model(**overrides)
