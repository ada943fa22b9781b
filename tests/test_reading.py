"""What became of a run, read from its directory; what is damaged is named."""

import json

import pytest
from made_runs import REFERENCES, SIGNATURE, SOURCES, fail, make, translate

from experiments import storage
from experiments.errors import UserError
from experiments.report import overview
from experiments.reports import arms, findings
from experiments.reports.arms import Arm
from experiments.runs import directory, reading


def test_each_state_of_a_run_is_known(tmp_path):
    make(tmp_path / 'finished', 30.0)
    make(tmp_path / 'stopped')
    fail(make(tmp_path / 'diverged'), 'diverged')
    fail(make(tmp_path / 'failed'), 'failed', message='the disk is full')
    make(tmp_path / 'running')
    with storage.locked(tmp_path / 'running' / '.lock'):
        for status in ('finished', 'stopped', 'diverged', 'failed', 'running'):
            assert reading.read_outcome(tmp_path / status).status == status
            assert reading.read_run(tmp_path / status).status == status
    assert reading.read_outcome(tmp_path / 'failed').message == 'the disk is full'
    assert reading.read_outcome(tmp_path / 'none').status == 'not begun'


RESULT = ' is not the result of a run, for .*: restore it, or remove it'
ROW = ': delete this line'
ENVIRONMENT = ' does not tell what a run ran on, for .*: move it away'


@pytest.mark.parametrize(
    ('name', 'content', 'words'),
    [
        ('config.json', '{', ' is not JSON'),
        ('result.json', '{', ' is not JSON'),
        ('result.json', '[]', RESULT),
        ('result.json', '{"evaluations": {}}', 'step is missing'),
        ('result.json', {'evaluations': {'test': 3}}, RESULT),
        ('result.json', {'evaluations': {'test': {}}}, 'loss is missing'),
        ('metrics.jsonl', '{"kind": "train"}\n', ROW),
        ('failure.json', '{', ' is not JSON'),
        ('environment.json', '[]', ENVIRONMENT),
    ],
)
def test_a_damaged_file_is_one_line_with_its_path(tmp_path, name, content, words):
    path = make(tmp_path / 'run', None if name == 'failure.json' else 30.0)
    if isinstance(content, dict):
        content = json.dumps(json.loads((path / name).read_text('utf-8')) | content)
    (path / name).write_text(content)
    with pytest.raises(UserError, match=words) as error:
        reading.read_run(path)
    assert str(path / name) in str(error.value)


def test_translations_are_read_with_their_sources(tmp_path):
    path = make(tmp_path / 'run', 30.0)
    run = reading.read_run(path)
    assert reading.read_translations(run, 'test') is None
    translate(path, REFERENCES)
    found = reading.read_translations(run, 'test')
    known = [(text,) for text in REFERENCES]
    assert found == (SOURCES, known, REFERENCES)
    for name, content, words in (
        ('test.step=20.txt', b'one line\n', 'has not as many lines as the sources'),
        ('test.reference.txt', b'\xff\n' * 3, 'cannot read'),
    ):
        (path / 'translations' / name).write_bytes(content)
        with pytest.raises(UserError, match=f'{name}.*{words}|{words}.*{name}'):
            reading.read_translations(run, 'test')


def test_scores_that_were_added_later_are_those_of_the_final_checkpoints(tmp_path):
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
    assert {name: x['bleu'] for name, x in run.evaluations.items()} == {
        'test': 30.0,
        'news': 12.5,
    }
    table = overview([Arm('run', (run,))], ())
    assert dict(zip(table.columns, table.rows[0], strict=True))['news bleu'] == 12.5
    study = arms.study([run], None, '', 'news bleu')
    assert [row[:2] for row in findings.scores(study).rows] == [
        ('test', study.base.name),
        ('news', study.base.name),
    ]
    assert study.base.spread(study.measure).mean == 12.5


def test_an_unfinished_run_has_what_its_metrics_tell(tmp_path):
    rows = [
        (5, 'train', {'loss': 3.0, 'tokens_per_second': 70.0}),
        (6, 'eval', {'set': 'val', 'bleu': 1.5}),
        (6, 'eval', {'set': 'test', 'bleu': 2.5}),
    ]
    run = reading.read_run(make(tmp_path / 'run', rows=rows))
    assert run.result['step'] == 6 and run.result['tokens_per_second'] == 70.0
    assert {name: x['bleu'] for name, x in run.evaluations.items()} == {
        'val': 1.5,
        'test': 2.5,
    }
    assert [row['set'] for row in run.dev_rows()] == ['val']
    assert run.tokens is None and not run.finished
    assert directory.RESULT not in {file.name for file in run.path.iterdir()}
