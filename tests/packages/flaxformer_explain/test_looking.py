"""Tests of the functions with which notebooks inspect a run."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
import tiny
from test_explainer import Letters

import experiments
from experiments.evaluation.opened_run import OpenedRun
from experiments.reports import figures
from experiments.reports.figures import Figure
from flaxformer_explain import looking
from flaxformer_explain.looking import Attended

SOFTMAX = {'decoder.attention': 'softmax', 'cross.attention': 'softmax'}


def run_of(**config):
    model = tiny.model(dropout=0.0, **config)
    run: Any = object.__new__(OpenedRun)
    run.tokenizer, run.model = Letters(), model
    run.mean = SimpleNamespace(variables=tiny.all_variables(model))
    return run


def weights_of(chart):
    (cells,) = chart.to_dict()['datasets'].values()
    return [cell['weight'] for cell in cells]


def test_rows_of_an_alignment_are_the_written_pieces(monkeypatch):
    two_heads = [[[0.2, 0.8, 0], [1, 0, 0]], [[0.6, 0.2, 0.2], [0.4, 0.1, 0.5]]]
    layers = [np.array(two_heads)]
    seen = {'decoder cross': Attended(['x', '</s>'], ['a', 'b', 'c'], layers)}
    monkeypatch.setattr(looking, 'attended', lambda *arguments: seen)
    run: Any = None
    ((name, chart),) = looking.alignment(run, 's', 't').items()
    assert name == 'layer 0'
    assert weights_of(chart) == [0.4, 0.5, 0.1, 0.7, 0.05, 0.25]
    (cells,) = chart.to_dict()['datasets'].values()
    assert [cell['from'] for cell in cells] == ['x'] * 3 + ['</s>'] * 3
    assert [cell['to'] for cell in cells] == ['a', 'b', 'c'] * 2
    assert '["x", "</s>"][datum.value]' in str(chart.to_dict())


@pytest.mark.ci
def test_weights_have_the_pieces_of_their_queries_and_keys():
    run = run_of()
    seen = looking.attended(run, 'abc', 'de')
    read = ['a', 'b', 'c', '/']
    inputs, written = ['^', 'd', 'e'], ['d', 'e', '</s>']
    assert {kind: (of.queries, of.keys) for kind, of in seen.items()} == {
        'encoder': (read, read),
        'decoder': (written, inputs),
        'decoder cross': (written, read),
    }
    for of in seen.values():
        for layer_HTS in of.layers:
            assert layer_HTS.shape == (2, len(of.queries), len(of.keys))
            np.testing.assert_allclose(layer_HTS.sum(-1), 1, rtol=1e-5)
    alignment = looking.alignment(run, 'abc', 'de')
    means_LTS = [layer_HTS.mean(0) for layer_HTS in seen['decoder cross'].layers]
    assert list(alignment) == ['mean of all layers', 'layer 0', 'layer 1']
    for chart, expected_TS in zip(
        alignment.values(), [np.mean(means_LTS, 0), *means_LTS], strict=True
    ):
        np.testing.assert_allclose(weights_of(chart), expected_TS.ravel(), atol=5.1e-4)
    charts = looking.attention(run, 'abc', 'de')
    assert list(charts) == list(looking.KINDS.values())
    assert all('$schema' in chart.to_dict() for chart in charts.values())


@pytest.mark.ci
@pytest.mark.parametrize(
    ('config', 'kinds'),
    [
        ({'architecture': 'decoder_only'}, ['decoder']),
        ({'attention': 'blockwise', **SOFTMAX}, ['decoder', 'decoder cross']),
        pytest.param(
            {'cross.attention': 'blockwise'},
            ['encoder', 'decoder'],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {'architecture': 'recurrent'}, ['decoder cross'], marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_figures_show_the_attention_that_stores_its_weights(config, kinds):
    run = run_of(num_layers=1, **config)
    seen = looking.attended(run, 'abc', 'de')
    assert sorted(seen) == sorted(kinds)
    if kinds == ['decoder']:  # one stack reads both texts
        assert seen['decoder'].queries == ['a', 'b', 'c', '/', 'd', 'e', '</s>']
        assert seen['decoder'].keys == ['a', 'b', 'c', '/', '^', 'd', 'e']
    titles = [title for kind, title in looking.KINDS.items() if kind in kinds]
    assert list(looking.attention(run, 'abc', 'de')) == titles
    assert bool(looking.alignment(run, 'abc', 'de')) == ('decoder cross' in kinds)


def test_head_scores_have_a_cell_per_head():
    scores = {'encoder': np.array([[0.25, 0.5]]), 'decoder': np.array([[1.0, 0.75]])}
    chart = looking.head_scores(scores, 'rise of loss')
    svg = figures.files(Figure('heads', 'Heads', chart))['svg'].decode()
    assert re.findall(r'>(\d\.\d\d)<', svg)[:4] == ['0.25', '0.50', '1.00', '0.75']
    assert '>rise of loss<' in svg
    assert svg.index('>encoder<') < svg.index('>decoder<')


PROGRAM = """
import logging, os, signal, sys, warnings
import jax

def state():
    loggers = [logging.getLogger(name) for name in ('absl', 'asyncio')]
    levels = [(logger.level, [*logger.filters]) for logger in loggers]
    handlers = [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)]
    hooks = sys.unraisablehook, sys.excepthook, [*warnings.filters]
    return levels, handlers, hooks, dict(jax.config.values), dict(os.environ)

before = state()
import experiments
assert state() == before
run = experiments.open_run(sys.argv[1])
run.translate(['Tom sleeps.'])
run.score([('Tom sleeps.', 'Tom schläft.')])
assert state() == before
"""


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_opening_a_run_changes_nothing_in_the_process(tmp_path):
    path = tmp_path / 'run'
    fields = small_runs.FIELDS | {'data': 'grammar(pairs=150)', 'train.steps': 1}
    small_runs.train(path, *small_runs.flags(fields, evaluation__sets=''))
    argv = [sys.executable, '-c', PROGRAM, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The first use of the variables may be inside of jax.jit.
    run = experiments.open_run(path)
    variables = jax.jit(lambda: run.variables)()
    jax.tree.map(np.testing.assert_array_equal, variables, run.variables)
