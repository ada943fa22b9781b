"""A run's end: early, when the dev score stops rising; or later, when extended."""

import json
from types import SimpleNamespace

import pytest
import small_runs

from configs import wmt_base
from experiments.command_line.flags import Parser, parse
from experiments.config import load
from experiments.errors import UserError
from experiments.evaluation import evaluator
from experiments.optimizers import optimizer
from experiments.runs import directory, metrics_log
from experiments.training import extension
from experiments.training.metrics import Progress

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


def start(data, path, *flags, **changes):
    overrides = small_runs.flags(SMALL | {'data': data}, **changes)
    small_runs.train(path, *flags, *overrides)
    return json.loads((path / 'result.json').read_text())


def same_end(path, other):
    """The results and metrics of two runs, without clocks and without how they came
    about."""
    clocks = (
        *('train_seconds', 'tokens_per_second', 'time', 'seconds', 'extensions'),
        'peak_memory_bytes',
    )

    def plain(row):
        return {k: v for k, v in row.items() if k not in clocks}

    results = [json.loads((p / 'result.json').read_text()) for p in (path, other)]
    assert plain(results[0]) == plain(results[1])
    rows = [list(map(plain, metrics_log.read(p))) for p in (path, other)]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_finished_run_goes_on_as_if_it_had_been_begun_with_more_steps(
    data, tmp_path, capsys
):
    whole, longer = tmp_path / 'whole', tmp_path / 'longer'
    start(data, whole, train__steps=8)
    short = start(data, longer)
    capsys.readouterr()
    result = start(data, longer, train__steps=8)
    out = capsys.readouterr().out
    assert 'resuming at step 4' in out and 'was the last' not in out
    same_end(whole, longer)
    extension = {'at_step': 4, 'limits': {'train.steps': [4, 8]}, 'exact': True}
    assert result['extensions'] == [extension]
    assert json.loads((longer / 'result.step=4.json').read_text()) == short
    # The same command again shows the result; the old one is refused, for it is less.
    start(data, longer, train__steps=8)
    assert 'finished: step 8' in capsys.readouterr().out
    with pytest.raises(UserError, match='train.steps is 8, not 4'):
        start(data, longer)


def begun(path, schedule, step):
    """A run of 4 steps that stands at a step, and the job that asks for 8."""
    config = wmt_base.get_config()
    config.optimizer.schedule = schedule
    config.train.steps = 4
    with directory.open_run(path, load.from_config_dict(config).to_dict()):
        pass
    if step:
        (path / 'checkpoints' / str(step)).mkdir(parents=True)
    config.train.steps = 8
    config = load.from_config_dict(config)
    rates = optimizer.make_schedule(config, 8)
    batches = SimpleNamespace(batches_per_epoch=10)
    return SimpleNamespace(config=config, schedule=rates, steps=8, batches=batches)


@pytest.mark.parametrize(
    ('schedule', 'step', 'exact'),
    [
        ('noam(warmup=3)', 4, True),
        ('constant_schedule(value=0.1)', 4, True),
        ('linear_schedule(init_value=0.1, end_value=0.0, transition_steps=6)', 4, True),
        ('cosine(peak=1e-2)', 4, False),
        ('cosine(peak=1e-2)', 0, True),
    ],
)
def test_an_extension_is_exact_where_the_rates_so_far_would_have_been_the_same(
    tmp_path, schedule, step, exact
):
    job = begun(tmp_path, schedule, step)
    record = {'at_step': step, 'limits': {'train.steps': [4, 8]}, 'exact': exact}
    if exact:
        assert extension.check(job, tmp_path, anyway=False) == record
    else:
        with pytest.raises(
            UserError, match=r'cosine\(peak=1e-2\) goes by .* the 4 updates .* of 4, so'
        ):
            extension.check(job, tmp_path, anyway=False)
        assert extension.check(job, tmp_path, anyway=True) == record


@pytest.mark.parametrize('flags', [(), ('--extend',)], ids=['untold', 'told'])
def test_to_go_on_all_the_same_is_told_by_a_flag(data, tmp_path, monkeypatch, flags):
    told = []

    def check(job, path, anyway):
        told.append(anyway)
        raise UserError('that is enough')

    start_of = {'data': data, **SMALL}
    _, settings = parse(
        Parser(''),
        ['--config=wmt_small', *(f'--config.{k}={v}' for k, v in start_of.items())],
    )
    with directory.open_run(tmp_path, settings.config.to_dict()):
        pass
    monkeypatch.setattr(extension, 'check', check)
    before = (tmp_path / 'config.json').read_bytes()
    with pytest.raises(UserError, match='that is enough'):
        start(data, tmp_path, *flags, train__steps=6)
    assert told == [bool(flags)]
    assert (tmp_path / 'config.json').read_bytes() == before


CONFIG = {'train': {'steps': 12, 'epochs': 0, 'patience': 2}, 'd_ff': 8}


@pytest.mark.parametrize(
    ('changes', 'more'),
    [
        ({'steps': 24}, True),
        ({'steps': 0}, True),
        ({'steps': 24, 'patience': 0}, True),
        ({'patience': 3}, True),
        ({}, False),
        ({'steps': 6}, False),
        ({'steps': 24, 'patience': 1}, False),
        ({'epochs': 3}, False),
    ],
)
def test_only_limits_that_are_raised_ask_for_more(tmp_path, changes, more):
    new = {**CONFIG, 'train': CONFIG['train'] | changes}
    assert not directory.asks_for_more(tmp_path, new)  # no run is there yet
    with directory.open_run(tmp_path, CONFIG):
        pass
    assert directory.asks_for_more(tmp_path, new) == more
    assert not directory.asks_for_more(tmp_path, new | {'d_ff': 16})
    if changes:
        with pytest.raises(UserError, match='holds a run of another config'):
            with directory.open_run(tmp_path, new):
                pass


def test_a_score_that_is_no_better_is_waited_for_so_long_and_no_longer():
    progress = Progress()
    due = []
    for score in (1.0, 3.0, 3.0, 2.0, 4.0, 0.0, 0.0):
        progress.count_score(score)
        due.append(progress.stops_early(2))
    assert due == [False, False, False, True, False, False, True]
    assert not progress.stops_early(0)
    assert progress.best_score == 4.0


class Killed(Exception):
    pass


@pytest.mark.slow
def test_a_run_stops_early_and_scores_its_best_also_when_it_is_killed(
    data, tmp_path, monkeypatch, capsys
):
    scores = {2: 10.0, 4: 30.0, 6: 20.0, 8: 30.0, 10: 99.0}
    killed_at = []
    evaluated = evaluator.Evaluator.__call__

    def scripted(self, variables, name, pairs, step, *more):
        if killed_at == [step]:
            killed_at.clear()
            raise Killed
        result = evaluated(self, variables, name, pairs, step, *more)
        result['bleu'] = scores[step]  # in place, for it is remembered
        return result

    monkeypatch.setattr(evaluator.Evaluator, '__call__', scripted)
    patient = dict(train__steps=10, train__patience=2, checkpoint__keep_best=1)
    result = start(data, tmp_path / 'whole', **patient)
    assert (result['step'], result['stopped_early']) == (8, True)
    assert result['evaluations']['val']['bleu'] == 30.0
    # Of equal scores the later is kept.
    assert result['averaged_steps'] == [8]
    assert 'stopped early: ' in capsys.readouterr().out
    killed_at.append(8)
    with pytest.raises(Killed):
        start(data, tmp_path / 'killed', **patient)
    start(data, tmp_path / 'killed', **patient)
    assert 'resuming at step 6' in capsys.readouterr().out
    same_end(tmp_path / 'whole', tmp_path / 'killed')
    # With more patience it goes on.
    result = start(data, tmp_path / 'whole', **patient | {'train__patience': 0})
    assert (result['step'], result['stopped_early']) == (10, False)


def test_waiting_for_evaluations_that_never_come_is_refused(data, tmp_path):
    with pytest.raises(UserError, match='train.patience=2 counts evaluations'):
        start(data, tmp_path / 'run', train__patience=2, evaluation__every=0)
    with pytest.raises(UserError, match='checkpoint.keep_best=0 are kept'):
        start(data, tmp_path / 'run', train__patience=2, checkpoint__keep_best=0)
    with pytest.raises(UserError, match='train.patience must be at least 0'):
        start(data, tmp_path / 'run', train__patience=-1)
    assert not (tmp_path / 'run').exists()
