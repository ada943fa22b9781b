"""Tests of runs with other losses."""

import io

import pytest
import small_runs
from made_runs import make, study
from test_init_from import SMALL, make_source

from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.config import check, components
from experiments.errors import UserError
from experiments.reports import figures
from experiments.runs import metrics_log
from experiments.training import setup

pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    return small_runs.write_text(tmp_path_factory.mktemp('text'), val=2)


@pytest.fixture(scope='module')
def teacher(text, tmp_path_factory):
    return make_source(tmp_path_factory.mktemp('runs') / 'teacher', text)


def overrides(text, **changes):
    return small_runs.flags(SMALL | {'data': small_runs.source(text)}, **changes)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            dict(loss='distillation'),
            'train.loss: distillation needs a teacher: name a run',
        ),
        (
            dict(loss='focal(beta=2)'),
            "train.loss: unknown argument 'beta'; focal takes",
        ),
        (
            dict(teacher='runs/x'),
            'train.teacher=runs/x has no effect where train.loss',
        ),
    ],
)
def test_what_no_loss_can_do_is_refused_by_name(changes, message):
    given = {f'train.{name}': value for name, value in changes.items()}
    settings = flags.settings('wmt_small', given)
    with pytest.raises(UserError, match=message):
        components.build(settings.config)
        check.check_overrides(settings.config, settings.overrides)


def test_a_teacher_of_another_tokenizer_is_refused(text, teacher, tmp_path):
    changes = dict(train__loss='distillation', train__teacher=teacher)
    given = overrides(text, tokenizer='sentencepiece(vocab_size=150)', **changes)
    config = flags.settings('wmt_small', flags.parse_overrides(given)).config
    message = 'train.teacher=.*: the teacher has a different tokenizer'
    with pytest.raises(UserError, match=message):
        setup.prepare(config, tmp_path, Screen(io.StringIO()))


@pytest.mark.slow
def test_a_run_learns_from_another_and_logs_each_part(text, teacher, tmp_path):
    loss = '[distillation(weight=0.5), z_loss(weight=0.01)]'
    run = tmp_path / 'run'
    given = overrides(text, train__loss=loss, train__teacher=teacher)
    small_runs.train(run, *given)
    rows = [row for row in metrics_log.read_rows(run) if row['kind'] == 'train']
    names = ('distillation', 'distillation_teacher', 'z_loss')
    assert len(rows) == 2
    for row in rows:
        parts = [row[f'loss/{name}'] for name in names]
        assert all(part > 0 for part in parts)
        assert row['loss'] == pytest.approx(parts[0] + parts[2], rel=1e-5)


def test_what_a_loss_reports_is_a_curve(tmp_path):
    rows = [(step, 'train', {'loss': 2.0, 'loss/z_loss': 0.1}) for step in (1, 2)]
    path = make(tmp_path / 'a', bleu=20.0, rows=rows)
    drawn = figures.curves(study([path]))
    assert 'loss_z_loss' in [figure.name for figure in drawn]
