"""Tests of the command explain, and of the gold that describe prints."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from test_attributions import Words, run_of

from experiments import describe
from experiments.command_line import flags
from experiments.data.sources.base import Source
from experiments.errors import UserError
from flaxformer_explain import explain, explained
from flaxformer_explain.gold_scores import Maps
from parallel_grammar.gold import PHENOMENA
from parallel_grammar.source import Grammar

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_scores_are_printed_and_saved(tmp_path, command):
    workdir = tmp_path / 'run'
    fields = small_runs.FIELDS | {'data': 'grammar(pairs=200)', 'train.steps': 2}
    fields |= {'evaluation.decode': 'greedy', 'evaluation.sets': 'val'}
    small_runs.train(workdir, *small_runs.flags(fields))
    flags = f'--workdir={workdir}', '--score', '--sentences=3'
    out = command(explain, *flags).out
    file = workdir / 'explanations.test.csv'
    assert str(file) in out
    rows = list(csv.DictReader(file.read_text('utf-8').splitlines()))
    assert list(rows[0]) == explain.COLUMNS
    methods = {row['method'] for row in rows}
    assert {'attention, layer 0', 'rollout', 'integrated gradients'} <= methods
    assert {row['phenomenon'] for row in rows} <= {'alignment', *PHENOMENA}
    for row in rows:
        low, score, high = (float(row[name]) for name in ('low', 'score', 'high'))
        assert 0 <= low <= score <= high <= 1
    (aer,) = (r for r in rows if r['metric'] == 'aer' and r['method'] == 'rollout')
    (line,) = (line for line in out.splitlines() if line.startswith('alignment, aer'))
    assert f'{float(aer["score"]):.4g}' in line
    for sets in ('news', 'val,test'):
        with pytest.raises(UserError, match='--set: '):
            command(explain, *flags, f'--set={sets}')


def test_figure_shows_first_word_precision_of_each_model_and_method():
    def row(method, side, metric, score):
        others = dict.fromkeys(['low', 'high', 'chance'], '0.5')
        case = {'method': method, 'side': side, 'phenomenon': 'case', 'metric': metric}
        return case | others | {'score': str(score)}

    rows = [
        row('rollout', 'source', 'p@1', 0.75),
        row('rollout', 'source', 'ap', 0.1),
        row('rollout', 'target', 'p@1', 0.2),
        row('occlusion', 'source', 'p@1', 0.25),
    ]
    spec = explained.scores_figure({'small': rows, 'large': rows[:1]}).spec()
    (values,) = spec['datasets'].values()
    assert [(x['model'], x['method'], x['score']) for x in values] == [
        ('small', 'rollout', 0.75),
        ('small', 'occlusion', 0.25),
        ('large', 'rollout', 0.75),
    ]


def test_data_without_gold_and_missing_packages_are_rejected(monkeypatch, command):
    run: Any = SimpleNamespace(data=Source())
    with pytest.raises(UserError, match='has no gold. Use grammar.'):
        explain.gold_pairs(run, 'test')
    monkeypatch.setattr(flags, 'REPORT_PACKAGES', ('nowhere',))
    with pytest.raises(UserError, match='explain needs nowhere: .*--score'):
        command(explain, '--workdir=absent')


@pytest.mark.ci
def test_describe_prints_the_gold_of_each_pair(command):
    config = f'--config={ROOT / "configs/wmt_small.py"}'
    data = '--config.data=grammar(pairs=100)'
    out = command(describe, config, data, '--gold').out
    lines = [json.loads(line) for line in out.splitlines()]
    sets = Grammar(pairs=100).evaluation()
    assert [line['set'] for line in lines] == [s for s in sets for _ in sets[s]]
    # 'Mein Arzt vergisst, …': the doctor decides the form of the verb.
    assert lines[0]['target'][:3] == ['Mein', 'Arzt', 'vergisst']
    assert lines[0]['sure'][:3] == [[0, 0], [1, 1], [2, 2]]
    agreement = {'target': 2, 'phenomenon': 'verb agreement'}
    assert agreement | {'sources': [1], 'targets': [1]} in lines[0]['decisions']


def test_axes_of_a_map_are_words_of_the_reference_and_of_the_source(monkeypatch):
    pair = 'a b c', 'd e'
    run = run_of([pair])
    monkeypatch.setattr(Words, 'pieces', lambda self, ids: [f'<{i}>' for i in ids])
    maps = {'occlusion': Maps(np.ones((2, 3)), np.ones((2, 2)))}
    monkeypatch.setattr(explained, 'Attributor', lambda run: lambda pair: maps)

    def likeliest(model, variables, batch):
        return jnp.zeros((2, 3), int), jnp.ones((2, 3))

    monkeypatch.setattr(explained, '_most_likely', likeliest)
    (section,) = explained._sections(run, [pair])
    spec = section.figures[0].spec()
    axes = spec['encoding']
    assert axes['y']['title'] == 'reference word'
    assert axes['x']['title'] == 'source word'
    assert '["d", "e"][datum.value]' in str(spec)
    assert '["a", "b", "c"][datum.value]' in str(spec)
