"""Tests of how runs end."""

import json
import math
import shutil
import signal
import subprocess
import sys

import pytest
import small_runs

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line import flags
from experiments.errors import UserError
from experiments.evaluation import evaluator
from experiments.runs import directory, metrics_log
from experiments.training.metrics import Progress, stops_early
from flaxformer_lite.ops.loss_of_logits import LossSums
from flaxformer_lite.training import loss_scale
from flaxformer_lite.training.train_step import Metrics

SMALL = small_runs.FIELDS | {
    'optimizer.name': 'contrib.schedule_free_adamw',
    'optimizer.schedule': 'noam(warmup=4)',
    'train.steps': 4,
    'evaluation.every': 2,
    'evaluation.decode': 'greedy',
    'evaluation.sets': 'val',
    'checkpoint.every': 2,
}
pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = small_runs.write_text(tmp_path_factory.mktemp('text'), val=4)
    return small_runs.source(folder)


def start(data, path, **changes):
    overrides = small_runs.flags(SMALL | {'data': data}, **changes)
    small_runs.train(path, *overrides)
    return json.loads((path / 'result.json').read_text())


def same_end(path, other):
    """Checks that two runs have equal results and metrics, except for clocks."""
    clocks = (
        *('train_seconds', 'train_cpu_seconds', 'tokens_per_second'),
        *('time', 'seconds'),
        *('peak_memory_bytes', 'files', 'sha256'),
    )

    def plain(row):
        return {k: v for k, v in row.items() if k not in clocks}

    results = [json.loads((p / 'result.json').read_text()) for p in (path, other)]
    assert plain(results[0]) == plain(results[1])
    rows = [list(map(plain, metrics_log.read_rows(p))) for p in (path, other)]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_run_goes_on_for_more_epochs(data, tmp_path, capsys):
    whole, longer = tmp_path / 'whole', tmp_path / 'longer'
    start(data, whole, train__steps=0, train__epochs=2)
    start(data, longer, train__steps=0, train__epochs=1)
    capsys.readouterr()
    start(data, longer, train__steps=0, train__epochs=2)
    assert 'resuming at step' in capsys.readouterr().out
    same_end(whole, longer)


@pytest.mark.slow
def test_a_finished_run_goes_on_as_if_it_had_been_begun_with_more_steps(
    data, tmp_path, capsys
):
    whole, longer = tmp_path / 'whole', tmp_path / 'longer'
    start(data, whole, train__steps=8)
    start(data, longer)
    capsys.readouterr()
    start(data, longer, train__steps=8)
    assert 'resuming at step 4' in capsys.readouterr().out
    same_end(whole, longer)
    # The same command again shows the result; the old one is refused, for it is less.
    start(data, longer, train__steps=8)
    assert 'finished: step 8' in capsys.readouterr().out
    with pytest.raises(UserError, match='train.steps is 8, not 4'):
        start(data, longer)


@pytest.fixture(scope='module')
def whole(data, tmp_path_factory):
    path = tmp_path_factory.mktemp('runs') / 'whole'
    start(data, path)
    return path


def test_a_run_whose_checkpoints_were_deleted_begins_again_and_says_so(
    data, whole, tmp_path, capsys
):
    path = tmp_path / 'run'
    assert not (whole / metrics_log.ARCHIVE).exists()
    shutil.copytree(whole, path)
    shutil.rmtree(path / 'checkpoints')
    (path / 'result.json').unlink()
    before = (path / metrics_log.NAME).read_bytes()
    capsys.readouterr()
    start(data, path)
    said = [x for x in capsys.readouterr().out.splitlines() if 'no checkpoint' in x]
    assert said == [
        f'no checkpoint in {path}/checkpoints; restarting at step 0. Metrics '
        'up to step 4 were moved to metrics.before.jsonl.'
    ]
    assert (path / metrics_log.ARCHIVE).read_bytes() == before
    same_end(whole, path)
    # A second time adds to them.
    after = (path / metrics_log.NAME).read_bytes()
    assert metrics_log.archive_rows(path) == 4 and metrics_log.read_rows(path) == []
    assert (path / metrics_log.ARCHIVE).read_bytes() == before + after


def test_more_steps_are_refused_where_the_learning_rates_go_by_them(data, tmp_path):
    cosine = SMALL | {'data': data, 'optimizer.schedule': 'cosine(peak=1e-2)'}
    config = flags.settings('wmt_small', cosine).config
    with directory.open_run(tmp_path, config.to_dict()):
        pass
    before = (tmp_path / 'config.json').read_bytes()
    with pytest.raises(UserError, match=r'train.steps=6 .*=cosine.* depends on'):
        start(
            data,
            tmp_path,
            train__steps=6,
            optimizer__schedule='cosine(peak=1e-2)',
        )
    assert (tmp_path / 'config.json').read_bytes() == before


CONFIG = {'train': {'steps': 12, 'epochs': 0, 'patience': 2}, 'd_ff': 8}


@pytest.mark.parametrize(
    ('limits', 'raised'),
    [
        ({'steps': 0, 'epochs': 2}, {'epochs': 3}),
        ({'steps': 9, 'epochs': 2}, {'epochs': 3}),
        ({'steps': 9, 'epochs': 2}, {'steps': 12, 'epochs': 3}),
    ],
)
def test_more_epochs_go_further(limits, raised, tmp_path):
    config = {'train': limits}
    with directory.open_run(tmp_path, config):
        pass
    new = {'train': limits | raised}
    assert directory.check_directory(tmp_path, new) == directory.EXTENDED
    for changes in ({'epochs': 1}, {'epochs': 3, 'steps': 1}, {'epochs': 0}):
        other = {'train': limits | changes}
        with pytest.raises(UserError, match='holds a run with a different config'):
            directory.check_directory(tmp_path, other)


def test_more_steps_alone_go_further(tmp_path):
    assert directory.check_directory(tmp_path, CONFIG) == directory.NEW
    with directory.open_run(tmp_path, CONFIG):
        assert directory.check_directory(tmp_path, CONFIG) == directory.RESUMABLE
        (tmp_path / 'result.json').write_text('{}')
    assert directory.check_directory(tmp_path, CONFIG) == directory.COMPLETE
    new = {**CONFIG, 'train': CONFIG['train'] | {'steps': 24}}
    assert directory.check_directory(tmp_path, new) == directory.EXTENDED
    with directory.open_run(tmp_path, new):
        assert directory.read_config(tmp_path) == new
        assert not (tmp_path / 'result.json').exists()


@pytest.mark.parametrize(
    'changes',
    [{'steps': 24, 'patience': 3}, {'patience': 3}, {'steps': 6}, {'steps': 0}],
)
def test_any_other_change_is_refused(tmp_path, changes):
    new = {**CONFIG, 'train': CONFIG['train'] | changes}
    with directory.open_run(tmp_path, CONFIG):
        (tmp_path / 'result.json').write_text('{}')
    with pytest.raises(UserError, match='holds a run with a different config'):
        directory.check_directory(tmp_path, new)


def test_a_score_that_is_no_better_is_waited_for_so_long_and_no_longer():
    scores = {}
    due = []
    for step, score in enumerate((1.0, 3.0, 3.0, 2.0, 4.0, 0.0, 0.0)):
        scores[step] = score
        due.append(stops_early(scores, patience=2))
    assert due == [False, False, False, True, False, False, True]
    assert not stops_early(scores, patience=0)


class Killed(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(('best', 'sign'), [('bleu', 1), ('ter', -1)])
def test_a_run_stops_early_and_scores_its_best_also_when_it_is_killed(
    data, tmp_path, monkeypatch, capsys, best, sign
):
    scores = {2: 10.0, 4: 30.0, 6: 20.0, 8: 30.0, 10: 99.0}
    killed_at = []
    evaluated = evaluator.Evaluator.__call__

    def scripted(self, variables, name, pairs, step, *more):
        if killed_at == [step]:
            killed_at.clear()
            raise Killed
        result = evaluated(self, variables, name, pairs, step, *more)
        result.scores[best] = sign * scores[step]  # in place, for it is remembered
        return result

    monkeypatch.setattr(evaluator.Evaluator, '__call__', scripted)
    patient = dict(train__steps=10, train__patience=2, checkpoint__keep_best=1)
    patient |= dict(evaluation__metrics='[bleu, ter]', evaluation__best=best)
    result = start(data, tmp_path / 'whole', **patient)
    assert (result['step'], result['stopped_early']) == (8, True)
    assert result['evaluations']['val'][best] == sign * 30.0
    # Of equal scores the later is kept.
    assert result['averaged_steps'] == [8]
    assert 'stopped early: ' in capsys.readouterr().out
    killed_at.append(8)
    with pytest.raises(Killed):
        start(data, tmp_path / 'killed', **patient)
    start(data, tmp_path / 'killed', **patient)
    assert 'resuming at step 8' in capsys.readouterr().out
    same_end(tmp_path / 'whole', tmp_path / 'killed')


def test_waiting_for_evaluations_that_never_come_is_refused(data, tmp_path):
    with pytest.raises(UserError, match='train.patience=2 has no effect'):
        start(data, tmp_path / 'run', train__patience=2, evaluation__every=0)
    with pytest.raises(UserError, match='checkpoint.keep_best=0. Raise'):
        start(data, tmp_path / 'run', train__patience=2, checkpoint__keep_best=0)
    with pytest.raises(UserError, match='train.patience must be at least 0'):
        start(data, tmp_path / 'run', train__patience=-1)
    assert not (tmp_path / 'run').exists()


STOPS_ITSELF = """
import os, signal, time
from experiments import run
from experiments.command_line import flags, stopping
from experiments.training.metrics import Progress
stopping.watch()
add = Progress.add
def add_and_stop(self, step, *more):
    add(self, step, *more)
    if step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
Progress.add = add_and_stop
flags.main(run.main)
"""


def test_a_stop_is_saved_and_rows_have_the_rates_of_their_updates(data, tmp_path):
    fields = SMALL | {'data': data, 'train.log_every': 1, 'evaluation.every': 0}
    overrides = small_runs.flags(fields)
    command = [sys.executable, '-c', STOPS_ITSELF, '--config=configs/wmt_small.py']
    command += [f'--workdir={tmp_path}', *overrides]
    done = subprocess.run(command, cwd=flags.PROJECT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert Checkpoints(tmp_path / 'checkpoints').steps() == [2, 3]
    rates = {
        row['step']: row['learning_rate']
        for row in metrics_log.read_rows(tmp_path)
        if row['kind'] == 'train'
    }
    # While noam warms up: d_model^-0.5 · step · warmup^-1.5.
    assert rates == pytest.approx({step: step / 32 for step in (1, 2, 3)})


def test_a_row_has_means_over_target_tokens():
    progress = Progress('digest of the text')
    for step, loss, tokens in ((1, 20.0, 10.0), (2, 30.0, 30.0)):
        others = {'z_loss': loss / 4}
        sums = LossSums(loss, nll=loss / 2, correct=5.0, tokens=tokens, others=others)
        progress.add(step, progress.position, Metrics(sums, gradient_norm=float(step)))
    assert progress.settle() == []
    row = progress.row()
    assert (row['loss'], row['accuracy'], row['gradient_norm']) == (1.25, 0.25, 1.5)
    assert row['perplexity'] == math.exp(25 / 40)
    assert row['loss/z_loss'] == 12.5 / 40


@pytest.mark.parametrize(
    ('loss', 'gradient_norm', 'scale', 'is_divergence'),
    [
        (20.0, math.inf, 2.0, False),
        (20.0, math.nan, 1.0, True),
        (math.nan, math.nan, 2.0, True),
    ],
)
def test_a_step_diverges_if_no_smaller_loss_scale_can_fix_it(
    loss, gradient_norm, scale, is_divergence
):
    progress = Progress('digest of the text')
    sums = LossSums(loss, nll=loss, correct=5.0, tokens=10.0)
    metrics = Metrics(sums, gradient_norm, loss_scale=scale)
    progress.add(1, progress.position, metrics)
    expected = [(1, progress.position)] if is_divergence else []
    assert progress.settle() == expected
    resumed = Progress.of(progress.metadata())
    assert resumed.row()['skipped'] == progress.row()['skipped'] == 1


def test_checkpoint_metadata_restores_the_progress():
    progress = Progress('digest', (1, 2), 3.0, 4, {'loss': 5.0}, cpu_seconds=6.0)
    metadata = progress.metadata()
    later = {'rows': {}, 'base': {'run': 'a', 'sha256': 'b'}}
    assert Progress.of(metadata | later).metadata() == metadata


def test_float16_trains_by_default_and_resumes_with_its_loss_scale(
    data, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(loss_scale, 'INITIAL', 2.0**18)
    fields = dict(model__dtype='float16', train__log_every=1, evaluation__every=0)
    for steps in (3, 8):
        start(data, tmp_path, **fields, train__steps=steps)
    out = capsys.readouterr().out
    rows = metrics_log.read_rows(tmp_path)
    rows = [row for row in rows if row['kind'] == 'train']
    skipped = [row['skipped'] for row in rows]
    assert skipped[0] == 1 and skipped[-1] == 0 and len(rows) == 8
    scales = [2.0 ** (18 - sum(skipped[: i + 1])) for i in range(8)]
    assert [row['loss_scale'] for row in rows] == scales
    assert f'loss scale {scales[-1]:,.0f}  skipped 0' in out
