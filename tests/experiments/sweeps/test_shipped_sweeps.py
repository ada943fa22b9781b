"""Tests that every arm of the published sweeps can be built and matches its source."""

import pytest

from configs.sweeps import table3
from experiments.command_line import flags
from experiments.config import check, components
from experiments.sweeps import planning, schema

NAMES = flags.available(schema.FOLDER)


def first_runs(sweep):
    return {run.arm: run for run in reversed(sweep.runs)}


@pytest.mark.ci
# A quarter of them at each commit, all of them each night.
@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=[pytest.mark.slow] * (i % 4 > 0))
        for i, name in enumerate(NAMES)
    ],
)
def test_every_arm_of_a_shipped_sweep_can_be_built(name):
    sweep = planning.load(name)
    for run in first_runs(sweep).values():
        check.check_overrides(run.config, run.overrides)
        components.build(run.config)
        chosen = [text.strip() for text in run.config.evaluation.sets.split(',')]
        assert chosen == [''] or sweep.measure.set in chosen


def closed_form(model, vocab_size):
    """Counts weights by the paper's formulas: no attention biases, 2 or 3 norms."""
    d, h = model.d_model, model.num_heads
    d_k, d_v = model.d_k or d // h, model.d_v or d // h
    attention = 2 * d * h * d_k + 2 * d * h * d_v
    network = 2 * d * model.d_ff + model.d_ff + d
    encoder = attention + network + 2 * 2 * d
    decoder = 2 * attention + network + 3 * 2 * d
    table = {'learned': 2 * 1024 * d}.get(model.positions, 0)
    return model.num_layers * (encoder + decoder) + vocab_size * d + table


def test_table_3_has_the_published_numbers_of_parameters():
    runs = first_runs(planning.load('table3'))
    counts = {}
    for arm, numbers in table3.published().items():
        if 'parameters' in numbers:
            vocab_size = 36_000 if arm == 'big' else 41_100
            counted = closed_form(runs[arm].config.model, vocab_size)
            counts[arm] = (round(counted / 1e6), numbers['parameters'] / 1e6)
    assert len(counts) == 11
    for counted, published in counts.values():
        assert counted == published
