"""Tests of `experiments.run`: its files, dry runs, rejected input and stops."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import sacrebleu
import small_runs
import synthetic_runs

from experiments import describe, run, storage
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line import flags as command_flags
from experiments.config import load
from experiments.costs.ledger import ledger
from experiments.errors import UserError
from experiments.runs import directory, metrics_log, reading

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures('cache')


def test_run_saves_config_metrics_checkpoints_and_scores(trained_run):
    names = {path.name for path in trained_run.iterdir()}
    assert names >= {
        *('config.json', 'environment.json', 'metrics.jsonl', 'tokenizer.model'),
        *('checkpoints', 'translations', 'tensorboard', 'result.json'),
    }
    result = small_runs.result(trained_run)
    assert (result['status'], result['step']) == ('finished', 12)
    assert result['averaged_steps'] == [8, 12]
    costs = ledger(load.from_dict(directory.read_config(trained_run)))
    assert result['flops_per_token'] == costs['flops_per_token']['total']
    assert result['peak_memory_bytes'] > 10**8
    finished = reading.read_run(trained_run)
    assert finished.finished and finished.result['parameters'] == result['parameters']

    rows = small_runs.rows(trained_run)
    train = [row for row in rows if row['kind'] == 'train']
    assert [row['step'] for row in train] == [2, 4, 6, 8, 10, 12]
    assert train[-1]['loss'] < train[0]['loss']
    tokens = [row['tokens'] for row in train]
    assert tokens == sorted(set(tokens))
    total = round(result['tokens_per_second'] * result['train_seconds'])
    evaluated = [row for row in rows if row['kind'] == 'eval']
    assert [row['step'] for row in evaluated] == [6, 12]
    assert train[-1]['tokens'] == evaluated[-1]['tokens'] == total
    # The final scores are the last rows, and reach the hooks.
    final = {row['set']: row for row in rows[-2:]}
    assert final == {
        name: {'step': 12, 'kind': 'final', 'set': name, **scores}
        for name, scores in result['evaluations'].items()
    }
    assert final.keys() == {'val', 'news'}
    (events,) = (trained_run / 'tensorboard').iterdir()
    assert b'final/news/bleu' in events.read_bytes()


def test_final_scores_equal_those_of_sacrebleu(trained_run, short_text):
    folder = trained_run / 'translations'
    for language, side in (('en', 'source'), ('de', 'reference')):
        saved = (folder / f'news.{side}.txt').read_text('utf-8')
        assert saved == (short_text / f'news.{language}').read_text('utf-8')
    outputs = (folder / 'news.step=12,mean_of=2.txt').read_text('utf-8').splitlines()
    references = (folder / 'news.reference.txt').read_text('utf-8').splitlines()
    scores = small_runs.result(trained_run)['evaluations']['news']
    assert len(outputs) == len(references) == scores['sentences']
    chrf = sacrebleu.corpus_chrf(outputs, [references]).score
    assert chrf > 0 and scores['chrf'] == pytest.approx(chrf, abs=1e-9)
    bleu = sacrebleu.corpus_bleu(outputs, [references]).score
    assert scores['bleu'] == pytest.approx(bleu, abs=1e-9)
    assert 'tok:13a' in scores['bleu_signature'] and scores['direction'] == 'en-de'
    np.testing.assert_allclose(scores['perplexity'], np.exp(scores['loss']))


def test_finished_run_shows_its_result_without_reading_data(
    run_copy, tmp_path, command
):
    config = storage.read_json(run_copy / 'config.json')
    config['data'] = small_runs.source(tmp_path / 'gone')
    storage.write_json(run_copy / 'config.json', config)
    before = small_runs.files(run_copy)
    flags = [f'--config={run_copy}/config.json', f'--workdir={run_copy}']
    out = command(run, *flags).out
    assert 'finished: step 12' in out and 'step 2/12' not in out
    command(run, *flags, '--dry_run')
    assert small_runs.files(run_copy) == before


def test_dry_run_shows_costs_and_writes_nothing(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    fields = {'model.num_layers': 1, 'train.steps': 10}
    costs = ledger(command_flags.settings('wmt_small', fields).config)
    # 20 steps of 100 positions took 10 seconds. The estimate excludes tiny runs.
    per_token = costs['flops']['batch'] / 100 / 2
    synthetic_runs.make(Path('runs/other'), 30.0, result={'flops_per_token': per_token})
    synthetic_runs.make(Path('runs/tiny'), 30.0, result={'flops_per_token': 1})
    synthetic_runs.make(Path('runs/damaged'), 30.0)
    Path('runs/damaged/config.json').write_text('{', 'utf-8')
    before = small_runs.files(tmp_path)

    flags = ['--config=wmt_small', '--dry_run', *small_runs.flags(fields)]
    out = command(run, *flags).out
    name = 'runs/wmt_small,model.num_layers=1,train.steps=10'
    assert out.splitlines()[0].split() == ['run', name, 'begins']
    assert describe.text(costs) in out
    flops = 10 * costs['flops_per_token']['total'] * costs['batch']['tokens']
    assert f'cost: {flops / 1e10:.3g} × 10¹⁰ FLOPs' in out
    hours = flops / (20 * 100 * per_token) * 10 / 3600
    assert f'FLOPs, about {hours:.2g} worker hours' in out
    assert small_runs.files(tmp_path) == before


TABLE = 'table(train="train.tsv", val="val.tsv", source="word", target="sounds")'


@pytest.mark.ci
@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['data=text(path="gone", source="a", target="b")'], 'data: .*gone'),
        (['init_from=gone'], 'gone: not a run directory'),
        (['train.loss=distillation', 'train.teacher=gone'], 'gone: not a run directo'),
        ([f'data={TABLE.replace("sounds", "gone")}'], "val.tsv has no column 'gone'"),
        (
            [f'data={TABLE.replace("train.tsv", "other.tsv")}'],
            "other.tsv has no column 'word' in row 1",
        ),
        (['evaluation.sets=gone'], "evaluation.sets: unknown set 'gone'"),
        (
            ['evaluation.metrics=external(command="no_such_program")'],
            "cannot run 'no_such_program'",
        ),
        (['filters=length_ratio(most=1)'], 'removed all training pairs'),
    ],
)
def test_dry_run_rejects_the_same_input_as_the_run(
    flags, message, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    rows = [f'{word}\t{word} {word}\n' for word in ('ab', 'cd', 'ef')]
    for name, header in {'train': 'word', 'val': 'word', 'other': 'other'}.items():
        table = f'{header}\tsounds\n' + ''.join(rows) + f'{name}\t{name} {name}\n'
        Path(f'{name}.tsv').write_text(table, 'utf-8')
    fields = [f'data={TABLE}', 'tokenizer=bytes', 'evaluation.sets=val', *flags]
    given = ['--config=wmt_tiny', '--workdir=new', *(f'--config.{x}' for x in fields)]
    for last in ([], ['--dry_run']):
        with pytest.raises(UserError, match=message):
            command(run, *given, *last)
        assert not Path('new').exists()


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ('model.num_heads=0', '^model.num_heads must be at least 1'),
        ('model.d_model=18 model.num_heads=4', '^model.d_model=18'),
        ('model.d_model=9 model.num_heads=3', '^model.positions: d_model'),
        ('model.dropout=nan', '^model.dropout must be'),
        ('model.attention=sofmax', '^model.attention: .*did you mean'),
        ('model.norm=layer(eps=1)', "^model.norm: .*unknown argument 'eps'"),
        (
            'model.architecture=recurrent model.attention=relu',
            '^model.attention=relu has no effect',
        ),
        ('model.layers=3', "'model.layers'; did you mean"),
        ('model.positions=learned(max_length=5)', 'positions for only 5'),
        ('evaluation.decode=beam(beams=0)', '^evaluation.decode: beams'),
        ('evaluation.processors=forced_prefix(tokens=(5,9999))', 'processors: .*9999'),
        (
            'evaluation.average_of=best checkpoint.keep_best=0',
            '^evaluation.average=2 .*checkpoint.keep_best=0',
        ),
        ('evaluation.average=3', 'checkpoint.keep=2. Raise checkpoint.keep'),
        ('evaluation.sets=test', "^evaluation.sets: unknown set 'test'"),
        ('train.steps=many', 'train.steps'),
        ('train.steps=0', '^train.steps=0 and train.epochs=0'),
        ('train.patience=-1', '^train.patience must be'),
        ('train.patience=2 evaluation.every=0', '^train.patience=2 has no effect'),
        ('train.patience=2 checkpoint.keep_best=0', 'checkpoint.keep_best=0. Raise'),
        ('train.loss=cross_entropy(label_smoothing=1)', '^train.loss: label_smoothing'),
        ('optimizer.schedule=nome', '^optimizer.schedule: '),
        ('tokenizer=sentencepiece(vocab_size=20)', '^tokenizer: vocab_size=20'),
        ('batch.tokens=64 batch.rows_multiple=4', '^batch.tokens=64'),
        ('batch.max_length=2', '^batch.max_length=2 excludes all'),
        ('data=txt', '^data: .*did you mean .text.'),
    ],
)
def test_invalid_field_is_named_and_nothing_is_written(
    fields, message, short_text, tmp_path, command
):
    changes = dict(field.split('=', 1) for field in fields.split())
    with pytest.raises(UserError, match=message) as error:
        command(run, *small_runs.arguments(short_text, tmp_path / 'run', **changes))
    assert '\n' not in str(error.value)
    assert not (tmp_path / 'run').exists()


def test_training_text_beyond_learned_positions_is_rejected(
    short_text, tmp_path, command
):
    for language in ('en', 'de'):
        shutil.copy(short_text / f'train.{language}', tmp_path)
        (tmp_path / f'val.{language}').write_text('a\n')
    changes = dict(model__positions='learned(max_length=8)')
    with pytest.raises(UserError, match='learned positions for only 8'):
        command(run, *small_runs.arguments(tmp_path, tmp_path / 'run', **changes))
    assert not (tmp_path / 'run').exists()


@pytest.mark.skipif(jax.default_backend() == 'gpu', reason='needs a machine without')
def test_model_for_a_gpu_can_be_planned_but_not_trained_on_a_cpu(
    short_text, tmp_path, command
):
    fields = dict(model__attention='flash', model__dtype='bfloat16')
    argv = small_runs.arguments(
        short_text, tmp_path / 'run', model__d_k=8, model__d_v=8, **fields
    )
    assert 'cost: ' in command(run, *argv, '--dry_run').out
    with pytest.raises(UserError, match=r'^model\.attention: flash runs only on a gpu'):
        command(run, *argv)
    assert not (tmp_path / 'run').exists()


# Runs in other processes, which signals stop.


def start(text, workdir, environment=None, **changes):
    argv = small_runs.arguments(text, workdir, **changes)
    return subprocess.Popen(
        [sys.executable, '-m', 'experiments.run', *argv],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out


def stop_after(text, workdir, step, number, **options):
    """Sends a signal when a run has logged a step; returns its status and output."""
    process = start(text, workdir, **options)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(row['step'] >= step for row in metrics_log.read_rows(workdir)):
            process.send_signal(number)
            break
        time.sleep(0.01)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


@pytest.mark.slow
def test_run_that_is_stopped_repeatedly_ends_bit_for_bit_the_same(
    trained_run, short_text, tmp_path
):
    path = tmp_path / 'run'
    options = dict(environment=os.environ | {'PYTHONUNBUFFERED': '1'})
    code, out = stop_after(short_text, path, 2, signal.SIGKILL, **options)
    assert code == -signal.SIGKILL, out
    code, out = stop_after(short_text, path, 6, signal.SIGTERM, **options)
    assert code == -signal.SIGTERM, out
    assert Checkpoints(path / 'checkpoints').steps()[-1] >= 6
    code, out = stop_after(short_text, path, 10, signal.SIGKILL, **options)
    assert code == -signal.SIGKILL and 'resuming at step' in out
    finish(start(short_text, path))
    small_runs.check_same_end(path, trained_run)


# Replaces a function of the runner by C code, which no signal interrupts.
STUCK = """
import hashlib, importlib, os, sys
from experiments import run
from experiments.command_line import flags, stopping
stopping.watch()
module, owner, name = sys.argv.pop(1).split(':')
owner = getattr(importlib.import_module(module), owner)
def stuck(*args, **kwargs):
    os.write(1, b'stuck\\n')
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)
setattr(owner, name, stuck)
flags.main(run.main)
"""


def stop_in(function, number, text, workdir):
    """Stops a run that hangs in a function; returns its status and output."""
    argv = [sys.executable, '-c', STUCK, function]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen(
        [*argv, *small_runs.arguments(text, workdir)], cwd=ROOT, **pipes
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if 'stuck' in line:
                break
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    return process.returncode, ''.join(lines) + out


@pytest.mark.slow
def test_run_stopped_during_evaluation_and_scoring_ends_the_same(
    trained_run, short_text, tmp_path
):
    path = tmp_path / 'run'
    evaluation = 'experiments.evaluation.evaluator:Evaluator:loss'
    code, out = stop_in(evaluation, signal.SIGTERM, short_text, path)
    assert code == -signal.SIGTERM, out
    assert [row['kind'] for row in metrics_log.read_rows(path)] == ['train'] * 3
    scoring = 'experiments.runs.trained_run:Checkpoints:average'
    code, out = stop_in(scoring, signal.SIGINT, short_text, path)
    assert code == -signal.SIGINT, out
    assert 'resuming at step 6' in out
    # A closed pipe does not stop the run.
    process = start(short_text, path)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    small_runs.check_same_end(path, trained_run)


@pytest.mark.slow
def test_run_resumes_on_other_devices_and_in_another_mesh(
    trained_run, short_text, tmp_path
):
    path = tmp_path / 'run'
    flags = os.environ['XLA_FLAGS'].replace('device_count=4', 'device_count=1')
    one_device = os.environ | {'XLA_FLAGS': flags}
    code, out = stop_after(short_text, path, 3, signal.SIGTERM, environment=one_device)
    assert code == -signal.SIGTERM, out
    code, out = stop_after(short_text, path, 6, signal.SIGTERM)
    assert code == -signal.SIGTERM and 'resuming' in out, out
    finish(start(short_text, path, mesh__fsdp=2, mesh__tensor=2))
    losses = [
        [row['loss'] for row in small_runs.rows(run) if row['kind'] == 'train']
        for run in (path, trained_run)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
