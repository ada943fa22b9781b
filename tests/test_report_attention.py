"""Heads of a trained run: what each is worth, and its weights without padding."""

import jax
import numpy as np
import pytest
import tiny

from experiments.reports.inside import attended, heads, pictures
from experiments.reports.inside.heads import Importance, Inspection
from flaxformer_lite import introspection
from flaxformer_lite.training.loss import loss_sums


@pytest.fixture(scope='module')
def model():
    return tiny.model(dropout=0.0)


@pytest.fixture(scope='module')
def batch():
    return tiny.batch([[pair] for pair in tiny.PAIRS])


@pytest.fixture(scope='module')
def importance(model, batch):
    return heads.head_importance(model, tiny.all_variables(model), batch)


def without(variables, layer, attention, head):
    """The variables with the output projection of a head at 0."""
    stack = variables['params'][layer[0]][layer[1]][attention]
    kernel = stack['out_proj']['kernel'].at[head].set(0.0)
    changed = jax.tree.map(lambda x: x, variables)
    changed['params'][layer[0]][layer[1]][attention]['out_proj']['kernel'] = kernel
    return changed


def test_a_head_that_is_switched_off_is_one_whose_projection_is_zero(
    model, batch, importance
):
    variables = tiny.all_variables(model)
    loss = jax.jit(lambda v: loss_sums(model, v, batch))
    whole = loss(variables)
    found, with_all = importance
    assert with_all == pytest.approx(float(whole.loss / whole.tokens), rel=1e-5)
    for kind, stack, attention in (
        ('encoder', 'encoder', 'self_attention'),
        ('decoder', 'decoder', 'self_attention'),
        ('decoder cross', 'decoder', 'cross_attention'),
    ):
        for layer in range(2):
            for head in range(2):
                changed = without(variables, (stack, f'layer_{layer}'), attention, head)
                sums = loss(changed)
                rise = float(sums.loss / sums.tokens) - with_all
                assert found.measured[kind][layer][head] == pytest.approx(
                    rise, abs=1e-5
                )


def test_the_estimate_is_the_slope_by_finite_differences(model, batch, importance):
    variables = tiny.all_variables(model)
    masks = introspection.ablation_masks(model)
    found, _ = importance

    @jax.jit
    def loss(mask_H):
        changed = jax.tree.map(lambda x: x, masks)
        changed['decoder']['layer_1']['cross_attention']['heads'] = mask_H
        sums = loss_sums(model, variables | {'ablation_masks': changed}, batch)
        return sums.loss / sums.tokens

    for head in range(2):
        step = np.zeros(2, np.float32)
        step[head] = 1e-2
        slope = (loss(1 + step) - loss(1 - step)) / 2e-2
        estimate = found.estimated['decoder cross'][1][head]
        assert estimate == pytest.approx(-float(slope), abs=1e-3)
        assert abs(estimate) > 1e-3


def sentence_of_two():
    weights = np.arange(2 * 3 * 4, dtype=float).reshape(2, 3, 4)
    found = heads.Attended('s', 'o', {}, {}, {})
    attended._add(
        found, 'decoder cross', [weights], ['a', 'b', 'c', ''], ['<s>', 'x', '']
    )
    return found, weights


def test_padding_is_on_no_axis():
    found, weights = sentence_of_two()
    assert found.queries == {'decoder cross': ['<s>', 'x']}
    assert found.keys == {'decoder cross': ['a', 'b', 'c']}
    (layer,) = found.weights['decoder cross']
    np.testing.assert_array_equal(layer, weights[:, :2, :3])


def test_one_stack_that_reads_both_has_both_on_its_axes():
    found = heads.Attended('s', 'o', {}, {}, {})
    attended._add(found, 'decoder', [np.zeros((1, 4, 4))], ['a', ''], ['<s>', 'x'])
    assert found.queries['decoder'] == found.keys['decoder'] == ['a', '<s>', 'x']


def test_heads_are_listed_by_what_they_are_worth():
    measured = {'encoder': [[0.1, 0.3]], 'decoder': [[0.2, -0.1]]}
    stats = {name: [[1.0, 2.0]] for name in heads.STATS}
    sentence, _ = sentence_of_two()
    found = Inspection(
        *('run', [20], [sentence], {'encoder': stats}, Importance(measured, measured)),
        *(1.0, 5, ''),
    )
    rows = pictures.table(found).rows
    assert [row[:4] for row in rows] == [
        ('encoder self-attention', 0, 1, 0.3),
        ('decoder self-attention', 0, 0, 0.2),
        ('encoder self-attention', 0, 0, 0.1),
        ('decoder self-attention', 0, 1, -0.1),
    ]
    assert rows[0][5] == 2.0 and rows[1][5] is None
    assert pictures.agreement(found).endswith('over 4 heads is 1.00.')
    (figure,) = pictures.weights(sentence, 1)
    assert figure.name == 'attention_1_decoder_cross'
    assert figure.maps[0][1].title == 'layer 0, head 1'
