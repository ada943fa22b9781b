"""Tests of the command that compares runs: its table, CSV, scores files and flags."""

import csv
import dataclasses
import io
import os
import subprocess
import sys

import pytest
import synthetic_runs
from synthetic_runs import REFERENCES, make

from experiments import report
from experiments.errors import UserError
from experiments.evaluation.measure import Measure

LOG = [
    (100, 'train', {'loss': 4.0, 'tokens_per_second': 1000.0}),
    (100, 'eval', {'set': 'val', 'loss': 3.5, 'bleu': 11.0}),
    (200, 'eval', {'set': 'val', 'loss': 3.25, 'bleu': 12.0}),
    (200, 'eval', {'set': 'test', 'loss': 9.0, 'bleu': 1.0}),
    (300, 'train', {'loss': 2.0, 'tokens_per_second': 2000.0}),
]


def make_two(folder):
    """Creates a finished run and a stopped one."""
    finished = make(folder / 'a', 30.0, rows=LOG)
    return [finished, make(folder / 'b', rows=LOG, model__num_heads=8)]


def test_table_has_finished_and_unfinished_runs(tmp_path, command):
    paths = make_two(tmp_path)
    out, err = command(report, *paths)
    assert err == ''
    head, _, *rows, signature = [line.split() for line in out.splitlines()]
    first, second = rows
    assert head[:3] == ['run', 'seeds', 'status'] and 'model.num_heads' in head
    assert first[:3] == [str(paths[0]), '1', 'finished']
    assert first[-6:-1] == ['4', '20', '1,000', '50', '30.00']
    assert second[:3] == [str(paths[1]), '1', 'stopped']
    assert second[-6:] == ['8', '300', '-', '2,000', '1.00', '12.00']
    assert signature == ['bleu:', synthetic_runs.SIGNATURE]


def test_different_signatures_are_not_comparable(tmp_path, command):
    scores = synthetic_runs._result(40.0)['evaluations']['test']
    other = {'evaluations': {'test': scores | {'bleu_signature': 'nrefs:1|v:2'}}}
    paths = [make(tmp_path / 'a', 30.0)]
    paths.append(make(tmp_path / 'b', 40.0, result=other, model__num_heads=8))
    one, other, note = command(report, *paths).out.splitlines()[-3:]
    assert (one[-1], other[-1]) == ('1', '2') and 'not comparable' in note


def test_runs_that_differ_only_in_seeds_are_one_row(tmp_path, command):
    paths = synthetic_runs.heads(tmp_path, {4: (30.0, 33.0, None), 8: (40.0,)})
    _, _, first, second, _ = command(report, *paths).out.splitlines()
    cells = [cell.strip() for cell in first.split('  ') if cell.strip()]
    assert cells[1:4] == ['2', '2 finished, 1 stopped', '4']
    assert cells[-1] == '31.50 ± 2.12'  # 3 / √2
    assert second.split()[1:3] == ['1', 'finished']
    # A folder is replaced by the runs in it.
    assert command(report, tmp_path).out.splitlines()[2].endswith('31.50 ± 2.12')


def test_table_of_a_sweep_has_its_measure(tmp_path, command, monkeypatch):
    paths = synthetic_runs.heads(tmp_path, {4: (30.0,), 8: (40.0,)})
    measure = Measure('test', 'loss', higher_is_better=False)
    sweep = dataclasses.replace(synthetic_runs.sweep(tmp_path), measure=measure)
    monkeypatch.setattr(report.planning, 'load', lambda path: sweep)
    head, _, first, *_ = command(report, *paths, '--sweep=x').out.splitlines()
    assert head.endswith('test loss') and first.endswith('1.0000')


def test_csv_has_unrounded_numbers(tmp_path, command):
    paths = make_two(tmp_path)
    rows = list(csv.DictReader(io.StringIO(command(report, *paths, '--csv').out)))
    assert [row['step'] for row in rows] == ['20', '300']
    assert [row['test bleu'] for row in rows] == ['30.0', '1.0']
    assert [row['model.num_heads'] for row in rows] == ['4', '8']
    assert 'data' not in rows[0]


def test_damaged_runs_are_skipped_with_a_note(tmp_path, command):
    good = make(tmp_path / 'good', 30.0)
    paths = []
    for name, text in (
        ('config.json', '[]'),
        ('metrics.jsonl', '{"step": 1e400, "kind": "x"}\n'),
        ('result.json', '{"evaluations": {"val": 3}}'),
    ):
        paths.append(make(tmp_path / f'bad{len(paths)}', 30.0))
        (paths[-1] / name).write_text(text)
    paths.append(make(tmp_path / 'folder', 30.0))
    (paths[-1] / 'result.json').unlink()
    (paths[-1] / 'result.json').mkdir()
    out, err = command(report, *paths, good, tmp_path / ('x' * 5000))
    assert [line.split()[0] for line in out.splitlines()[2:-1]] == [str(good)]
    notes = err.splitlines()
    assert len(notes) == len(paths) + 1
    assert all(note.startswith('skipped: ') for note in notes)
    for note, path in zip(notes, paths, strict=False):
        assert str(path) in note


SCORES = ['arm,seed,depth,score']
SCORES += [f'deep,{i},6,{30 + i}' for i in range(3)]
SCORES += [f'flat,{i},2,{20 + i + i % 2 / 4}' for i in range(3)]


def compare_scores(command, folder, rows, *arguments):
    (folder / 'scores.csv').write_text('\n'.join(rows))
    return command(report, f'--scores={folder}/scores.csv', *arguments).out


def test_scores_of_a_file_are_compared(tmp_path, command):
    lines = compare_scores(command, tmp_path, SCORES, '--base=flat').splitlines()
    assert len(lines) == 3
    assert lines[2].split()[:4] == ['deep', 'flat', '3', '9.92']


@pytest.mark.parametrize(
    ('rows', 'arguments', 'message'),
    [
        (['arm,seed,bleu', 'a,0,1'], (), "column 'score' is missing"),
        ([*SCORES, 'deep,0,6,1'], (), 'line 8: duplicate score of deep, seed 0'),
        ([*SCORES, 'deep,9,6,much'], (), "line 8: invalid score 'much'"),
        ([*SCORES, 'deep,9,6,inf'], (), "'deep', seed 9: the score inf"),
        (SCORES[:4], (), 'fewer than two arms'),
        (SCORES, ('--base=wide',), "unknown arm 'wide'. .* deep, flat"),
        (SCORES, ('runs/a',), '^runs: '),
    ],
)
def test_invalid_scores_files_are_rejected(tmp_path, command, rows, arguments, message):
    with pytest.raises(UserError, match=message) as error:
        compare_scores(command, tmp_path, rows, *arguments)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('arguments', 'field'),
    [
        (['RUN', '--out=RUN'], 'RUN'),
        (['RUN', '--out=FILE'], 'FILE'),
        (['RUN', '--base=x', '--out=NEW'], '--base'),
        (['RUN', '--measure=x', '--out=NEW'], '--measure'),
        (['RUN', '--against=x', '--out=NEW'], '--against'),
        (['RUN', '--base=x'], '--base'),
        (['NEW'], 'NEW'),
        (['NEW', 'NEW'], 'runs'),
    ],
)
def test_invalid_flags_are_rejected_before_anything_is_written(
    tmp_path, command, arguments, field
):
    run = make(tmp_path / 'run', 30.0)
    (tmp_path / 'file').write_text('')
    places = {'RUN': run, 'FILE': tmp_path / 'file', 'NEW': tmp_path / 'new'}
    for name, place in places.items():
        arguments = [argument.replace(name, str(place)) for argument in arguments]
    with pytest.raises(UserError) as error:
        command(report, *arguments)
    assert str(places.get(field, field)) in str(error.value)
    assert '\n' not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ['file', 'run']


def run_in_process(*arguments, code='pass'):
    text = f'import sys; {code}; sys.argv[1:] = {list(map(str, arguments))!r}\n'
    text += 'from experiments import report\n'
    text += 'report.flags.main(report.main)\n'
    text += "assert 'jax' not in sys.modules\n"
    text += "assert not any('.grammar' in name for name in sys.modules)\n"
    command = [sys.executable, '-c', text]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_report_is_written_without_loading_jax_or_a_grammar(tmp_path):
    run = make(tmp_path / 'run', 30.0, outputs=REFERENCES)
    # Figures and their script take seconds and import neither.
    code = 'import vl_convert; from experiments.reports import figures; '
    code += 'figures.files = lambda figure: {}; '
    code += 'vl_convert.javascript_bundle = lambda text: ""'
    result = run_in_process(run, f'--out={tmp_path / "out"}', code=code)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / 'out/index.html').exists()


def test_only_out_needs_the_packages_of_a_report(tmp_path):
    paths = synthetic_runs.heads(tmp_path, {4: (30.0, 32.0)})
    code = 'import importlib.util as u; find = u.find_spec; '
    code += 'missing = ("scipy", "altair", "vl_convert", "jinja2"); '
    code += 'u.find_spec = lambda name: None if name in missing else find(name); '
    code += 'sys.modules.update(dict.fromkeys(missing))'
    result = run_in_process(*paths, code=code)
    assert result.returncode == 0, result.stderr
    assert '31.00 ± 1.41' in result.stdout
    result = run_in_process(*paths, f'--out={tmp_path / "out"}', code=code)
    assert result.returncode == 2
    assert all(word in result.stderr for word in ('--out', 'altair', '.[report]'))
