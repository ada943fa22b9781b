"""Tests of run status and results, read from a directory that may be damaged."""

import json

import pytest
from synthetic_runs import REFERENCES, SIGNATURE, SOURCES, fail, make, study, translate

from experiments import storage
from experiments.errors import UserError
from experiments.report import overview
from experiments.reports import findings
from experiments.reports.arms import Arm
from experiments.runs import directory, reading


def test_run_status_is_read_from_the_directory(tmp_path):
    make(tmp_path / 'finished', 30.0)
    make(tmp_path / 'stopped')
    fail(make(tmp_path / 'diverged'), 'diverged')
    fail(make(tmp_path / 'failed'), 'failed', message='the disk is full')
    make(tmp_path / 'running')
    with storage.lock(tmp_path / 'running' / '.lock'):
        for status in ('finished', 'stopped', 'diverged', 'failed', 'running'):
            assert reading.run_status(tmp_path / status).status == status
            assert reading.read_run(tmp_path / status).status == status
    assert reading.run_status(tmp_path / 'failed').message == 'the disk is full'
    assert reading.run_status(tmp_path / 'none').status == 'not begun'


ROWS = [(6, 'eval', {'set': 'val', 'bleu': 1.5, 'bleu_signature': 'x', 'loss': 1.0})]


# A file, and its whole text or a field with its value. The error names both.
@pytest.mark.parametrize(
    ('name', 'field', 'value'),
    [
        ('config.json', None, '{'),
        ('config.json', 'tokenizer', '((('),
        ('config.json', 'model', 3),
        ('config.json', 'batch.tokens', 10**400),
        ('result.json', None, '{'),
        ('result.json', None, '{"evaluations": {}}'),
        ('result.json', 'step', '20'),
        ('result.json', 'step', -20),
        ('result.json', 'evaluations', []),
        ('result.json', 'evaluations.test', {}),
        ('result.json', 'evaluations.test.bleu', [30.0]),
        ('result.json', 'evaluations.test.bleu_signature', 5),
        ('result.json', 'evaluations.test.lower_is_better', 'bleu'),
        ('result.json', 'train_seconds', 'long'),
        ('result.json', 'averaged_steps', [[20]]),
        ('metrics.jsonl', None, '{"kind": "train"}\n'),
        ('metrics.jsonl', 'time', 'noon'),
        ('metrics.jsonl', 'bleu', []),
        ('metrics.jsonl', 'set', 7),
        ('environment.json', 'devices', [1]),
        ('environment.json', 'git', 'abc'),
        ('failure.json', None, '{'),
        ('failure.json', 'status', 5),
    ],
)
def test_damaged_files_are_named_with_the_damaged_field(tmp_path, name, field, value):
    bleu = 30.0 if name == 'result.json' else None
    environment = {'devices': {'cpu': 1}, 'git': None}
    path = make(tmp_path / 'run', bleu, rows=ROWS, environment=environment)
    if name == 'failure.json':
        fail(path)
    text = value
    if field is not None:
        content = json.loads((path / name).read_text('utf-8'))
        *parents, last = field.split('.')
        entry = content
        for parent in parents:
            entry = entry[parent]
        entry[last] = value
        text = json.dumps(content) + '\n'
    (path / name).write_text(text)
    with pytest.raises(UserError) as error:
        reading.read_run(path)
    message = str(error.value)
    assert str(path / name) in message and '\n' not in message
    assert field is None or f': {field}' in message, message


def test_translations_are_read_with_their_sources(tmp_path):
    path = make(tmp_path / 'run', 30.0)
    run = reading.read_run(path)
    assert reading.read_translations(run, 'test') is None
    translate(path, REFERENCES)
    references = [(text,) for text in REFERENCES]
    translations = reading.read_translations(run, 'test')
    assert translations == (SOURCES, references, REFERENCES)
    for name, content in (
        ('test.step=20.txt', b'one line\n'),
        ('test.reference.txt', b'\xff\n' * 3),
    ):
        (path / 'translations' / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            reading.read_translations(run, 'test')


def test_scores_added_later_are_read_for_the_final_checkpoints(tmp_path):
    path = make(tmp_path / 'run', 30.0, result={'averaged_steps': [15, 20]})
    for file, name, bleu in (
        ('news.step=20,mean_of=2', 'news', 12.5),
        ('test.step=20,mean_of=2', 'test', 29.0),  # the result has its own
        ('other.step=20', 'other', 1.0),  # of one checkpoint
        ('other.step=15,mean_of=2', 'other', 2.0),
    ):
        scores = {'set': name, 'bleu': bleu, 'bleu_signature': SIGNATURE}
        storage.write_json(path / 'translations' / f'{file}.json', scores)
    run = reading.read_run(path)
    scores = {name: x['bleu'] for name, x in run.evaluations.items()}
    assert scores == {'test': 30.0, 'news': 12.5}
    table = overview([Arm('run', (run,))], ())
    assert dict(zip(table.columns, table.rows[0], strict=True))['news bleu'] == 12.5
    by_news = study([path], measure='news bleu')
    assert [row[0] for row in findings.scores(by_news).rows] == ['test', 'news']
    assert by_news.base.spread(by_news.measure).mean == 12.5


def test_unfinished_runs_have_the_scores_of_their_metrics(tmp_path):
    rows = [
        (5, 'train', {'loss': 3.0, 'tokens_per_second': 70.0}),
        (6, 'eval', {'set': 'val', 'bleu': 1.5}),
        (6, 'eval', {'set': 'test', 'bleu': 2.5}),
    ]
    run = reading.read_run(make(tmp_path / 'run', rows=rows))
    assert run.result['step'] == 6 and run.result['tokens_per_second'] == 70.0
    scores = {name: x['bleu'] for name, x in run.evaluations.items()}
    assert scores == {'val': 1.5, 'test': 2.5}
    assert [row['set'] for row in run.dev_rows()] == ['val']
    assert run.tokens is None and not run.finished
    assert directory.RESULT not in {file.name for file in run.path.iterdir()}
