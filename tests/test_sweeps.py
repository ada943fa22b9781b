"""The sweeps that ship: every arm can be built, and is what its source says."""

import dataclasses
import math
import re

import pytest

from configs.sweeps import depth, positions, table3, table3_small
from experiments.command_line import flags
from experiments.config import check
from experiments.runs import trained_run
from experiments.sweeps import schema
from experiments.training.result import count_parameters
from flaxformer_lite.config import variants

NAMES = flags.available(schema.FOLDER)


def first_cells(name):
    """The runs of a sweep's arms with their first seed, by arm."""
    cells = schema.cells(schema.load(name))
    return {cell.arm: cell for cell in reversed(cells)}


def parameters(config, vocab_size=None):
    model = check.build_model(config, vocab_size or config.tokenizer.vocab_size)
    return count_parameters(trained_run.abstract_variables(model)['params'])


@pytest.mark.parametrize('name', NAMES)
def test_every_arm_can_be_built_and_has_a_directory_of_its_own(name):
    sweep = schema.load(name)
    cells = schema.cells(sweep)
    assert len({cell.path for cell in cells}) == len(sweep.arms) * len(sweep.seeds)
    # A reader learns how long it takes, here or on the paper's machines.
    text = ' '.join((schema.FOLDER / f'{name}.py').read_text('utf-8').split())
    assert re.search('two cores it takes about|took|GPUs', text)
    for cell in first_cells(name).values():
        check.check_config(cell.config)
        check.check_overrides(cell.config, cell.overrides)
        check.build_model(cell.config, cell.config.tokenizer.vocab_size)
        chosen = [text.strip() for text in cell.config.evaluation.sets.split(',')]
        assert chosen == [''] or sweep.measure.split()[0] in chosen


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


@pytest.mark.slow
def test_table_3_has_the_papers_parameters():
    cells = first_cells('table3')
    for arm, cell in cells.items():
        counted = parameters(cell.config)
        assert counted == closed_form(cell.config.model, 37_000), arm
    base = parameters(cells['base'].config)
    assert base - parameters(cells['B d_k=16'].config) == 7_077_888
    assert base - parameters(cells['B d_k=32'].config) == 4_718_592


def test_table_3_has_the_published_millions_at_the_vocabularies_they_tell_of():
    cells = first_cells('table3')
    found = {}
    for arm, numbers in table3.published().items():
        if 'parameters' in numbers:
            vocab_size = 36_000 if arm == 'big' else 41_100
            counted = closed_form(cells[arm].config.model, vocab_size)
            found[arm] = (round(counted / 1e6), numbers['parameters'] / 1e6)
    assert len(found) == 11
    for counted, published in found.values():
        assert counted == published


def test_the_small_table_3_has_the_papers_rows_scaled():
    paper = first_cells('table3').values()
    small = first_cells('table3_small').values()
    assert [a for a in table3.ARMS] == [cell.arm for cell in paper][::-1]
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


def test_positions_are_all_that_there_are():
    assert set(positions.VARIANTS) == set(variants.names('positions'))


def test_recurrent_models_have_the_transformers_parameters():
    counts = {arm: parameters(c.config) for arm, c in first_cells('recurrence').items()}
    for arm, count in counts.items():
        assert math.isclose(count, counts['Transformer, rate 6e-3'], rel_tol=0.02), arm


def test_redllm_and_decllm_have_equal_parameters():
    counts = {parameters(c.config) for c in first_cells('redllm_small').values()}
    assert max(counts) - min(counts) < 0.001 * min(counts)


def test_depths_have_equal_sums():
    assert {sum(layers) for layers in depth.DEPTHS[:-1]} == {6}


def test_wider_arms_differ_in_width_alone():
    cells = first_cells('width')
    for arm, cell in cells.items():
        model = cell.config.model
        assert model.d_ff == 4 * model.d_model, arm
        assert model.d_k is None  # grows with d_model
