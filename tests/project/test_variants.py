"""Tests that the benchmark of variants measures what it names."""

import pytest

from benchmarks import variants
from configs import wmt_small
from configs.sweeps import modern
from experiments.config import components
from experiments.costs.ledger import ledger

ARMS = modern.parts(variants.WIDTH)


def config_of(variant):
    return variants.config_of('wmt_small', 'grammar', 60, variant)


def test_the_width_is_that_of_the_config():
    assert wmt_small.get_config().model.d_model == variants.WIDTH
    one, other = (
        ledger(config_of(ARMS[arm]))['parameters']['total']
        for arm in ('base', 'SwiGLU')
    )
    assert other == pytest.approx(one, rel=0.02)


@pytest.mark.parametrize('arm', ARMS)
def test_an_arm_of_the_sweep_is_built(arm):
    built = components.build(config_of(ARMS[arm]))
    assert (built == components.build(config_of({}))) == (arm == 'base')


def test_each_variant_changes_the_model():
    base, *others = [config_of(variant).model for variant in variants.variants()]
    assert base == config_of({}).model
    assert base not in others
