"""Tests of a sweep's workers and output, and of a whole sweep by its command."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_runs
from test_sweep_schema import write_sweep

from experiments import storage, sweep
from experiments.command_line import console
from experiments.costs.ledger import ledger
from experiments.errors import UserError
from experiments.runs import directory, metrics_log
from experiments.runtime import compilation
from experiments.sweeps import analysis, planning, power, progress, workers
from experiments.training import loop

ROOT = Path(__file__).parents[3]
DIVERGED = {'status': 'diverged', 'step': 3, 'message': 'not finite'}
FAILED = {'status': 'failed', 'step': None, 'message': 'the disk is full'}

pytestmark = pytest.mark.usefixtures('cache')


def write(path, name, value):
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(json.dumps(value), encoding='utf-8')


def finish(path):
    scores = dict(direction='en-de', sentences=4, bleu_signature='', chrf_signature='')
    scores |= dict.fromkeys(('loss', 'perplexity', 'accuracy', 'bleu', 'chrf'), 12.5)
    result = dict(step=100, parameters=9, train_seconds=50.0, tokens_per_second=3)
    write(path, 'result.json', result | {'evaluations': {'test': scores}})


def fail(path, failure):
    write(path, 'failure.json', failure)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = {'model.d_model': 16, 'model.num_heads': 2, 'model.num_layers': 1}
    sizes |= {'train.steps': 100}
    arms = {name: {'model.d_ff': 16 * i} for i, name in enumerate('abcdef', 1)}
    return planning.load(
        write_sweep(tmp_path, overrides=sizes, arms=arms, base='a', seeds=[0])
    )


@pytest.fixture
def made(monkeypatch, planned):
    """Returns the arms of the runs that a stub has created."""
    arms = {run.path: run.arm for run in planned.runs}
    made = []

    def run(config, path, overrides, screen, program_cache):
        made.append(arms[path])
        finish(path)

    monkeypatch.setattr(loop, 'run', run)
    return made


def test_each_worker_begins_at_its_own_place_and_helps_with_the_rest(planned, made):
    workers.make_runs(planned.runs, 1, 3)
    assert ''.join(made) == 'cdefab'
    made.clear()
    workers.make_runs(planned.runs, 0, 3)
    assert made == []  # all are finished


def test_runs_that_ended_or_are_in_use_are_skipped(planned, made):
    a, b, c, d, _, _ = [run.path for run in planned.runs]
    finish(a)
    fail(b, DIVERGED)
    fail(c, FAILED)
    with storage.lock(d / '.lock'):
        workers.make_runs(planned.runs, 0, 1)
    assert ''.join(made) == 'ef'
    workers.forget_failures(planned)  # as the next call of the command does
    workers.make_runs(planned.runs, 0, 1)
    assert ''.join(made) == 'efcd'


@pytest.mark.parametrize(
    'error',
    [
        UserError('no text'),
        ZeroDivisionError('by zero'),
        storage.InUse('now'),
    ],
)
def test_an_error_stops_no_other_run(planned, made, monkeypatch, error, capsys):
    make = loop.run

    def fail(config, path, *arguments, **options):
        if path == planned.runs[1].path:
            raise error
        make(config, path, *arguments, **options)

    monkeypatch.setattr(loop, 'run', fail)
    workers.make_runs(planned.runs, 0, 1)
    assert ''.join(made) == 'acdef'
    out = capsys.readouterr().out
    assert (str(error) in out) == (type(error) is not storage.InUse)
    assert ('Traceback' in out) == (type(error) is ZeroDivisionError)


WORKER = """
import os, sys, time
from experiments.command_line import stopping
from experiments.sweeps import workers
stopping.watch()
workers.stop_with_parent()
print('ready', flush=True)
time.sleep(float(sys.argv[1]))
print('made')
"""


def worker(seconds, is_started_here):
    mark = {workers._STARTED_HERE: '1'} if is_started_here else {}
    return subprocess.Popen(
        [sys.executable, '-c', WORKER, str(seconds)],
        cwd=ROOT,
        env=os.environ | mark,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(os.name != 'posix', reason='signals as POSIX has them')
@pytest.mark.parametrize('worker', [(0, 0), (2, 2), (3, 2)])
def test_worker_number_must_be_less_than_their_count(tmp_path, monkeypatch, worker):
    file = write_sweep(tmp_path)
    argv = ['sweep', f'--config={file}', '--worker', *map(str, worker)]
    monkeypatch.setattr(sys, 'argv', argv)
    number, of = worker
    with pytest.raises(UserError, match=f'^--worker: .* {number} {of}'):
        sweep.main()


def test_a_worker_stops_with_the_process_that_started_it():
    with worker(60, is_started_here=True) as process:
        process.stdout.readline()
        process.stdin.close()  # as if the parent had died
        assert process.wait(timeout=20) == -signal.SIGTERM
    # A worker of a job array ignores its standard input.
    with worker(0.5, is_started_here=False) as process:
        process.stdin.close()
        assert process.stdout.read() == 'ready\nmade\n'


def test_resumed_sweep_starts_the_requested_workers(folder, monkeypatch, capsys):
    file = write_small(folder, {'base': {}})
    for run in planning.load(file).runs:
        with directory.open_run(run.path, run.config.to_dict()):
            finish(run.path)
    numbers = []

    def start_here(config, number, logs):
        numbers.append(number)
        return []

    monkeypatch.setattr(workers, 'start_here', start_here)
    monkeypatch.setattr(progress, 'summary', lambda planned: '')
    assert run_sweep(monkeypatch, file, '--workers=1') == 0
    assert numbers == [1]
    out = capsys.readouterr().out
    assert '2 of 2 runs have already ended' in out
    then = f'next: python -m experiments.report --sweep={file} --out=report'
    assert out.splitlines()[-1] == then


def test_sweep_waits_for_runs_of_other_processes(planned, monkeypatch, capsys):
    path = planned.runs[0].path
    path.mkdir(parents=True)
    with contextlib.ExitStack() as others:
        assert not sweep._wait_for_others(planned, lambda: False)
        others.enter_context(storage.lock(path / '.lock'))
        monkeypatch.setattr(time, 'sleep', lambda seconds: others.close())
        assert sweep._wait_for_others(planned, lambda: False)
    assert capsys.readouterr().out == 'waiting for runs of other processes\n'


def test_progress_shows_ended_runs_and_their_times(planned, capsys):
    first, second, third, *_ = [run.path for run in planned.runs]
    finish(first)
    said = {first}
    finish(second)
    fail(third, DIVERGED)
    progress.say_ended(planned, said)
    progress.say_ended(planned, said)
    assert capsys.readouterr().out.splitlines() == [
        '[2/6] b, seed 0: test bleu 12.50, trained in 0:50',
        '[3/6] c, seed 0: diverged: not finite',
    ]
    assert [line.split() for line in progress.summary(planned).splitlines()[2:5]] == [
        ['a', '1', 'finished', '12.50'],
        ['b', '1', 'finished', '12.50'],
        ['c', '1', 'diverged', '-'],
    ]


def test_the_rate_of_a_much_smaller_run_prices_no_larger_one():
    large = progress.Work(flops=4e9, batch=1e6)
    small = progress.Work(flops=1e9, batch=2e5, seconds=900)
    similar = progress.Work(flops=1e9, batch=3e5, seconds=9)
    unknown = progress.Work(flops=None, batch=None, seconds=9)
    bare = 'cost: 4 × 10⁹ FLOPs'
    assert progress.total_cost([large], [small, unknown]) == bare
    text = progress.total_cost([large], [small, unknown, similar])
    assert text == f'{bare}, about 0.01 worker hours (from similar runs)'
    # The total time needs a rate for every run.
    assert 'hours' not in progress.total_cost([large, unknown], [similar])


def test_heading_counts_arms_and_seeds(tmp_path):
    for number, words in ((1, '1 (1 arm × 1 seed)'), (2, '4 (2 arms × 2 seeds)')):
        arms = {name: {'model.num_heads': i} for i, name in enumerate('ab'[:number], 1)}
        seeds = range(number)
        file = write_sweep(tmp_path, arms=arms, base='a', seeds=[*seeds])
        assert f'  {words}\n' in progress.heading(planning.load(file))


def test_a_plan_has_a_line_for_each_arm_with_its_costs(planned, monkeypatch):
    cached = functools.cache(ledger)
    monkeypatch.setattr('experiments.costs.ledger.ledger', cached)
    finish(planned.runs[0].path)
    first, second, *_, cost = progress.plan(planned, is_exact=True).splitlines()[2:]
    book = cached(planned.runs[0].config)
    flops = 100 * book['flops_per_token']['total'] * book['batch']['tokens']
    costs = f'{book["parameters"]["total"]:,} {flops / 1e10:.3g} × 10¹⁰'
    assert first.split() == ['a', '1/1', *costs.split(), '0']
    assert second.split()[:2] == ['b', '0/1'] and float(second.split()[-1]) > 0
    # The other five cost a little more each, with wider layers: 50 seconds are one.
    left = sum(
        100 * of['flops_per_token']['total'] * of['batch']['tokens']
        for of in (cached(run.config) for run in planned.runs[1:])
    )
    hours = left / float(flops) * 50 / 3600
    assert cost == (
        f'cost: {left / 1e11:.3g} × 10¹¹ FLOPs, about {hours:.2g} worker hours '
        '(from similar runs)'
    )


def test_a_plan_counts_the_base_and_estimates_the_other_arms(planned, monkeypatch):
    monkeypatch.setattr(progress, '_matmul_rate', lambda dtype: 1e9)
    monkeypatch.setattr('shutil.which', lambda name: None)
    counted = []
    monkeypatch.setattr(
        'experiments.costs.ledger.ledger', lambda x: counted.append(x) or ledger(x)
    )
    *rows, note, cost = progress.plan(planned).splitlines()[2:]
    assert counted == [planned.runs[0].config]
    flops = float(ledger(planned.runs[0].config)['flops']['training'])
    assert [row.split()[2] == '-' for row in rows] == [False] + 5 * [True]
    assert {' '.join(row.split()[3:6]) for row in rows} == {console.cell(flops)}
    assert note.startswith('FLOPs of all arms are estimated from a, by training tok')
    assert cost.startswith(
        f'cost: {console.cell(6 * flops)} FLOPs, at least '
        f'{6 * flops / 1e9 / 3600:.2g} worker hours on this CPU: at 1 GFLOP/s, the '
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{os.environ.get("PYTHONPATH", "")}')
    (tmp_path / 'text').mkdir()
    small_runs.write_text(tmp_path / 'text', val=4)
    return tmp_path


def write_small(folder, arms, **overrides):
    fields = small_runs.SHORT | {'data': small_runs.source('text')}
    fields |= {'evaluation.every': 0} | overrides
    return write_sweep(
        folder, overrides=fields, arms=arms, base='base', measure='val loss'
    )


def run_sweep(monkeypatch, file, *arguments):
    monkeypatch.setattr(sys, 'argv', ['sweep', f'--config={file}', *arguments])
    try:
        sweep.main()
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.slow
def test_sweep_trains_as_the_command_line_and_continues_after_failures(
    folder, monkeypatch, capsys
):
    arms = {
        'base': {},
        'diverges': {'optimizer.schedule': 'constant_schedule(value=1e30)'},
        'fails': {'model.positions': 'learned(max_length=3)'},
    }
    file = write_small(folder, arms)
    assert run_sweep(monkeypatch, file) == 1
    out, err = capsys.readouterr()
    assert '[1/6] base, seed 0: val loss ' in out
    assert '[3/6] diverges, seed 0: diverged: loss or gradient not finite' in out
    *_, base, diverges, fails, following = out.splitlines()
    assert [line.split()[:3] for line in (base, diverges, fails)] == [
        ['base', '2', 'finished'],
        ['diverges', '2', 'diverged'],
        ['fails', '2', 'not'],
    ]
    assert following.startswith('next: ')
    assert err.count('not begun: see the logs in runs/.sweeps/heads/') == 2
    log = (folder / 'runs/.sweeps/heads/worker0.log').read_text('utf-8')
    assert 'error: ' in log and 'the model has learned positions for only 3' in log
    runs = planning.load(file).runs
    arguments = small_runs.flags(runs[0].overrides)
    small_runs.train(folder / 'alone', *arguments)
    sums = []
    for path in (folder / 'alone', runs[0].path, runs[1].path):
        result = json.loads((path / 'result.json').read_text('utf-8'))
        sums.append((result['parameters_sha256'], str(result['evaluations'])))
    assert sums[0] == sums[1] and sums[1][0] != sums[2][0]
    # Ended runs stay unchanged.
    before = (runs[0].path / 'result.json').stat().st_mtime_ns
    assert run_sweep(monkeypatch, file) == 1
    out, _ = capsys.readouterr()
    assert '4 of 6 runs have already ended' in out and '[' not in out
    assert (runs[0].path / 'result.json').stat().st_mtime_ns == before


def test_a_dry_run_shows_all_and_writes_nothing(folder, monkeypatch, capsys):
    file = write_small(folder, {'base': {}, 'heads=4': {'model.num_heads': 4}})
    assert run_sweep(monkeypatch, file, '--dry_run') == 0
    out, _ = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines() if ' 0/2 ' in line] == [
        ['base', '0/2'],
        ['heads=4', '0/2'],
    ]
    assert 'How many heads?' in out
    assert 'power: unknown until an arm has finished two seeds' in out
    assert not (folder / 'runs').exists()


HEADS = {name: {'model.num_heads': int(name)} for name in '1248'}
TWO_SEEDS = dict.fromkeys(HEADS, 2)
PAIRS = [('1', '2'), ('4', '2'), ('8', '4'), ('1', '4')]  # of two bases


@pytest.mark.parametrize(
    ('fields', 'pairs', 'seeds', 'design'),
    [
        ({}, [(name, '1') for name in '248'], TWO_SEEDS, analysis.Design()),
        ({'contrasts': [('4', '2')]}, [('4', '2')], TWO_SEEDS, analysis.Design()),
        (
            {'contrasts': PAIRS, 'base_seeds': range(5)},
            PAIRS,
            TWO_SEEDS | {'2': 5, '4': 5},
            analysis.Design(blocks=False),
        ),
    ],
)
def test_power_is_that_of_the_contrasts_and_seeds(
    folder, monkeypatch, fields, pairs, seeds, design
):
    base = pairs[0][1]
    file = write_sweep(folder, arms=HEADS, base=base, seeds=[0, 1], **fields)
    pilot = {'2': {0: 4.0, 1: 4.1}, '4': {0: 4.4, 1: 4.9}}
    monkeypatch.setattr(planning, 'scores', lambda runs: pilot)
    least = analysis.minimum_detectable(pilot, pairs, seeds, design)
    planned = planning.load(file)
    assert f'difference {console.cell(least)} (80% power' in power.text(planned)
    number = str(sum(seeds.values()))
    assert f' {number} (4 arms × 2 seeds' in progress.heading(planned)


def test_a_sweep_for_a_gpu_is_planned_without_one(folder, monkeypatch, capsys):
    sizes = {'model.dtype': 'bfloat16', 'model.d_k': 8, 'model.d_v': 8}
    flash = sizes | {'model.attention': 'flash'}
    file = write_small(folder, {'base': sizes, 'flash': flash})
    assert run_sweep(monkeypatch, file, '--dry_run') == 0
    assert 'flash' in capsys.readouterr().out


def test_dry_run_shows_the_power_on_each_data_set(folder, monkeypatch):
    scans = {name: {'data': f'scan(split="{name}")'} for name in ('simple', 'length')}
    heads = {name: {'model.num_heads': int(name)} for name in ('2', '4')}
    factors = {'split': scans, 'heads': heads}
    file = write_sweep(folder, arms={}, factors=factors, base='simple, 2')
    pilot = {'simple, 2': {0: 4.0, 1: 4.1}, 'simple, 4': {0: 4.4, 1: 4.9}}
    monkeypatch.setattr(planning, 'scores', lambda runs: pilot)
    simple, length = power.text(planning.load(file)).splitlines()
    where = 'power for the data of simple, 2: minimum detectable difference '
    assert simple.startswith(where)
    unknown = 'power for the data of length, 2: unknown until an arm has finished'
    assert length.startswith(unknown)


def test_a_pilot_gives_the_power(folder, monkeypatch, capsys):
    arms = {'base': {}, 'heads=4': {'model.num_heads': 4}}
    file = write_small(folder, arms)
    tables = folder / 'pilot/tables'
    tables.mkdir(parents=True)
    rows = ['arm,seed,score', 'other,0,4.0', 'other,1,4.2', 'more,0,4.1', 'more,1,4.5']
    (tables / 'runs.csv').write_text('\n'.join(rows), 'utf-8')
    (tables / 'arms.csv').write_text('arm,val loss\nother,4.1\n', 'utf-8')
    assert run_sweep(monkeypatch, file, '--dry_run', '--pilot=pilot') == 0
    out, _ = capsys.readouterr()
    scores = {'other': {'0': 4.0, '1': 4.2}, 'more': {'0': 4.1, '1': 4.5}}
    seeds = dict.fromkeys(arms, 2)
    least = analysis.minimum_detectable(scores, [('heads=4', 'base')], seeds)
    assert f'difference {console.cell(least)} (80% power' in out and 'pilot' in out
    (tables / 'arms.csv').write_text('arm,test bleu\nother,4.1\n', 'utf-8')
    with pytest.raises(UserError, match="--pilot=pilot: .*'val loss'"):
        run_sweep(monkeypatch, file, '--dry_run', '--pilot=pilot')
    (tables / 'runs.csv').unlink()
    with pytest.raises(UserError, match='--pilot=pilot: .*tables/runs.csv'):
        run_sweep(monkeypatch, file, '--dry_run', '--pilot=pilot')
    for flag in ('--pilot=pilot', '--costs'):
        with pytest.raises(UserError, match='--dry_run'):
            run_sweep(monkeypatch, file, flag)


@pytest.mark.parametrize(
    ('arm', 'argument', 'message'),
    [
        ({'model.attention': 'sofmax'}, '--workers=2', "arm 'base': .*softmax"),
        ({'model.norm': 'rms', 'model.residual': 'rezero'}, '--workers=1', 'norm=rms'),
        ({}, '--workers=0', '--workers'),
    ],
)
def test_invalid_arms_and_flags_are_refused_before_the_first_run(
    folder, monkeypatch, arm, argument, message
):
    file = write_small(folder, {'base': arm})
    with pytest.raises(UserError, match=message):
        run_sweep(monkeypatch, file, argument)
    assert not (folder / 'runs').exists()


@pytest.mark.parametrize('flags', [[], ['--dry_run']])
@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({}, "measure='vla loss': .*'vla'.* val"),
        ({'evaluation.sets': 'val'}, "evaluation.sets='val' .*'vla'"),
        ({'evaluation.sets': 'vla'}, "evaluation.sets: .*'vla'"),
        ({'data': small_runs.source('gone')}, "arm 'base': data: gone"),
    ],
)
def test_a_set_that_is_not_there_is_refused_before_the_first_run(
    folder, monkeypatch, flags, fields, message
):
    data = {'data': small_runs.source('text')}
    overrides = small_runs.SHORT | data | fields
    arms = {'base': {}}
    file = write_sweep(folder, overrides=overrides, arms=arms, measure='vla loss')
    with pytest.raises(UserError, match=message):
        run_sweep(monkeypatch, file, *flags)
    assert not (folder / 'runs').exists()


def test_seeds_and_rates_of_one_worker_share_their_programs(folder, monkeypatch):
    data = {'data': small_runs.source('text')}
    fields = small_runs.SHORT | data
    arms = {
        name: {'optimizer.schedule': f'cosine(peak={peak}, warmup=0.15)'}
        for name, peak in [('base', 1e-3), ('twice', 2e-3), ('half', 5e-4)]
    }
    file = write_sweep(
        folder, overrides=fields, arms=arms, seeds=[1, 2], measure='val loss'
    )
    compiled, by_run, make = [], [], loop.run
    compile_program = compilation.compile_program

    def count(function, *arguments, once=False):
        if not once:
            compiled.append(function)
        return compile_program(function, *arguments, once=once)

    def run(config, *arguments, **options):
        if config.train.seed == 2 and '0.001' not in str(config.optimizer.schedule):
            return  # two seeds of the first rate are enough
        compiled.clear()
        make(config, *arguments, **options)
        by_run.append(len(compiled))

    monkeypatch.setattr(compilation, 'compile_program', count)
    monkeypatch.setattr(loop, 'run', run)
    workers.make_all(planning.load(file), 0, 1)
    first, *others = by_run
    assert first >= 3 and others == [0] * 3  # a step, the loss and the search


def test_a_dry_run_downloads_nothing(folder, monkeypatch, capsys):
    public = 'tfds(name="wmt14_translate/de-en", source="en", target="de")'
    for data in (public, f'mix(sources=[{public!r}])'):
        file = write_small(folder, {'base': {}}, data=data)
        assert run_sweep(monkeypatch, file, '--dry_run') == 0
        assert 'cost: ' in capsys.readouterr().out


def test_a_crossed_factor_may_have_no_effect_in_an_arm(folder, monkeypatch, capsys):
    factors = {
        'model.norm': ['layer', 'rms'],
        'model.residual': ['pre_norm', 'rezero'],
    }
    overrides = small_runs.SHORT | {'data': small_runs.source('text')}
    fields = dict(arms={}, overrides=overrides, measure='val loss')
    file = write_sweep(folder, factors=factors, base='layer, pre_norm', **fields)
    assert run_sweep(monkeypatch, file, '--dry_run') == 0
    out = capsys.readouterr().out
    assert out.count('has no effect') == 1  # of `layer`, which is the default
    reason = 'model.architecture=encoder_decoder and model.residual=rezero'
    assert f'rms, rezero: model.norm=rms has no effect if {reason}\n' in out
    runs = planning.load(file).runs
    given = []

    def run(config, path, asked, screen, program_cache):
        given.append(asked)

    monkeypatch.setattr(loop, 'run', run)
    workers.make_runs(runs[-1:], 0, 1)
    assert given[0]['train.seed'] == 3 and 'model.norm' not in given[0]
    factors['model.residual'] = ['rezero', 'none']
    file = write_sweep(folder, factors=factors, base='layer, rezero', **fields)
    with pytest.raises(UserError, match='model.norm .*any arm'):
        run_sweep(monkeypatch, file, '--dry_run')


@pytest.mark.slow
def test_local_workers_share_the_runs_stop_and_resume(folder, monkeypatch, capsys):
    file = write_small(folder, {'base': {}}, **{'train.steps': 400})
    paths = [folder / run.path for run in planning.load(file).runs]
    command = [sys.executable, '-m', 'experiments.sweep', f'--config={file}']
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    process = subprocess.Popen([*command, '--workers=2'], cwd=folder, **pipes)
    end = time.monotonic() + 300
    while not all(metrics_log.read_rows(path) for path in paths):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, out
    assert 'Rerun the command to continue.' in out
    for path in paths:
        assert not (path / 'result.json').exists()
        assert list((path / 'checkpoints').glob('[0-9]*')), 'nothing was saved'
    assert run_sweep(monkeypatch, file, '--workers=2') == 0
    assert '[2/2]' in capsys.readouterr().out
    for path in paths:
        assert json.loads((path / 'result.json').read_text('utf-8'))['step'] == 400


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='kills as POSIX does')
def test_workers_of_a_killed_sweep_stop_and_the_next_sweep_makes_their_runs(
    folder, monkeypatch, capsys
):
    long = {'train.steps': 400, 'checkpoint.every': 100}
    file = write_small(folder, {'base': {}}, **long)
    paths = [folder / run.path for run in planning.load(file).runs]
    command = [sys.executable, '-m', 'experiments.sweep', f'--config={file}']
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    process = subprocess.Popen([*command, '--workers=2'], cwd=folder, **pipes)
    end = time.monotonic() + 300
    while not all(metrics_log.read_rows(path) for path in paths):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert run_sweep(monkeypatch, file, '--workers=2') == 0
    assert '[2/2]' in capsys.readouterr().out
    for number, path in enumerate(paths):
        assert json.loads((path / 'result.json').read_text('utf-8'))['step'] == 400
        log = folder / f'runs/.sweeps/heads/worker{number}.log'
        assert 'Stopped; saved at step' in log.read_text('utf-8')
