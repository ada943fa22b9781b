"""A sweep's progress and its estimate: what has ended, what is left, what it costs."""

import dataclasses
import io
import json

import pytest
from test_sweep_workers import DIVERGED, finish, write

from experiments.command_line import console
from experiments.command_line.screen import Screen
from experiments.config.schema import ExperimentConfig
from experiments.costs.ledger import ledger
from experiments.sweeps import estimate
from experiments.sweeps.progress import Progress
from experiments.sweeps.schema import Cell


def cell(folder, arm, seed, **changes):
    config = ExperimentConfig()
    train = dataclasses.replace(config.train, steps=100)
    sizes = dict(d_model=16, num_layers=1, num_heads=2) | changes
    model = dataclasses.replace(config.model, **sizes)
    config = dataclasses.replace(config, train=train, model=model)
    return Cell(arm, seed, {}, folder / f'{arm}{seed}', config)


@pytest.fixture
def cells(tmp_path):
    return [cell(tmp_path, arm, seed) for arm in 'ab' for seed in (0, 1)]


def test_progress_says_what_has_ended_and_how_long_the_rest_will_take(cells):
    seconds = [1000.0]
    out = io.StringIO()
    finish(cells[0])
    progress = Progress(cells, 'test bleu', Screen(out), 0.0, lambda: seconds[0])
    assert out.getvalue() == '1 of 4 runs have ended before\n'
    # 150 of the 300 steps that were left then have taken a minute.
    finish(cells[1])
    cells[2].path.mkdir()
    (cells[2].path / 'metrics.jsonl').write_text('{"step": 50, "kind": "train"}\n')
    seconds[0] += 60
    progress.update()
    lines = out.getvalue().splitlines()
    assert lines[1:] == ['[2/4] a, seed 1: test bleu 12.5  1:00 left']
    write(cells[3], 'failure.json', DIVERGED)
    progress.update()
    lines = out.getvalue().splitlines()
    assert lines[2:] == ['[3/4] b, seed 1: diverged: not finite  0:12 left']


def test_steps_of_slower_arms_count_for_more(cells, tmp_path):
    seconds = [0.0]
    out = io.StringIO()
    arms = [*cells, cell(tmp_path, 'c', 0)]
    finish(arms[0])  # 0.5 s a step
    result = json.loads((arms[0].path / 'result.json').read_text())
    write(arms[2], 'result.json', result | {'train_seconds': 150.0})  # 1.5 s
    progress = Progress(arms, 'test bleu', Screen(out), 0.0, lambda: seconds[0])
    finish(arms[1])
    seconds[0] = 50.0
    progress.update()
    # Left: 100 steps of b, each three times those of a, and 100 of c at the mean of
    # both.
    assert (
        out.getvalue().splitlines()[-1].endswith('4:10 left')
    )  # 50 s · (150 + 100) / 50


@pytest.mark.parametrize(
    ('seconds', 'text'), [(0.4, '0:00'), (65, '1:05'), (3600, '1:00:00')]
)
def test_durations(seconds, text):
    assert console.duration(seconds) == text


def test_costs_are_the_ledgers_and_time_that_of_runs_of_the_same_arm(cells, tmp_path):
    cells.append(cell(tmp_path, 'wide', 0, d_ff=64))
    for done in (cells[0], cells[2]):
        finish(done)
    costs, how = estimate.costs(cells)
    book = ledger(cells[0].config)
    a_step = book['flops_per_token']['total'] * book['batch']['tokens']
    cost = costs[cells[1].path]
    assert cost.parameters == book['parameters']['total']
    assert cost.flops == 100 * a_step
    assert cost.seconds == 100 * 0.5 + estimate.BESIDE_TRAINING
    # The arm without a run has the others' FLOPs a second.
    wide = costs[cells[4].path]
    expected = 50 * wide.flops / cost.flops
    assert wide.seconds == pytest.approx(expected + estimate.BESIDE_TRAINING)
    assert 'of 2 of the 3 arms their own' in how
    left = estimate.seconds_left(cells, costs)
    assert left == pytest.approx(2 * cost.seconds + wide.seconds)
    row = estimate.table(cells, costs).splitlines()[2].split()
    assert row[:4] == ['a', '0', 'finished', f'{cost.parameters:,}']
    assert row[-1] == str(cells[0].path)


def test_without_any_run_time_follows_from_a_products_rate(cells, monkeypatch):
    monkeypatch.setattr(estimate, 'product_rate', lambda config: 1e9)
    costs, how = estimate.costs(cells)
    cost = costs[cells[0].path]
    expected = cost.flops / (estimate.SHARE * 1e9)
    assert cost.seconds == pytest.approx(expected + estimate.BESIDE_TRAINING)
    assert 'rate of a product' in how


def test_a_products_rate_is_measured(cells):
    assert 1e6 < estimate.product_rate(cells[0].config) < 1e16
