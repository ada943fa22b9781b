"""Tests of `experiments.evaluate`."""

import errno
import os
import shutil
import sys

import jax
import pytest
import small_runs
from terminals import Terminal

from experiments import evaluate, storage
from experiments.command_line import console
from experiments.data.sources.base import Source
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.sets import to_lines

pytestmark = pytest.mark.usefixtures('cache')


def test_scores_equal_those_of_the_run_and_are_saved(run_copy, monkeypatch, command):
    expected = small_runs.result(run_copy)['evaluations']['news']
    with monkeypatch.context() as patch:
        patch.setattr(sys, 'stderr', Terminal())
        out = command(evaluate, f'--workdir={run_copy}', '--set=news').out
        assert '3/3 sentences of news' in sys.stderr.getvalue()
    assert 'nrefs:1' in out
    saved = storage.read_json(run_copy / 'translations/news.step=12,mean_of=2.json')
    assert {name: saved[name] for name in expected} == expected
    with pytest.raises(UserError, match="^--set: unknown set 'test'"):
        command(evaluate, f'--workdir={run_copy}', '--set=test')


@pytest.mark.ci
def test_scores_of_one_step_leave_those_of_the_average(run_copy, command):
    average = [run_copy / 'result.json', *run_copy.glob('translations/*mean_of=2.*')]
    before = [file.read_bytes() for file in average]
    out = command(evaluate, f'--workdir={run_copy}', '--set=val', '--step=12').out
    assert 'checkpoints 12\n' in out
    saved = storage.read_json(run_copy / 'translations/val.step=12.json')
    evaluated = [row for row in small_runs.rows(run_copy) if row['kind'] == 'eval']
    assert saved['loss'] == pytest.approx(evaluated[-1]['loss'], rel=1e-6)
    assert saved['loss'] != small_runs.result(run_copy)['evaluations']['val']['loss']
    assert OpenedRun(run_copy, step=8).mean.steps == [8]
    assert [file.read_bytes() for file in average] == before


@pytest.mark.slow
@pytest.mark.parametrize('flag', ['--decode=greedy', '--dtype=bfloat16'])
def test_scores_with_other_settings_are_not_saved(trained_run, command, flag):
    before = small_runs.files(trained_run)
    name = flag.partition('=')[0]
    out = command(evaluate, f'--workdir={trained_run}', '--set=news', flag).out
    assert f'not saved: {name}' in out
    assert small_runs.files(trained_run) == before


def test_dtype_replaces_that_of_activations_only(trained_run):
    run = OpenedRun(trained_run, dtype='bfloat16')
    assert run.model.dense.dtype == jax.numpy.bfloat16
    dtypes = {x.dtype for x in jax.tree.leaves(run.variables)}
    assert dtypes == {jax.numpy.dtype('float32')}
    with pytest.raises(UserError, match='^dtype must be one of float32, bfloat16'):
        OpenedRun(trained_run, dtype='int8')


@pytest.mark.ci
def test_files_are_scored_as_a_set_and_nothing_is_written(
    trained_run, short_text, tmp_path, command
):
    before = small_runs.files(trained_run)
    source, reference = (short_text / f'news.{language}' for language in ('en', 'de'))
    flags = [f'--workdir={trained_run}', f'--source={source}']
    out = command(evaluate, *flags, f'--reference={reference}').out
    header, _, _, row, *_ = out.splitlines()
    assert header.endswith('checkpoints 8, 12')
    scores = small_runs.result(trained_run)['evaluations']['news']
    assert row.split()[:3] == ['news.en', '3', console.score(scores['loss'], 4)]
    assert console.score(scores['bleu']) in row.split()
    assert small_runs.files(trained_run) == before
    (tmp_path / 'one.de').write_text('eins\n')
    with pytest.raises(UserError, match=r'news.en has 3 lines and .*one.de has 1\.'):
        command(evaluate, *flags, f'--reference={tmp_path}/one.de')


def test_damaged_checkpoint_of_a_read_only_run_is_left_out(
    run_copy, monkeypatch, command
):
    shutil.rmtree(run_copy / 'checkpoints/8/state')
    before = small_runs.files(run_copy)

    def replace(*paths):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, 'replace', replace)
    out, err = command(evaluate, f'--workdir={run_copy}', '--set=news')
    assert 'average of checkpoints 12\n' in out and 'nrefs:1' in out
    assert 'step 8 is damaged' in err and 'Read-only file system' in err
    assert small_runs.files(run_copy) == before


class Tagged(Source):
    """Two directions, whose set `val` has documents."""

    source, target, tags = 'en', 'zh+de', True

    def directions(self):
        return [('en', 'zh'), ('en', 'de')]

    def documents(self, name):
        return [[2]]


@pytest.mark.parametrize(
    ('sources', 'direction'),
    [
        (['<2zh> a', '<2zh> b'], ('en', 'zh')),
        (['<2zh> a', '<2de> b'], ('en', 'zh+de')),
        (['a', '<2fr> b'], ('en', 'zh+de')),
    ],
)
def test_files_have_the_languages_of_their_tags_and_no_documents(sources, direction):
    pairs = [(source, ('x',)) for source in sources]
    files = evaluate._select_files(pairs, Tagged(), small_runs.Numbers())
    assert files.direction('val') == direction
    assert files.documents('val') == ()


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--source=a'], '--source: has no reference'),
        (['--reference=a'], '--reference: has no source'),
        (['--source=a', '--reference=b', '--set=val'], '--set: has no effect with'),
    ],
)
def test_incompatible_flags_are_rejected(flags, message, command):
    with pytest.raises(UserError, match=f'^{message}'):
        command(evaluate, '--workdir=none', *flags)


def test_line_end_within_a_sentence_becomes_a_space():
    pairs = [('a\nb', ('c\r\nd', 'i')), ('e\u2028f', ('g\x85h',))]
    assert to_lines(pairs) == (['a b', 'e f'], [('c d', 'i'), ('g h',)])
