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
from test_init_from import make_source

import experiments
from experiments.data.tokenizers.base import Tokenizer
from experiments.evaluation.opened_run import OpenedRun
from experiments.reports import figures
from experiments.reports.figures import Figure
from flaxformer_explain import looking
from flaxformer_explain.looking import Attended
from flaxformer_lite import introspection
from flaxformer_lite.special_tokens import SpecialTokens

TEXT = 'The <b>cat</b> sleeps here.'
TARGET = 'Die Katze schläft hier.'

pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def path(tmp_path_factory, cache):
    return make_run(tmp_path_factory, num_layers=1)


@pytest.fixture(scope='module')
def run(tmp_path_factory, cache):
    return experiments.open_run(make_run(tmp_path_factory, num_layers=2))


def make_run(tmp_path_factory, num_layers):
    """Creates a run with checkpoints of initial parameters."""
    text = small_runs.write_text(tmp_path_factory.mktemp('text'), val=4)
    path = tmp_path_factory.mktemp('runs') / 'run'
    return make_source(path, text, model__num_layers=num_layers)


@pytest.mark.slow
def test_an_alignment_is_the_mean_over_heads_of_the_weights_that_write_a_piece(run):
    batch = run.batch([(TEXT, TARGET)])
    record = jax.jit(introspection.record, static_argnums=0)
    seen = record(run.model, run.variables, batch).weights['decoder cross']
    layers_LTS = np.stack([np.asarray(layer, np.float64)[0].mean(0) for layer in seen])
    found = looking.alignment(run, TEXT, TARGET)
    assert list(found) == ['mean of all layers', 'layer 0', 'layer 1']
    for chart, wanted_TS in zip(
        found.values(), [layers_LTS.mean(0), *layers_LTS], strict=True
    ):
        (cells,) = chart.to_dict()['datasets'].values()
        weights = [cell['weight'] for cell in cells]
        np.testing.assert_allclose(weights, wanted_TS.ravel(), atol=0.00051)


def test_a_row_of_an_alignment_is_the_piece_that_is_written(monkeypatch):
    two_heads = [[[0.2, 0.8, 0], [1, 0, 0]], [[0.6, 0.2, 0.2], [0.4, 0.1, 0.5]]]
    layers = [np.array(two_heads)]
    seen = {'decoder cross': Attended(['x', '</s>'], ['a', 'b', 'c'], layers)}
    monkeypatch.setattr(looking, 'attended', lambda *arguments: seen)
    run: Any = None
    ((name, chart),) = looking.alignment(run, 's', 't').items()
    assert name == 'layer 0'
    (cells,) = chart.to_dict()['datasets'].values()
    assert [cell['weight'] for cell in cells] == [0.4, 0.5, 0.1, 0.7, 0.05, 0.25]
    assert [cell['from'] for cell in cells] == ['x'] * 3 + ['</s>'] * 3
    assert [cell['to'] for cell in cells] == ['a', 'b', 'c'] * 2
    assert '["x", "</s>"][datum.value]' in str(chart.to_dict())


@pytest.mark.slow
def test_a_notebook_has_each_figure_as_a_chart(run):
    attention = looking.attention(run, TEXT, TARGET)
    assert list(attention) == list(looking.KINDS.values())
    charts = [*attention.values(), *looking.alignment(run, TEXT, TARGET).values()]
    assert all('$schema' in chart.to_dict() for chart in charts)


@pytest.mark.slow
def test_attention_rows_are_the_target_tokens(run):
    sentence = looking.attended(run, TEXT, TARGET)
    pieces = run.tokenizer.pieces(run.tokenizer.encode([TARGET])[0])
    assert sentence['decoder'].queries == [*pieces, '</s>']
    assert sentence['decoder'].keys == ['<s>', *pieces]


class Letters(Tokenizer):
    special_tokens = SpecialTokens()
    source_eos = special_tokens.eos

    def encode(self, texts):
        return [[ord(letter) - ord('a') + 4 for letter in text] for text in texts]

    encode_target = encode

    def pieces(self, ids):
        return [chr(i - 4 + ord('a')) if i > 3 else '<s>' for i in ids]


def opened(model):
    run: Any = object.__new__(OpenedRun)
    run.tokenizer, run.model = Letters(), model
    run.mean = SimpleNamespace(variables=tiny.all_variables(model))
    return run


@pytest.mark.parametrize('architecture', ['encoder_decoder', 'decoder_only'])
def test_each_weight_has_the_pieces_that_it_joins(architecture):
    model = tiny.model(dropout=0.0, architecture=architecture)
    found = looking.attended(opened(model), 'abc', 'de')
    read = ['a', 'b', 'c', '<s>']  # as the end is written here
    fed, written = ['<s>', 'd', 'e'], ['d', 'e', '</s>']
    own = {
        'encoder': (read, read),
        'decoder': (written, fed),
        'decoder cross': (written, read),
    }
    if architecture == 'decoder_only':
        own = {'decoder': (read + written, read + fed)}
    assert {kind: (of.queries, of.keys) for kind, of in found.items()} == own
    for of in found.values():
        for layer_HTS in of.layers:
            assert layer_HTS.shape == (2, len(of.queries), len(of.keys))
            np.testing.assert_allclose(layer_HTS.sum(-1), 1, rtol=1e-5)


SOFTMAX = {'decoder.attention': 'softmax', 'cross.attention': 'softmax'}
NEVER = {
    'attention=blockwise': (
        {'attention': 'blockwise', **SOFTMAX},
        {'decoder', 'decoder cross'},
    ),
    'cross.attention=blockwise': (
        {'cross.attention': 'blockwise'},
        {'encoder', 'decoder'},
    ),
    'recurrent': ({'architecture': 'recurrent'}, {'decoder cross'}),
}


@pytest.mark.parametrize(
    'case',
    [
        pytest.param(name, marks=pytest.mark.slow if name == 'recurrent' else [])
        for name in NEVER
    ],
)
def test_attention_without_stored_weights_is_left_out_of_figures(case):
    config, there = NEVER[case]
    run = opened(tiny.model(dropout=0.0, **config))
    shown = [title for kind, title in looking.KINDS.items() if kind in there]
    assert list(looking.attention(run, 'abc', 'de')) == shown
    assert bool(looking.alignment(run, 'abc', 'de')) == ('decoder cross' in there)


NOTHING_CHANGES = """
import logging, os, signal, sys, warnings
import jax

def state():
    loggers = [logging.getLogger(name) for name in ('absl', 'asyncio')]
    return (
        sys.unraisablehook,
        sys.excepthook,
        list(warnings.filters),
        [(logger.level, list(logger.filters)) for logger in loggers],
        [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)],
        dict(jax.config.values),
        dict(os.environ),
    )

before = state()
import experiments
assert state() == before
run = experiments.open_run(sys.argv[1])
run.translate(['Tom sleeps.'])
run.score([('Tom sleeps.', 'Tom schläft.')])
assert state() == before
"""


def test_variables_can_be_read_first_while_a_function_is_traced(path):
    run = experiments.open_run(path)
    found = jax.jit(lambda: run.variables)()
    jax.tree.map(np.testing.assert_array_equal, found, run.variables)


def test_opening_a_run_changes_nothing_in_the_process(path):
    command = [sys.executable, '-c', NOTHING_CHANGES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_head_scores_are_a_cell_per_head():
    scores = {'encoder': np.array([[0.25, 0.5]]), 'decoder': np.array([[1.0, 0.75]])}
    chart = looking.head_scores(scores, 'rise of loss (nats per token)')
    svg = figures.files(Figure('heads', 'Heads', chart))['svg'].decode()
    assert re.findall(r'>(\d\.\d\d)<', svg)[:4] == ['0.25', '0.50', '1.00', '0.75']
    assert '>rise of loss (nats per token)<' in svg
    assert svg.index('>encoder<') < svg.index('>decoder<')
