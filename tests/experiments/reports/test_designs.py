"""Tests of a report's analysis of factors, data sets and tuning."""

import numpy as np
import pytest
from planned_sweeps import finish, plan_small
from scipy import stats
from synthetic_runs import make

from experiments.evaluation.measure import Measure
from experiments.reports import arms, conditions, designs, figures, findings
from experiments.runs import reading
from experiments.sweeps import analysis


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(analysis, '_PERMUTATIONS', 99)
    return tmp_path


NORMS = {
    'pre': {'model.residual': 'pre_norm'},
    'post': {'model.residual': 'post_norm'},
}


def grammars(*sizes):
    """Returns a factor of data sets."""
    return {'rows': {f'{n}': {'data': f'grammar(pairs={n})'} for n in sizes}}


def make_study(sweep, score_of):
    """Returns a study of finished runs, with a score for each."""
    for run in sweep.runs:
        make(run.path, 30.0, train__seed=run.seed)
        finish(run, score_of(run))
    return read_study(sweep)


def read_study(sweep):
    return arms.study([reading.read_run(run.path) for run in sweep.runs], sweep)


@pytest.mark.parametrize(('measure', 'sign'), [('test bleu', 1), ('test loss', -1)])
def test_arms_are_compared_with_the_base_on_their_data(folder, measure, sign):
    factors = grammars(2000, 3000) | {'norm': NORMS}
    fields = dict(factors=factors, base='2000, pre', seeds=[0, 1, 2], measure=measure)
    scores = {
        '2000, pre': [30.0, 30.2, 30.1],
        '2000, post': [35.0, 35.1, 35.3],
        '3000, pre': [60.0, 66.0, 63.0],
        '3000, post': [61.0, 65.0, 66.0],
    }
    sweep = plan_small(folder, arms=..., **fields)
    study = make_study(sweep, lambda run: 50 + sign * (scores[run.arm][run.seed] - 50))
    for run, planned in zip(study.runs, sweep.runs, strict=True):
        sentences = 4 if planned.arm.startswith('2000') else 9
        run.evaluations['test']['sentences'] = sentences
    table = findings.ranking(study, findings.from_base(study))
    rows = {row[0]: row[2:] for row in table.rows}
    assert table.columns[-1] == 'base'
    assert [(arm, *row[-2:]) for arm, row in rows.items()] == [
        ('2000, post', 'better', '2000, pre'),
        ('2000, pre', 'base', '2000, pre'),
        ('3000, post', 'not significant', '3000, pre'),
        ('3000, pre', 'base', '3000, pre'),
    ]
    for size in ('2000', '3000'):
        # A paired t-test of each data set, at half of the error rate.
        differences = np.subtract(scores[f'{size}, post'], scores[f'{size}, pre'])
        interval = stats.ttest_1samp(differences, 0).confidence_interval(0.975)
        ends = sorted([sign * interval.low, sign * interval.high])
        _, effect, shown, *_ = rows[f'{size}, post']
        assert effect == pytest.approx(sign * differences.mean())
        assert [shown.low, shown.high] == pytest.approx(ends, rel=1e-3)
    # The errors differ too much for one test over both data sets.
    assert designs.effects(study) is None
    (doubt,) = designs.warnings(study)
    assert doubt.startswith('Factors are not tested over all data sets')
    # Numbers of sentences may differ between data sets, not within one.
    assert not any('sentences' in line for line in conditions.warnings(study))
    study.runs[0].evaluations['test']['sentences'] = 5
    (warning,) = [x for x in conditions.warnings(study) if 'sentences' in x]
    assert warning.startswith('Compared with 2000, pre: ')


@pytest.mark.parametrize(('measure', 'sign'), [('test bleu', 1), ('test loss', -1)])
def test_arms_are_ranked_over_all_data_sets(folder, measure, sign):
    residuals = {'pre_norm': 30.0, 'rezero': 31.0, 'post_norm': 20.0}
    factors = grammars(2000, 3000, 4000) | {'model.residual': list(residuals)}
    fields = dict(factors=factors, base='2000, pre_norm', measure=measure)

    def score(run):
        size, residual = run.arm.split(', ')
        # On the largest data set, rezero is the worst.
        is_worst = (size, residual) == ('4000', 'rezero')
        return 50 + sign * (residuals[residual] - 25 * is_worst + run.seed)

    table = designs.across_data(
        make_study(plan_small(folder, arms=..., **fields), score)
    )
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == ['pre_norm', 'rezero', 'post_norm']
    assert [row[0] for row in rows.values()] == pytest.approx([5 / 3, 5 / 3, 8 / 3])
    # The four pairs of runs differ by 0, 1, 1 and 2; a tie counts half.
    assert rows['rezero'][1] == pytest.approx((3.5 / 4 + 3.5 / 4 + 0) / 3)
    assert rows['post_norm'][1] == 0 and rows['pre_norm'][1] is None


def test_scores_of_sizes_are_drawn_over_parameters(folder):
    factors = {'norm': NORMS, 'size': {'small': {}, 'large': {'model.d_model': 128}}}
    sweep = plan_small(folder, arms=..., factors=factors, base='pre, small')
    parameters = {'small': 1000, 'large': 2000}
    for run in sweep.runs:
        size = run.arm.split(', ')[1]
        score = 30 + 5 * (size == 'large') + run.seed
        result = {'parameters': parameters[size]}
        make(run.path, score, result=result, train__seed=run.seed)
    study = read_study(sweep)
    (rows,) = figures.scores_over_sizes(study).spec()['datasets'].values()
    assert sorted((row['arm'], row['x'], row['y']) for row in rows) == [
        (norm, number, score + seed)
        for norm in ('post', 'pre')
        for number, score in ((1000, 30), (2000, 35))
        for seed in (0, 1)
    ]
    assert figures.scores_over_sizes(arms.study(study.runs, None)) is None


@pytest.mark.parametrize(
    ('measure', 'error'), [('test bleu', 12.0), ('test loss', 88.0)]
)
def test_margin_may_be_a_share_of_the_remaining_error(folder, measure, error):
    sweep = plan_small(folder, margin='5%', measure=measure, seeds=[0, 1, 2])
    study = make_study(
        sweep,
        lambda x: 88 + (x.seed - 1) / 10 + (x.seed == 1) * (x.arm == 'wide') / 10,
    )
    (contrast,) = findings.from_base(study).values()
    assert contrast.margin == pytest.approx(0.05 * error)
    assert contrast.equivalent
    # The error of another score has another size.
    other = study._replace(measure=Measure('test', 'chrf'))
    assert findings.margins(other) == {}
