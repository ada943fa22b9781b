"""Tests of the hooks of a run: when they are called, and what they write."""

import hashlib
import http.server
import importlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pages
import pytest
import small_runs

from experiments import hooks, registries
from experiments.errors import UserError
from experiments.hooks import tensorboard
from experiments.hooks.base import RunInfo, numbers
from experiments.runs import metrics_log

pytestmark = pytest.mark.usefixtures('cache')
# Records its calls. At the row of step 10 it may raise an error, or kill the process.
RECORDER = """
import dataclasses, json, os, signal

import numpy as np

from experiments.hooks.base import Hook


@dataclasses.dataclass(kw_only=True)
class Recorder(Hook):
    file: str
    end_at: str = ''  # 'kill' or 'raise'

    def record(self, *call):
        with open(self.file, 'a') as file:
            file.write(json.dumps(call) + chr(10))

    def start(self, run):
        rows = [(row['kind'], row['step']) for row in run.rows]
        steps = run.config['train.steps']
        self.record('start', run.step, rows, steps, (run.path / 'config.json').exists())

    def row(self, row):
        self.record('row', row['kind'], row['step'])
        if self.end_at and row['step'] == 10:
            if self.end_at == 'kill':
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError('from the hook')
        twice = np.int64(2 * row['step'])
        return {'twice': twice, 'step': -1, 'nan': np.float32('nan')}

    def checkpoint(self, step):
        self.record('checkpoint', step)

    def end(self, result):
        self.record('end', result and result['status'])
"""
ROWS = [['train', 2], ['train', 4], ['train', 6], ['eval', 6], ['train', 8]]
RESUMED = [['start', 8, ROWS, 12, True], ['checkpoint', 8], ['row', 'train', 10]]
# A checkpoint is reported when it is complete: before the next one, or an evaluation.
LATER = [
    ['row', 'train', 12],
    ['checkpoint', 12],
    ['row', 'eval', 12],
    ['row', 'final', 12],
    ['row', 'final', 12],
    ['end', 'finished'],
]


@pytest.fixture
def hook_folder(tmp_path, monkeypatch):
    """Returns the working directory, which has the module `my_hooks`."""
    (tmp_path / 'my_hooks.py').write_text(RECORDER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def arguments(text, path, spec):
    return small_runs.arguments(text, path, train__hooks=spec)


def recorder(file, end_at=''):
    return f'my_hooks.Recorder(file="{file}", end_at="{end_at}")'


def calls(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def resumable_run(unfinished_copy):
    """Returns a run that resumes at step 8."""
    shutil.rmtree(unfinished_copy / 'checkpoints/12')
    return unfinished_copy


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='needs the signals of POSIX')
def test_killed_run_resumes_bit_for_bit_and_repeats_later_hook_calls(
    trained_run, resumable_run, short_text, hook_folder
):
    path, file = resumable_run, hook_folder / 'calls'
    command = [sys.executable, '-m', 'experiments.run']
    command += arguments(short_text, path, recorder(file, 'kill'))
    environment = os.environ | {'PYTHONPATH': f'{pages.ROOT}{os.pathsep}{hook_folder}'}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert calls(file) == RESUMED
    file.unlink()

    spec = f'[{recorder(file)}, tensorboard]'
    small_runs.train(path, *arguments(short_text, path, spec)[2:])
    assert calls(file) == RESUMED + LATER
    result = small_runs.without_clocks(small_runs.result(path))
    assert result == small_runs.without_clocks(small_runs.result(trained_run))
    rows = small_runs.rows(path)
    new = [row for row in rows if 'twice' in row]
    added = ('twice', 'nan')
    assert [
        {name: value for name, value in row.items() if name not in added}
        for row in rows
    ] == small_runs.rows(trained_run)
    # Entries of a hook are stored and reach later hooks, but replace no others.
    assert [row['twice'] for row in new] == [20, 24, 24, 24, 24]
    assert {row['nan'] for row in new} == {None}
    assert len([x for x in events(path) if b'/twice' in x]) == len(new)
    modules = json.loads((path / 'environment.json').read_text())['modules']
    digest = hashlib.sha256(RECORDER.encode()).hexdigest()
    assert modules['my_hooks']['sha256'] == digest


@pytest.mark.slow
def test_error_of_a_hook_ends_the_run_with_its_traceback(
    resumable_run, short_text, hook_folder
):
    path, file = resumable_run, hook_folder / 'calls'
    argv = arguments(short_text, path, recorder(file, 'raise'))
    with pytest.raises(ValueError, match='from the hook') as error:
        small_runs.train(path, *argv[2:])
    assert error.traceback[-1].path == hook_folder / 'my_hooks.py'
    assert error.value.__notes__[0].startswith('in train.hooks=my_hooks.Recorder(')
    assert calls(file) == [*RESUMED, ['end', None]]
    assert json.loads((path / 'failure.json').read_text())['status'] == 'failed'


@pytest.mark.slow
def test_example_hook_of_the_docs_posts_scores_and_logs_its_metric(
    short_text, hook_folder
):
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers['Content-Length'])
            posted.append(self.rfile.read(length).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    example = pages.files('docs/how_to/extend.md')['my_hooks.py']
    (hook_folder / 'my_hooks.py').write_text(example)
    path = hook_folder / 'run'
    with http.server.HTTPServer(('localhost', 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        spec = f'my_hooks.Notify(url="http://localhost:{server.server_port}")'
        small_runs.train(path, *arguments(short_text, path, spec)[2:])
        server.shutdown()
    rows = metrics_log.read_rows(path)
    assert all(row['free_bytes'] > 0 for row in rows)
    scores = {row['step']: row['bleu'] for row in rows if row['kind'] == 'eval'}
    expected = [f'step {step}: BLEU {bleu:.2f}' for step, bleu in scores.items()]
    assert posted == [*expected, 'finished'] and len(scores) == 2
    assert not (path / 'tensorboard').exists()


# Stubs of the packages, as far as hooks use them. They append each call to `calls`.
STUB = """
import types
calls = []

def record(name, answer=None):
    def call(*arguments, **named):
        calls.append((name, arguments, named))
        return answer
    return call

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


def make_hooks(spec):
    return hooks.Hooks(registries.make_all('train.hooks', spec))


def calls_of(package, arguments, folder, result, monkeypatch):
    """Returns a hook's calls to its package in a new run and a resumed one."""
    site = folder / 'site'
    site.mkdir()
    (site / f'{package}.py').write_text(STUB.replace('{rest}', STUBS[package]))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, package, raising=False)
    found = []
    for step in (0, 4):
        run_hooks = make_hooks(f'{package}({arguments})')
        run_hooks.start(RunInfo(folder, {'train.steps': 9}, step, []))
        run_hooks.row(dict(ROW))
        run_hooks.end(result)
        run_hooks.end(None)  # has no effect: the hooks have ended
        recorded = sys.modules[package].calls
        found.append(recorded.copy())
        recorded.clear()
    # monkeypatch would restore it when the test ends.
    del sys.modules[package]
    return found


def test_wandb_gets_config_and_numbers_and_resumes_the_same_run(tmp_path, monkeypatch):
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
    (_, _, resumed), *others_resumed = second
    assert resumed == init | {'id': 'abc'} and resumed['resume'] == 'allow'
    assert others_resumed == others


def test_mlflow_gets_config_once_and_numbers_with_valid_names(tmp_path, monkeypatch):
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
    resumed = ('start_run', (), {'run_id': 'abc', 'run_name': None})
    assert second == [*first[:2], resumed, *first[4:]]


@pytest.mark.parametrize(
    ('spec', 'message'),
    [
        ('tensorbord', "'tensorbord' is not one of .*'tensorboard'"),
        ('[tensorboard', 'is not a spec'),
        ('wandb(projct="x")', "unknown argument 'projct'"),
        ('wandb(offline=1)', 'offline must be'),
        ('wandb', 'Wandb needs the package wandb: pip install wandb'),
        ('mlflow', 'Mlflow needs the package mlflow: pip install mlflow'),
        ('pages.Path', 'pages.Path is not a subclass of Hook'),
    ],
)
def test_invalid_hook_is_rejected(spec, message, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        'find_spec',
        lambda name: None if name in ('wandb', 'mlflow') else find(name),
    )
    with pytest.raises(UserError, match=f'^train.hooks: .*{message}'):
        registries.make_all('train.hooks', spec)


@pytest.mark.parametrize('spec', ['', '[]'])
def test_empty_spec_has_no_hooks(spec):
    assert registries.make_all('train.hooks', spec) == {}


def test_unstorable_value_is_rejected_with_the_name_of_its_hook(tmp_path):
    class Invalid(hooks.Hook):
        def row(self, row):
            row.clear()  # a copy
            return {'x': object()}

    run_hooks = hooks.Hooks({'invalid': Invalid()})
    run_hooks.start(RunInfo(tmp_path, {}, 0, []))
    row = dict(ROW)
    with pytest.raises(TypeError) as error:
        run_hooks.row(row)
    assert error.value.__notes__ == ['in train.hooks=invalid'] and row == ROW


def test_failed_start_ends_only_the_hooks_that_have_started(tmp_path):
    ended = []

    class Good(hooks.Hook):
        def end(self, result):
            ended.append((type(self), result))

    class Bad(Good):
        def start(self, run):
            raise OSError('no network')

    run_hooks = hooks.Hooks({'good': Good(), 'bad': Bad()})
    with pytest.raises(OSError, match='no network'):
        run_hooks.start(RunInfo(tmp_path, {}, 0, []))
    run_hooks.end(None)
    run_hooks.end(None)
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


def test_resume_rewrites_the_events_of_earlier_rows(tmp_path):
    largest = {'step': 2**63 - 1, 'kind': 'ä', 'x': 1e308, 'b': True}
    for rows in ([], [ROW, largest]):
        run_hooks = make_hooks('tensorboard')
        run_hooks.start(RunInfo(tmp_path, {}, 0, rows))
        run_hooks.row(ROW | {'step': 9})
        run_hooks.end(None)
    found = events(tmp_path)
    assert len([x for x in found if b'eval/val/loss' in x]) == 2
    assert len(found) == 1 + 2 * len(numbers(ROW)) + 2
    assert len(list((tmp_path / 'tensorboard').iterdir())) == 1


# What tensorboardX 2.6.5's RecordWriter wrote for these Events.
def test_events_equal_those_of_tensorboardx():
    assert tensorboard.version(1.5).hex() == (
        '1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c'
    )
    assert tensorboard.scalar(
        1720000000.25, 123456, 'eval/val/loss', 2.71828
    ).hex() == (
        '2500000000000000eabc36f3090000108047a1d94110c0c4072a160a140a0d6576616c2f76616c2f6c6f7373'
        '154df82d40698f3f3d'
    )


def test_number_beyond_float32_is_infinite_in_tensorboard():
    record = tensorboard.scalar(0.0, 1, 'perplexity', -1e300)
    assert struct.pack('<f', -np.inf) in record
