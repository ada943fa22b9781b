"""Tests of the hooks of a run."""

import hashlib
import http.server
import importlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pages
import pytest
import small_runs
from test_ending import same_end

from experiments import hooks, registries
from experiments.errors import UserError
from experiments.hooks import tensorboard
from experiments.hooks.base import RunInfo, numbers
from experiments.runs import metrics_log

ROOT = pages.ROOT
FIELDS = small_runs.FIELDS | {
    'train.steps': 4,
    'train.ema': 0.5,  # whose state a resume has to find, too
    'optimizer.schedule': 'noam(warmup=4)',
    'evaluation.every': 2,
    'evaluation.decode': 'greedy',
    'evaluation.average': 1,
    'checkpoint.every': 1,
}
# Writes down what it is called with; at a row of a step it may raise, or kill.
RECORDER = """
import dataclasses, json, os, signal

import numpy as np

from experiments.hooks.base import Hook


@dataclasses.dataclass(kw_only=True)
class Recorder(Hook):
    file: str
    ending: str = ''

    def note(self, *called):
        with open(self.file, 'a') as file:
            file.write(json.dumps(called) + chr(10))

    def start(self, run):
        rows = [(row['kind'], row['step']) for row in run.rows]
        steps = run.config['train.steps']
        self.note('start', run.step, rows, steps, (run.path / 'config.json').exists())

    def row(self, row):
        self.note('row', row['kind'], row['step'])
        if self.ending and row['step'] == 3:
            if self.ending == 'kill':
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError('of mine')
        twice = np.int64(2 * row['step'])
        return {'twice': twice, 'step': -1, 'nan': np.float32('nan')}

    def checkpoint(self, step):
        self.note('checkpoint', step)

    def end(self, result):
        self.note('end', result and result['status'])
"""
BEFORE = [
    ['start', 0, [], 4, True],
    ['row', 'train', 1],
    ['row', 'train', 2],
    ['checkpoint', 1],  # before the next one is begun
    ['checkpoint', 2],  # before the evaluation
    ['row', 'eval', 2],
    ['row', 'train', 3],
]
AFTER = [
    ['row', 'train', 4],
    ['checkpoint', 3],
    ['checkpoint', 4],
    ['row', 'eval', 4],
    ['row', 'final', 4],
    ['end', 'finished'],
]
RESUMED = [
    ['start', 2, [['train', 1], ['train', 2], ['eval', 2]], 4, True],
    ['checkpoint', 2],
    ['row', 'train', 3],
]
pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    folder = small_runs.write_text(tmp_path_factory.mktemp('text'), val=4)
    return small_runs.source(folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / 'my_hooks.py').write_text(RECORDER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def flags(text, spec):
    changes = {'data': text, 'train.hooks': spec, 'train.log_every': 1}
    return small_runs.flags(FIELDS | changes)


def recorder(file, ending=''):
    return f'my_hooks.Recorder(file="{file}", ending="{ending}")'


def called(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope='module')
def whole(text, tmp_path_factory):
    """Returns an uninterrupted run, with a recorder before TensorBoard."""
    folder = tmp_path_factory.mktemp('whole')
    (folder / 'my_hooks.py').write_text(RECORDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        spec = f'[{recorder(folder / "calls")}, tensorboard]'
        small_runs.train(folder / 'run', *flags(text, spec))
        patch.delitem(sys.modules, 'my_hooks')
    return folder


def test_a_hook_is_called_with_each_row_and_each_whole_checkpoint(whole):
    assert called(whole / 'calls') == BEFORE + AFTER


def test_what_a_hook_returns_is_in_the_row_and_takes_no_name_from_it(whole):
    rows = metrics_log.read_rows(whole / 'run')
    kinds = [x[1:] for x in BEFORE + AFTER if x[0] == 'row']
    assert [[row['kind'], row['step']] for row in rows] == kinds
    assert [row['twice'] for row in rows] == [2 * row['step'] for row in rows]
    assert {row['nan'] for row in rows} == {None}
    written = [x for x in events(whole / 'run') if b'/twice' in x]
    assert len(written) == len(rows)  # the hook behind it has seen them
    environment = json.loads((whole / 'run' / 'environment.json').read_text())
    digest = hashlib.sha256(RECORDER.encode()).hexdigest()
    assert environment['modules']['my_hooks']['sha256'] == digest


@pytest.mark.skipif(os.name != 'posix', reason='kills as POSIX does')
def test_a_killed_run_calls_again_what_came_after_its_checkpoint(whole, text, here):
    path, file = here / 'run', here / 'calls'
    argv = ['--config=wmt_small', f'--workdir={path}']
    argv += flags(text, recorder(file, 'kill'))
    environment = os.environ | {'PYTHONPATH': f'{ROOT}{os.pathsep}{here}'}
    command = [sys.executable, '-m', 'experiments.run', *argv]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert called(file) == BEFORE
    file.unlink()
    small_runs.train(path, *flags(text, recorder(file)))
    assert called(file) == RESUMED + AFTER
    same_end(path, whole / 'run')


def test_a_hook_that_raises_keeps_its_traceback(text, here):
    path, file = here / 'run', here / 'calls'
    failing = recorder(file, 'raise')
    with pytest.raises(ValueError, match='of mine') as caught:
        small_runs.train(path, *flags(text, failing))
    assert caught.traceback[-1].path == here / 'my_hooks.py'
    name = f'my_hooks.Recorder(file={str(file)!r}, ending={"raise"!r})'
    assert caught.value.__notes__[0].replace('"', "'") == f'in train.hooks={name}'
    assert called(file) == [*BEFORE, ['end', None]]
    assert json.loads((path / 'failure.json').read_text())['status'] == 'failed'


@pytest.mark.slow
def test_the_example_of_the_page_posts_scores_and_logs_its_metric(text, here):
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers['Content-Length'])
            posted.append(self.rfile.read(length).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    (here / 'my_hooks.py').write_text(
        pages.files('docs/how_to/extend.md')['my_hooks.py']
    )
    with http.server.HTTPServer(('localhost', 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        spec = f'my_hooks.Notify(url="http://localhost:{server.server_port}")'
        small_runs.train(here / 'run', *flags(text, spec))
        server.shutdown()
    rows = metrics_log.read_rows(here / 'run')
    assert all(row['free_bytes'] > 0 for row in rows)
    scores = {row['step']: row['bleu'] for row in rows if row['kind'] == 'eval'}
    expected = [f'step {step}: BLEU {bleu:.2f}' for step, bleu in scores.items()]
    assert posted == [*expected, 'finished'] and len(scores) == 2
    assert not (here / 'run' / 'tensorboard').exists()


# The packages, as far as hooks use them: each call is a line of `calls`.
STUB = """
import types
calls = []

def record(name, answer=None):
    def called(*given, **named):
        calls.append((name, given, named))
        return answer
    return called

{rest}
"""
STUBS = {
    'wandb': """
Settings = dict
names = ('log', 'define_metric', 'finish')
run = types.SimpleNamespace(id='abc', **{name: record(name) for name in names})
init = record('init', run)
""",
    'mlflow': """
names = 'set_tracking_uri set_experiment log_params log_metrics end_run'.split()
for name in names:
    globals()[name] = record(name)
info = types.SimpleNamespace(run_id='abc')
start_run = record('start_run', types.SimpleNamespace(info=info))
""",
}
ROW = {
    **{'step': 7, 'kind': 'eval', 'set': 'val', 'time': 1.5, 'loss': 2.0},
    **{"bleu(tokenize='char')": 3, 'accuracy': None, 'direction': 'en-de'},
}


def calls_of(package, arguments, folder, result, monkeypatch):
    """Returns a hook's calls to its package in a new run and a resumed one."""
    site = folder / 'site'
    site.mkdir()
    (site / f'{package}.py').write_text(STUB.replace('{rest}', STUBS[package]))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, package, raising=False)
    found = []
    for step in (0, 4):
        made = hooks.Hooks(
            registries.make_all('train.hooks', f'{package}({arguments})')
        )
        made.start(RunInfo(folder, {'train.steps': 9}, step, []))
        made.row(dict(ROW))
        made.end(result)
        made.end(None)  # when the run is closed: it has ended already
        calls = sys.modules[package].calls
        found.append(calls.copy())
        calls.clear()
    # monkeypatch would put it back when the test ends.
    del sys.modules[package]
    return found


def test_wandb_gets_config_and_numbers_and_goes_on_in_the_same_run(
    tmp_path, monkeypatch
):
    arguments = 'project="near", offline=True'
    first, second = calls_of('wandb', arguments, tmp_path, {'x': 1}, monkeypatch)
    (_, _, init), *others = first
    assert (init['project'], init['mode'], init['id']) == ('near', 'offline', None)
    assert (init['dir'], init['config']) == (tmp_path, {'train.steps': 9})
    logged = {'step': 7, 'eval/val/loss': 2.0, "eval/val/bleu(tokenize='char')": 3}
    assert others == [
        ('define_metric', ('*',), {'step_metric': 'step'}),
        ('log', (logged,), {}),
        ('finish', (), {'exit_code': 0}),
    ]
    (_, _, again), *others_again = second
    assert again == init | {'id': 'abc'} and again['resume'] == 'allow'
    assert others_again == others


def test_mlflow_gets_config_once_and_numbers_under_names_that_it_takes(
    tmp_path, monkeypatch
):
    arguments = 'experiment="near", uri="sqlite:///x.db"'
    first, second = calls_of('mlflow', arguments, tmp_path, None, monkeypatch)
    metrics = {'eval/val/loss': 2.0, 'eval/val/bleu_tokenize__char__': 3}
    assert first == [
        ('set_tracking_uri', ('sqlite:///x.db',), {}),
        ('set_experiment', ('near',), {}),
        ('start_run', (), {'run_id': None, 'run_name': tmp_path.name}),
        ('log_params', ({'train.steps': 9},), {}),
        ('log_metrics', (metrics,), {'step': 7}),
        ('end_run', ('KILLED',), {}),
    ]
    goes_on = ('start_run', (), {'run_id': 'abc', 'run_name': None})
    assert second == [*first[:2], goes_on, *first[4:]]


@pytest.mark.parametrize(
    ('spec', 'message'),
    [
        ('tensorbord', "^train.hooks: 'tensorbord' is not one of .*'tensorboard'"),
        ('[tensorboard', '^train.hooks: .* is not a spec'),
        ('wandb(projct="x")', "^train.hooks: unknown argument 'projct'; wandb takes "),
        ('wandb(offline=1)', '^train.hooks: offline must be'),
        ('wandb', '^train.hooks: Wandb needs the package wandb: pip install wandb'),
        ('mlflow', '^train.hooks: Mlflow needs the package mlflow: pip install mlf'),
        (
            'pages.Path',
            '^train.hooks: pages.Path is not a subclass of Hook. Derive it from ',
        ),
    ],
)
def test_what_cannot_be_called_is_one_line(spec, message, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        'find_spec',
        lambda name: None if name in ('wandb', 'mlflow') else find(name),
    )
    with pytest.raises(UserError, match=message):
        registries.make_all('train.hooks', spec)


@pytest.mark.parametrize('spec', ['', '[]'])
def test_there_may_be_none(spec):
    assert registries.make_all('train.hooks', spec) == {}


def test_what_no_file_can_hold_is_refused_with_the_hooks_name(tmp_path):
    class Odd(hooks.Hook):
        def row(self, row):
            row.clear()  # its own copy
            return {'x': object()}

    made = hooks.Hooks({'odd': Odd()})
    made.start(RunInfo(tmp_path, {}, 0, []))
    row = dict(ROW)
    with pytest.raises(TypeError) as caught:
        made.row(row)
    assert caught.value.__notes__ == ['in train.hooks=odd'] and row == ROW


def test_a_hook_that_does_not_start_is_not_ended_and_those_before_it_are(tmp_path):
    ended = []

    class Good(hooks.Hook):
        def end(self, result):
            ended.append((type(self), result))

    class Bad(Good):
        def start(self, run):
            raise OSError('no network')

    made = hooks.Hooks({'good': Good(), 'bad': Bad()})
    with pytest.raises(OSError, match='no network'):
        made.start(RunInfo(tmp_path, {}, 0, []))
    made.end(None)
    made.end(None)
    assert ended == [(Good, None)]


def events(path):
    found = []
    for file in sorted((path / 'tensorboard').iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack('<Q', data[:8])
            found.append(data[12 : 12 + length])
            data = data[16 + length :]
    return found


def test_events_are_written_again_of_the_rows_that_stay(tmp_path):
    for rows in ([], [ROW, ROW | {'step': 8}]):
        made = hooks.Hooks(registries.make_all('train.hooks', 'tensorboard'))
        made.start(RunInfo(tmp_path, {}, 0, rows))
        made.row(ROW | {'step': 9})
        made.end(None)
    found = events(tmp_path)
    assert len([x for x in found if b'eval/val/loss' in x]) == 3
    assert len(found) == 1 + 3 * len(numbers(ROW)) == 7
    assert len(list((tmp_path / 'tensorboard').iterdir())) == 1


def test_whatever_may_be_in_a_row_can_be_shown(tmp_path):
    row = {'step': 2**63 - 1, 'kind': 'ä', 'x': 1e308, 'b': True}
    made = hooks.Hooks(registries.make_all('train.hooks', 'tensorboard'))
    made.start(RunInfo(tmp_path, {}, 0, [row]))
    made.end(None)
    assert len(events(tmp_path)) == 3


# What tensorboardX 2.6.5's RecordWriter wrote for these Events.
def test_events_are_bytes_as_tensorboard_reads_them():
    assert tensorboard.version(1.5).hex() == (
        '1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c'
    )
    assert tensorboard.scalar(
        1720000000.25, 123456, 'eval/val/loss', 2.71828
    ).hex() == (
        '2500000000000000eabc36f3090000108047a1d94110c0c4072a160a140a0d6576616c2f76616c2f6c6f7373'
        '154df82d40698f3f3d'
    )


def test_a_number_too_large_for_tensorboard_is_infinite():
    record = tensorboard.scalar(0.0, 1, 'perplexity', -1e300)
    assert struct.pack('<f', -np.inf) in record
