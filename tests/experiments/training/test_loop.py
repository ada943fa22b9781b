"""Tests of the training loop: stops, resumes, damaged runs and ends."""

import json
import shutil
import signal

import jax
import pytest
import small_runs

from experiments import evaluate, run, storage
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line import stopping
from experiments.errors import UserError
from experiments.evaluation import evaluator
from experiments.runs import metrics_log, reading
from experiments.training.metrics import Progress
from flaxformer_lite.training import loss_scale

pytestmark = pytest.mark.usefixtures('cache')


def train_rows(path):
    return [row for row in small_runs.rows(path) if row['kind'] == 'train']


def test_rows_have_the_learning_rate_of_their_update(trained_run):
    rates = {row['step']: row['learning_rate'] for row in train_rows(trained_run)}
    # noam: factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5).
    expected = {step: 0.1 / 4 * min(step**-0.5, step / 8) for step in rates}
    assert rates == pytest.approx(expected)


@pytest.fixture(scope='module')
def stopped_run(trained_run, short_text, tmp_path_factory, cache):
    """Returns a run that resumes at step 8 on one device and is stopped at step 11."""
    path = shutil.copytree(trained_run, tmp_path_factory.mktemp('runs') / 'run')
    (path / 'result.json').unlink()
    shutil.rmtree(path / 'checkpoints/12')
    add = Progress.add

    def add_and_interrupt(self, step, *more):
        add(self, step, *more)
        if step == 11:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, 'device_count', lambda: 1)
        patch.setattr(stopping, '_received', None)
        patch.setattr(Progress, 'add', add_and_interrupt)
        # A command would end its process by the same signal.
        patch.setattr(stopping, 'end', lambda: None)
        small_runs.train(path, *small_runs.arguments(short_text, path)[2:])
    return path


def test_stopped_run_saves_its_last_step(stopped_run):
    assert Checkpoints(stopped_run / 'checkpoints').steps() == [6, 8, 11]


def test_losses_on_one_device_equal_those_on_four(stopped_run, trained_run):
    rows = train_rows(stopped_run)
    assert [row['step'] for row in rows] == [2, 4, 6, 8, 10]
    expected = train_rows(trained_run)[4]
    found, expected = (
        {name: row[name] for name in ('loss', 'gradient_norm')}
        for row in (rows[4], expected)
    )
    assert found == pytest.approx(expected, rel=1e-4)
    assert found != expected  # the order of sums differs


@pytest.mark.slow
def test_damaged_newest_checkpoint_resumes_bit_for_bit_from_the_one_before(
    trained_run, unfinished_copy, short_text, command
):
    # Flip a bit in all files of arrays, since Orbax decides which file holds which.
    for file in unfinished_copy.glob('checkpoints/12/state/**/d/*'):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    out = command(run, *small_runs.arguments(short_text, unfinished_copy)).out
    assert 'step 12 is damaged' in out and 'resuming at step 8' in out
    small_runs.check_same_end(unfinished_copy, trained_run)


@pytest.mark.slow
def test_damaged_older_checkpoint_is_left_out_of_the_average(
    unfinished_copy, short_text, command
):
    shutil.rmtree(unfinished_copy / 'checkpoints/8/state')
    out = command(run, *small_runs.arguments(short_text, unfinished_copy)).out
    assert 'step 8 is damaged and skipped' in out
    result = small_runs.result(unfinished_copy)
    assert (result['averaged_steps'], result['left_out_steps']) == ([12], [8])
    assert set(result['evaluations']) == {'val', 'news'}


@pytest.mark.slow
def test_run_without_its_checkpoints_restarts_and_keeps_the_old_metrics(
    trained_run, unfinished_copy, short_text, command
):
    shutil.rmtree(unfinished_copy / 'checkpoints')
    before = (unfinished_copy / metrics_log.NAME).read_bytes()
    out = command(run, *small_runs.arguments(short_text, unfinished_copy)).out
    assert 'restarting at step 0' in out
    assert (unfinished_copy / metrics_log.ARCHIVE).read_bytes() == before
    small_runs.check_same_end(unfinished_copy, trained_run)


@pytest.mark.parametrize(
    ('name', 'label'), [('train', 'training text'), ('val', 'text of val')]
)
def test_changed_text_is_rejected_and_the_run_stays_unchanged(
    run_copy, short_text, tmp_path, command, name, label
):
    text = shutil.copytree(short_text, tmp_path / 'text')
    for file in text.glob(f'{name}.*'):
        lines = file.read_text('utf-8').splitlines(keepends=True)
        file.write_text(''.join(lines[:-1]), 'utf-8')
    config = storage.read_json(run_copy / 'config.json')
    config['data'] = small_runs.source(text)
    storage.write_json(run_copy / 'config.json', config)
    expected = {'training text', 'text of val', 'text of news'}
    assert reading.scored_texts(run_copy).keys() == expected

    flags = [f'--config={run_copy}/config.json', f'--workdir={run_copy}']
    message = f'^data: the {label} changed since'
    before = small_runs.files(run_copy)
    with pytest.raises(UserError, match=message):  # more steps for a finished run
        command(run, *flags, '--config.train.steps=14')
    if name == 'val':
        with pytest.raises(UserError, match='--set: the text of val changed since'):
            command(evaluate, f'--workdir={run_copy}', '--set=val')
    assert small_runs.files(run_copy) == before
    (run_copy / 'result.json').unlink()
    with pytest.raises(UserError, match=message):
        command(run, *flags)


def test_longer_training_is_rejected_if_past_learning_rates_would_change(
    run_copy, command
):
    config = storage.read_json(run_copy / 'config.json')
    config['optimizer']['schedule'] = 'cosine(peak=1e-3)'
    storage.write_json(run_copy / 'config.json', config)
    before = small_runs.files(run_copy)
    flags = [f'--config={run_copy}/config.json', f'--workdir={run_copy}']
    for last in ([], ['--dry_run']):
        with pytest.raises(UserError, match='past learning rates would change'):
            command(run, *flags, '--config.train.steps=20', *last)
    assert small_runs.files(run_copy) == before


# Runs of four steps, without averages.
FIELDS = small_runs.FIELDS | {
    'optimizer.name': 'contrib.schedule_free_adamw',
    'optimizer.schedule': 'noam(warmup=4)',
    'train.steps': 4,
    'evaluation.every': 2,
    'evaluation.decode': 'greedy',
    'evaluation.sets': 'val',
    'checkpoint.every': 2,
}


def train(text, path, **changes):
    overrides = small_runs.flags(FIELDS | {'data': small_runs.source(text)}, **changes)
    small_runs.train(path, *overrides)
    return small_runs.result(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('shorter', 'longer'),
    [
        (dict(train__steps=4), dict(train__steps=8)),
        (
            dict(train__steps=0, train__epochs=1),
            dict(train__steps=0, train__epochs=2),
        ),
    ],
    ids=['steps', 'epochs'],
)
def test_finished_run_trains_longer_as_if_started_with_the_longer_limit(
    short_text, tmp_path, capsys, shorter, longer
):
    expected, path = tmp_path / 'expected', tmp_path / 'run'
    train(short_text, expected, **longer)
    train(short_text, path, **shorter)
    capsys.readouterr()
    train(short_text, path, **longer)
    assert 'resuming at step' in capsys.readouterr().out
    small_runs.check_same_end(path, expected)
    with pytest.raises(UserError, match='holds a run with a different config'):
        train(short_text, path, **shorter)


class Killed(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(('best', 'sign'), [('bleu', 1), ('ter', -1)])
def test_early_stop_scores_the_best_checkpoint_also_after_a_kill(
    short_text, tmp_path, monkeypatch, capsys, best, sign
):
    scores = {2: 10.0, 4: 30.0, 6: 20.0, 8: 30.0, 10: 99.0}
    killed_at = []
    evaluated = evaluator.Evaluator.__call__

    def scripted(self, variables, name, pairs, step, *more):
        if killed_at == [step]:
            killed_at.clear()
            raise Killed
        result = evaluated(self, variables, name, pairs, step, *more)
        result.scores[best] = sign * scores[step]  # in place: the evaluator caches it
        return result

    monkeypatch.setattr(evaluator.Evaluator, '__call__', scripted)
    patient = dict(train__steps=10, train__patience=2, checkpoint__keep_best=1)
    patient |= dict(evaluation__metrics='[bleu, ter]', evaluation__best=best)
    result = train(short_text, tmp_path / 'expected', **patient)
    assert (result['step'], result['stopped_early']) == (8, True)
    assert result['evaluations']['val'][best] == sign * 30.0
    # The later one of equal scores.
    assert result['averaged_steps'] == [8]
    killed_at.append(8)
    with pytest.raises(Killed):
        train(short_text, tmp_path / 'run', **patient)
    train(short_text, tmp_path / 'run', **patient)
    assert 'resuming at step 8' in capsys.readouterr().out
    small_runs.check_same_end(tmp_path / 'run', tmp_path / 'expected')


@pytest.mark.slow
def test_nonfinite_loss_stops_the_run_or_skips_the_update(
    short_text, tmp_path, command
):
    # The first update makes the weights so large that the next loss overflows.
    large = dict(optimizer__schedule='constant_schedule(value=1e30)', train__steps=6)
    with pytest.raises(
        UserError, match=r'not finite at step 2 \(epoch 0, batch 1\)\. Lower the rate'
    ):
        command(run, *small_runs.arguments(short_text, tmp_path / 'stop', **large))
    failure = json.loads((tmp_path / 'stop/failure.json').read_text())
    assert (failure['status'], failure['step']) == ('diverged', 2)
    # The rate grows with the number of applied updates.
    large |= dict(optimizer__schedule='noam(factor=1e36)', train__log_every=1)
    large |= dict(train__on_nonfinite='skip', evaluation__sets='val')
    out = command(
        run, *small_runs.arguments(short_text, tmp_path / 'skip', **large)
    ).out
    assert 'skipped the non-finite update' in out
    rows = train_rows(tmp_path / 'skip')
    assert sum(row['skipped'] for row in rows) == 5
    assert len(rows) == 6 and len({row['learning_rate'] for row in rows}) == 1


@pytest.mark.slow
def test_float16_run_halves_its_loss_scale_and_resumes_with_it(
    short_text, tmp_path, monkeypatch
):
    monkeypatch.setattr(loss_scale, 'INITIAL', 2.0**18)
    fields = dict(model__dtype='float16', train__log_every=1, evaluation__every=0)
    for steps in (3, 8):
        train(short_text, tmp_path, **fields, train__steps=steps)
    rows = train_rows(tmp_path)
    skipped = [row['skipped'] for row in rows]
    assert skipped[0] == 1 and skipped[-1] == 0 and len(rows) == 8
    scales = [2.0 ** (18 - sum(skipped[: i + 1])) for i in range(8)]
    assert [row['loss_scale'] for row in rows] == scales
