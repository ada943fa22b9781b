"""Tests of a report's figures."""

import re

import numpy as np
import pytest
from golden_report import HOSTILE
from synthetic_runs import make, study

from experiments.reports import figures
from experiments.reports.figures import Figure
from experiments.sweeps import analysis
from flaxformer_explain import looking


def test_curves_are_means_over_seeds_within_their_range(tmp_path):
    paths = []
    losses = [(5, 4.0), (10, 3.0)], [(5, 5.0), (10, 2.0), (15, 1.0)]
    for seed, of_seed in enumerate(losses):
        rows = [(step, 'train', {'loss': loss}) for step, loss in of_seed]
        paths.append(make(tmp_path / str(seed), 30.0, rows=rows, train__seed=seed))
    runs = study(paths)
    (figure,) = figures.curves(runs)
    ((line,),) = figure.spec()['datasets'].values()
    assert (line['x'], line['y']) == ([5, 10], [4.5, 2.5])
    assert (line['low'], line['high']) == ([4, 2], [5, 3])
    assert figures.curves(runs, 'tokens') == []  # these rows have none


def test_long_curves_are_thinned_and_keep_their_last_point():
    points = [figures.Point(step, 1 / 3, 0, 1) for step in range(9_999)]
    chart = figures.line_chart({'a': points, 'b': points[:5]}, 'steps', 'loss')
    (lines,) = chart.to_dict()['datasets'].values()
    assert [len(line['x']) for line in lines] == [2_000, 5]
    assert lines[0]['x'][-1] == 9_998
    assert lines[0]['y'][-1] == 0.333333


def test_names_in_figures_are_escaped_text():
    point = [figures.Point(10.0, 1, 0.5, 2.5)]
    names = [f'arm {i}' for i in range(9)]
    lines = dict.fromkeys([*names, 'a\x1b\ufffe\n'], point)
    chart = figures.line_chart(lines, 'cost', f'{HOSTILE}\x9b')
    files = figures.files(Figure('points', 'a', chart))
    svg = files['svg'].decode()
    assert all(f'>{name}<' in svg for name in names)
    assert r'>a\x1b\ufffe\n<' in svg and r'\x9b<' in svg and HOSTILE not in svg
    assert files['pdf'].startswith(b'%PDF')
    maps = looking.weights_map(np.array([[0.2, 0.8]]), ['x'], ['a', 'a'])
    svg = figures.files(Figure('maps', 'a', maps))['svg'].decode()
    assert len(re.findall('>a<', svg)) == 2  # equal names stay apart


def test_forest_plot_has_each_interval_in_the_order_of_the_table():
    # The name is as long as those of the published sweeps.
    long = 'RMSNorm, SwiGLU, rotary, QK norm'
    values = {long: (0.2, 1.5, 2), 'b': (0, 1, 2.5), 'c': (9, 10, 11)}
    scores = {arm: dict(enumerate(of_arm)) for arm, of_arm in values.items()}
    contrasts = analysis.compare(scores, base='b')
    figure = figures.forest(contrasts, 'test bleu')
    (rows,) = [x for x in figure.spec()['datasets'].values() if 'arm' in x[0]]
    for row, contrast in zip(rows, contrasts, strict=True):
        assert row['arm'] == contrast.arm
        interval = (row['low'], row['difference'], row['high'])
        assert interval == (contrast.low, contrast.effect, contrast.high)
        assert (row['verdict'] == 'significant') == contrast.significant
    assert {row['verdict'] for row in rows} == {'significant', 'not significant'}
    svg = figures.files(figure)['svg'].decode()
    assert svg.index(f'>{long}<') < svg.index('>c<') and '>b<' not in svg
    # Letters can be read on a US letter, which has 468 points between its margins.
    width = int(re.search(r'width="(\d+)"', svg)[1])
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)]
    assert min(sizes) * min(1, 468 / width) > 9
    single = analysis.compare({'a': {0: 1.0}, 'b': {0: 2.0}}, base='a')
    assert figures.forest(single, 'test bleu') is None


def test_scores_are_drawn_over_their_cost_with_both_deviations(tmp_path):
    paths = [
        make(
            tmp_path / str(seed),
            score,
            result={'flops_per_token': flops, 'step': 10},
            train__seed=seed,
            batch__tokens=100,
        )
        for seed, (score, flops) in enumerate([(30.0, 5.0), (34.0, 7.0)])
    ]
    runs = study(paths)
    (arm,) = runs.arms
    spread = arm.spread(runs.measure)
    spreads = {arm.name: (arm.cost('training_flops'), spread)}
    figure = figures.score_by_cost(spreads, runs.measure)
    ((row,),) = figure.spec()['datasets'].values()
    assert [row['x'], row['y']] == [6000.0, 32.0]
    sd_x, sd_y = np.std([5000, 7000], ddof=1), np.std([30, 34], ddof=1)
    assert [row['x_low'], row['x_high']] == pytest.approx([6000 - sd_x, 6000 + sd_x])
    assert [row['y_low'], row['y_high']] == pytest.approx([32 - sd_y, 32 + sd_y])
    assert figures.score_by_cost({arm.name: (None, spread)}, runs.measure) is None
