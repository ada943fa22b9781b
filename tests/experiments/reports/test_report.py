"""Tests of the table and CSV of runs, and of excluded runs."""

import csv
import dataclasses
import io

import made_runs
import pytest

from experiments import report, storage
from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.runs import directory, metrics_log

SCORES = {
    **dict(direction='en-de', sentences=4, loss=None, perplexity=2.0),
    **dict(accuracy=0.5, bleu=1.0, chrf=2.0),
    **dict(bleu_signature='a', chrf_signature='b'),
}


def make_run(path, num_heads, bleu=None, signature='nrefs:1|v:1', **train):
    config = {
        'data': 'grammar',
        'model': {'num_heads': num_heads},
        'train': {'steps': 1000, 'patience': 0} | train,
    }
    with directory.open_run(path, config):
        metrics = metrics_log.MetricsLog(path)
        metrics.write(100, 'train', loss=4.0, tokens_per_second=1000.0)
        metrics.write(100, 'eval', set='val', loss=3.5, bleu=11.0)
        metrics.write(200, 'eval', set='val', loss=3.25, bleu=12.0)
        metrics.write(200, 'eval', set='test', loss=9.0, bleu=1.0)
        metrics.write(300, 'train', loss=2.0, tokens_per_second=2000.0)
        if bleu is not None:
            scores = {
                'val': SCORES | {'bleu': 20.0, 'bleu_signature': 'nrefs:1|v:1'},
                'test': SCORES | {'bleu': bleu, 'bleu_signature': signature},
            }
            result = {'status': 'finished', 'step': 1000, 'parameters': 5000}
            result |= {'tokens_per_second': 3000.0, 'train_seconds': 9.0}
            result |= {'evaluations': scores}
            storage.write_json(path / 'result.json', result)
    return path


def test_table_of_finished_and_unfinished_runs(tmp_path, command):
    paths = [make_run(tmp_path / 'a', 4, 30.0), make_run(tmp_path / 'b', 8)]
    out, err = command(report, *paths)
    assert err == ''
    head, _, *rows, signature = [line.split() for line in out.splitlines()]
    first, second = rows
    assert head[:3] == ['run', 'seeds', 'status'] and 'model.num_heads' in head
    assert first[:3] == [str(paths[0]), '1', 'finished']
    assert first[-6:] == ['4', '1,000', '5,000', '3,000', '30.00', '20.00']
    assert second[:3] == [str(paths[1]), '1', 'stopped']
    assert second[-6:] == ['8', '300', '-', '2,000', '1.00', '12.00']
    assert signature == ['bleu:', 'nrefs:1|v:1']
    with directory.open_run(tmp_path / 'c', {'train': {'steps': 0}}):
        pass
    *_, row = command(report, tmp_path / 'c').out.splitlines()
    assert row.split()[1:] == ['1', 'stopped', '0', '-', '-']


def test_different_signatures_are_not_comparable(tmp_path, command):
    paths = [make_run(tmp_path / 'a', 4, 30.0)]
    paths.append(make_run(tmp_path / 'b', 8, 40.0, 'nrefs:1|v:2'))
    one, other, note = command(report, *paths).out.splitlines()[-3:]
    assert (one[-1], other[-1]) == ('1', '2') and 'not comparable' in note


def test_runs_that_differ_in_seeds_alone_are_one_row(tmp_path, command):
    paths = [
        make_run(tmp_path / 'a', 4, 30.0, seed=0),
        make_run(tmp_path / 'a,train.seed=1', 4, 33.0, seed=1),
        make_run(tmp_path / 'a,train.seed=2', 4, seed=2),
        make_run(tmp_path / 'b', 8, 40.0, seed=0),
    ]
    _, _, first, second, _ = command(report, *paths).out.splitlines()
    cells = [cell.strip() for cell in first.split('  ') if cell.strip()]
    assert cells[:4] == [str(tmp_path / 'a'), '2', '2 finished, 1 stopped', '4']
    assert cells[-2:] == ['31.50 ± 2.12', '20.00']  # 3 / √2
    assert second.split()[:3] == [str(tmp_path / 'b'), '1', 'finished']


def test_a_folder_is_replaced_by_the_runs_in_it(tmp_path, command):
    for seed in range(2):
        make_run(tmp_path / f'heads/a/seed={seed}', 4, 30.0, seed=seed)
        make_run(tmp_path / f'heads/b/seed={seed}', 8, 40.0, seed=seed)
    _, _, first, second, _ = command(report, tmp_path / 'heads').out.splitlines()
    assert first.split()[:2] == [str(tmp_path / 'heads/a'), '2']
    assert second.split()[:2] == [str(tmp_path / 'heads/b'), '2']


def test_the_table_of_a_sweep_has_its_measure(tmp_path, command, monkeypatch):
    paths = made_runs.heads(tmp_path, {4: (30.0,), 8: (40.0,)})
    measure = Measure('test', 'loss', higher_is_better=False)
    sweep = dataclasses.replace(made_runs.sweep(tmp_path), measure=measure)
    monkeypatch.setattr(report.planning, 'load', lambda path: sweep)
    head, _, first, *_ = command(report, *paths, '--sweep=x').out.splitlines()
    assert head.endswith('test loss') and first.endswith('1.0000')


def test_csv_has_unrounded_numbers(tmp_path, command):
    paths = [make_run(tmp_path / 'a', 4, 30.0), make_run(tmp_path / 'b', 8)]
    rows = list(csv.DictReader(io.StringIO(command(report, *paths, '--csv').out)))
    assert [row['step'] for row in rows] == ['1000', '300']
    assert [row['test bleu'] for row in rows] == ['30.0', '1.0']
    assert [row['model.num_heads'] for row in rows] == ['4', '8']
    assert 'data' not in rows[0]


def test_folders_without_a_run_are_refused(tmp_path, command):
    with pytest.raises(UserError, match='^runs: '):
        command(report, tmp_path, tmp_path / 'none')
    for path in (tmp_path, tmp_path / 'none'):
        with pytest.raises(UserError, match=f'^{path}: '):
            command(report, path)


def test_damaged_runs_are_skipped_with_a_note(tmp_path, command):
    good = make_run(tmp_path / 'good', 4, 30.0)
    bad = {
        'config.json': ['[]', '\\'],
        'metrics.jsonl': ['{"step": 1e400, "kind": "x"}\n'],
        'result.json': ['{"evaluations": {"val": 3}}', '{"evaluations": []}'],
    }
    paths = []
    for name, texts in bad.items():
        for text in texts:
            paths.append(make_run(tmp_path / f'bad{len(paths)}', 4, 30.0))
            (paths[-1] / name).write_text(text)
    paths.append(make_run(tmp_path / 'folder', 4, 30.0))
    (paths[-1] / 'result.json').unlink()
    (paths[-1] / 'result.json').mkdir()
    out, err = command(report, *paths, good, tmp_path / ('x' * 5000))
    assert [line.split()[0] for line in out.splitlines()[2:-1]] == [str(good)]
    notes = err.splitlines()
    assert len(notes) == len(paths) + 1
    assert all(note.startswith('skipped: ') for note in notes)
    for note, path in zip(notes, paths, strict=False):
        assert str(path) in note
