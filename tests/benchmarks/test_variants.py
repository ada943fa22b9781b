"""Tests that the benchmark of variants measures what it names."""

import pytest

from benchmarks import variants
from experiments.config import components
from experiments.costs.ledger import ledger

ARMS = variants.modern_parts('wmt_small')


def config_of(variant, name='wmt_small'):
    return variants.config_of(name, 'grammar', 60, variant)


@pytest.mark.ci
@pytest.mark.parametrize('name', ['wmt_small', 'wmt_base_bf16'])
def test_swiglu_has_the_parameters_of_the_base_at_each_width(name):
    arms = variants.modern_parts(name)
    base, swiglu = (
        ledger(config_of(arms[arm], name))['parameters']['total']
        for arm in ('base', 'SwiGLU')
    )
    assert swiglu == pytest.approx(base, rel=0.005)


@pytest.mark.parametrize('arm', ARMS)
def test_an_arm_of_the_sweep_is_built(arm):
    built = components.build(config_of(ARMS[arm]))
    assert (built == components.build(config_of({}))) == (arm == 'base')


def test_each_variant_changes_the_model():
    base, *others = [config_of(variant).model for variant in variants.variants()]
    assert base == config_of({}).model
    assert base not in others
