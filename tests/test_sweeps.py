"""The sweeps that ship: every arm can be built, and is what its source says."""

import dataclasses
import math

import pytest

from configs.sweeps import table3, table3_small
from experiments.command_line import flags
from experiments.config import check
from experiments.runs import trained_run
from experiments.sweeps import schema
from experiments.training.result import count_parameters

NAMES = flags.available(schema.FOLDER)


def first_runs(name):
    """The runs of a sweep's arms with their first seed, by arm."""
    return {run.arm: run for run in reversed(schema.load(name).runs)}


def parameters(config):
    model = check.build_model(config, config.tokenizer.vocab_size)
    return count_parameters(trained_run.abstract_variables(model)['params'])


@pytest.mark.parametrize('name', NAMES)
def test_every_arm_can_be_built_and_scores_what_decides(name):
    measure = schema.load(name).measure
    for run in first_runs(name).values():
        check.check_config(run.config)
        check.check_overrides(run.config, run.overrides)
        check.build_model(run.config, run.config.tokenizer.vocab_size)
        chosen = [text.strip() for text in run.config.evaluation.sets.split(',')]
        assert chosen == [''] or measure.split()[0] in chosen


def closed_form(model, vocab_size):
    """Weights by the paper's formulas: attention without biases, two or three norms."""
    d, h = model.d_model, model.num_heads
    d_k, d_v = model.d_k or d // h, model.d_v or d // h
    attention = 2 * d * h * d_k + 2 * d * h * d_v
    network = 2 * d * model.d_ff + model.d_ff + d
    encoder = attention + network + 2 * 2 * d
    decoder = 2 * attention + network + 3 * 2 * d
    table = {'learned': 2 * 1024 * d}.get(model.positions, 0)
    return model.num_layers * (encoder + decoder) + vocab_size * d + table


def test_table_3_has_the_published_millions_at_the_vocabularies_they_tell_of():
    runs = first_runs('table3')
    found = {}
    for arm, numbers in table3.published().items():
        if 'parameters' in numbers:
            vocab_size = 36_000 if arm == 'big' else 41_100
            counted = closed_form(runs[arm].config.model, vocab_size)
            found[arm] = (round(counted / 1e6), numbers['parameters'] / 1e6)
    assert len(found) == 11
    for counted, published in found.values():
        assert counted == published


def test_the_small_table_3_has_the_papers_rows_scaled():
    paper = first_runs('table3').values()
    small = first_runs('table3_small').values()
    assert [a for a in table3.ARMS] == [run.arm for run in paper][::-1]
    for large, little in zip(paper, small, strict=True):
        a, b = large.config.model, little.config.model
        sizes = dataclasses.asdict(b) | {
            'd_model': 8 * b.d_model,
            'd_ff': 8 * b.d_ff,
            'd_k': b.d_k and 8 * b.d_k,
            'num_layers': 2 * b.num_layers,
            'residual': 'post_norm',
        }
        assert sizes == dataclasses.asdict(a), little.arm
        assert a.num_heads == b.num_heads
        ratio = large.config.train.steps / 100_000
        assert little.config.train.steps / 600 == ratio
        smoothing = large.config.train.label_smoothing
        assert little.config.train.label_smoothing == smoothing
    assert table3_small.published()['C N=1'] == table3.published()['C N=2']


def test_recurrent_models_have_the_transformers_parameters():
    counts = {arm: parameters(c.config) for arm, c in first_runs('recurrence').items()}
    for arm, count in counts.items():
        assert math.isclose(count, counts['Transformer, rate 6e-3'], rel_tol=0.02), arm


def test_wider_arms_differ_in_width_alone():
    runs = first_runs('width')
    for arm, run in runs.items():
        model = run.config.model
        assert model.d_ff == 4 * model.d_model, arm
        assert model.d_k is None  # grows with d_model
