"""Tests of runs with a teacher and of their losses."""

import io

import pytest
import small_runs
import untrained_runs

from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.config import check, components
from experiments.errors import UserError
from experiments.runs import metrics_log
from experiments.training import setup

pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def teacher(short_text, tmp_path_factory, cache):
    path = tmp_path_factory.mktemp('runs') / 'teacher'
    return untrained_runs.make(path, short_text)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'train.loss': 'distillation'}, 'train.loss: distillation needs a teacher'),
        ({'train.loss': 'focal(beta=2)'}, "train.loss: unknown argument 'beta'"),
        ({'train.teacher': 'runs/x'}, 'train.teacher=runs/x has no effect where'),
    ],
    ids=str,
)
def test_loss_and_teacher_must_fit_each_other(changes, message):
    settings = flags.settings('wmt_small', changes)
    with pytest.raises(UserError, match=f'^{message}'):
        components.build(settings.config)
        check.check_overrides(settings.config, settings.overrides)


def test_teacher_with_another_tokenizer_is_rejected(short_text, teacher, tmp_path):
    config = untrained_runs.config(
        short_text,
        tokenizer='sentencepiece(vocab_size=150)',
        train__loss='distillation',
        train__teacher=teacher,
    )
    message = 'train.teacher=.*: the teacher has a different tokenizer'
    with pytest.raises(UserError, match=message):
        setup.prepare(config, tmp_path, Screen(io.StringIO()))


@pytest.mark.slow
def test_run_with_a_teacher_logs_each_part_of_its_loss(short_text, teacher, tmp_path):
    loss = '[distillation(weight=0.5), z_loss(weight=0.01)]'
    changes = dict(train__loss=loss, train__teacher=teacher)
    small_runs.train(tmp_path, *untrained_runs.overrides(short_text, **changes))
    rows = [row for row in metrics_log.read_rows(tmp_path) if row['kind'] == 'train']
    names = ('distillation', 'distillation_teacher', 'z_loss')
    assert len(rows) == 2
    for row in rows:
        parts = [row[f'loss/{name}'] for name in names]
        assert all(part > 0 for part in parts)
        assert row['loss'] == pytest.approx(parts[0] + parts[2], rel=1e-5)
