"""Tests of a report's analysis of factors and tuning."""

import csv
import json

import numpy as np
import pytest
from made_runs import make
from scipy import stats
from test_sweep_plans import TUNE, by_value, finish, planned

from experiments.evaluation.measure import Measure
from experiments.reports import (
    arms,
    conditions,
    designs,
    figures,
    findings,
    page,
    recomputation,
    tables,
)
from experiments.reports.arms import Arm, Study
from experiments.runs import reading
from experiments.sweeps import analysis, planning


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    """Writes pages without files of figures, and with fewer permutations."""
    monkeypatch.setattr(figures, 'files', lambda figure: {})
    monkeypatch.setattr(analysis, '_PERMUTATIONS', 99)


def data_sets(*sizes):
    """Returns a factor of data sets."""
    return {'rows': {f'{n}': {'data': f'grammar(pairs={n})'} for n in sizes}}


def read_study(sweep):
    return arms.study([reading.read_run(run.path) for run in sweep.runs], sweep)


@pytest.fixture
def tuned(folder):
    sweep = planned(folder, tune=TUNE | {'seeds': [7, 8]})
    for run in sweep.trials:
        finish(run, by_value(run))
    none = Arm('base', ())
    return Study((none,), none, Measure('test', 'bleu'), planning.plan(sweep))


def test_table_of_trials_marks_the_chosen_values(tuned):
    found = designs.tried(tuned)
    trials = designs.trials(tuned, found)
    budgets = designs.expected_best(tuned, found)
    figure = designs.tuning_curve(tuned, found)
    rows = list(zip(*zip(*trials.cells(), strict=True), strict=True))
    assert rows[0] == ('base', '0.001', '37.50 ± 0.71', 'yes')
    assert [row[1] for row in rows if row[3]] == ['0.001', '0.003']
    # Of one trial the mean of them all, of as many as there are more.
    first = budgets.rows[0][1:]
    means = [37.5, 17.5, -42.5]
    assert first[0] == pytest.approx(sum(means) / 3)
    assert list(first) == sorted(first) and first[-1] < 37.5
    assert figure.name == 'tuning' and figure.spec()


def test_trials_are_shown_by_the_measure_that_chose(tuned):
    asked = tuned._replace(measure=Measure('long', 'loss', higher_is_better=False))
    found = designs.tried(asked)
    assert designs.trials(asked, found).columns[2] == 'val bleu'
    for make_table in (designs.trials, designs.expected_best):
        assert make_table(asked, found) == make_table(tuned, found)
    curves = [designs.tuning_curve(study, found).spec() for study in (asked, tuned)]
    assert curves[0] == curves[1]


@pytest.mark.usefixtures('quick')
def test_report_of_a_tuned_sweep_has_its_trials(tuned, folder):
    sweep = tuned.sweep
    for run in sweep.runs:
        score = 30.0 + run.seed + (run.arm == 'wide')
        make(run.path, score, train__seed=run.seed)
    page.write(read_study(sweep), folder / 'report')
    text = (folder / 'report/report.md').read_text('utf-8')
    (line,) = designs.warnings(tuned)
    assert line.startswith('base: the best optimizer.schedule.peak, 0.001')
    assert '## Tuning' in text and line.partition(', ')[0] in text
    assert '(figures/tuning.svg)' in text
    assert (folder / 'report/tables/expected_best.csv').exists()


def test_interaction_of_factors_is_tested(folder):
    levels = {'depth': ('two', 'six'), 'norm': ('pre', 'post')}
    factors = {
        'depth': {'two': {'model.num_layers': 2}, 'six': {'model.num_layers': 6}},
        'norm': {
            'pre': {'model.residual': 'pre_norm'},
            'post': {'model.residual': 'post_norm'},
        },
    }
    sweep = planned(folder, arms=..., factors=factors, base='two, pre', seeds=[0, 1])
    for run in sweep.runs:
        # Depth has an effect; the norm has one only in deep models.
        both = run.arm == 'six, post'
        noise = (run.seed * 3 + len(run.arm)) % 4 / 10
        score = 30 + 5 * run.arm.startswith('six') - 9 * both + noise
        make(run.path, score, train__seed=run.seed)
    study = read_study(sweep)
    table = designs.effects(study)
    found = {row[0]: row for row in table.rows}
    assert list(found) == [*levels, 'depth × norm']
    assert all(row[1] == '1, 3' for row in table.rows)
    assert found['depth × norm'][3] < 0.05
    assert 'depth × norm' in tables.markdown(table)
    assert designs.effects(arms.study(study.runs, None)) is None


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize('measure', ['test bleu', 'test loss'])
def test_arms_are_compared_with_the_base_on_their_data(folder, measure):
    factors = data_sets(2000, 3000) | {'model.residual': ['pre_norm', 'rezero']}
    sweep = planned(
        folder,
        arms=...,
        factors=factors,
        base='2000, pre_norm',
        seeds=[0, 1, 2],
        measure=measure,
    )
    scores = {
        '2000, pre_norm': [30.0, 30.2, 30.1],
        '2000, rezero': [35.0, 35.1, 35.3],
        '3000, pre_norm': [60.0, 66.0, 63.0],
        '3000, rezero': [61.0, 65.0, 66.0],
    }
    for run in sweep.runs:
        score = scores[run.arm][run.seed]
        make(run.path, score, train__seed=run.seed)
        finish(run, score if measure == 'test bleu' else 100 - score)
    runs = [reading.read_run(run.path) for run in sweep.runs]
    for run, planned_run in zip(runs, sweep.runs, strict=True):
        sentences = 4 if planned_run.arm.startswith('2000') else 9
        run.evaluations['test']['sentences'] = sentences
    study = arms.study(runs, sweep)
    table = findings.ranking(study, findings.from_base(study))
    rows = {row[0]: row[2:] for row in table.rows}
    assert table.columns[-1] == 'base'
    assert [(arm, *row[-2:]) for arm, row in rows.items()] == [
        ('2000, rezero', 'better', '2000, pre_norm'),
        ('2000, pre_norm', 'base', '2000, pre_norm'),
        ('3000, rezero', 'not significant', '3000, pre_norm'),
        ('3000, pre_norm', 'base', '3000, pre_norm'),
    ]
    sign = 1 if measure == 'test bleu' else -1
    for rows_of in ('2000', '3000'):
        base, arm = f'{rows_of}, pre_norm', f'{rows_of}, rezero'
        # A paired t-test of each data set, at half of the error rate.
        differences = np.subtract(scores[arm], scores[base])
        test = stats.ttest_1samp(differences, 0)
        interval = test.confidence_interval(0.975)
        _, effect, found, *_ = rows[arm]
        ends = sorted([sign * interval.low, sign * interval.high])
        assert effect == pytest.approx(sign * differences.mean())
        assert [found.low, found.high] == pytest.approx(ends, rel=1e-3)
    # The errors differ too much for one test of all data.
    assert designs.effects(study) is None
    (doubt,) = designs.warnings(study)
    assert doubt.startswith('Factors are not tested over all data sets: the error ')
    # Of other data are other sentences; of one data set all runs have the same.
    assert not any('sentences' in line for line in conditions.warnings(study))
    runs[0].evaluations['test']['sentences'] = 5
    (warning,) = [x for x in conditions.warnings(study) if 'sentences' in x]
    assert warning.startswith(
        'Compared with 2000, pre_norm: Runs have different numbers of sentences in test'
    )
    page.write(study, folder / 'report')
    again = recomputation.recompute(folder / 'report')
    assert {x[:2] for x in again.contrasts} == {
        ('2000, rezero', '2000, pre_norm'),
        ('3000, rezero', '3000, pre_norm'),
    }
    assert not again.mismatches


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize(
    ('contrasts', 'seeds'),
    [
        ([], [0, 1, 2]),
        ([('3000, rezero', '3000, pre_norm')], 'until(half_width=1.0, most=9)'),
    ],
)
def test_an_answer_is_recomputed_with_its_design(folder, contrasts, seeds):
    factors = data_sets(2000, 3000) | {'model.residual': ['pre_norm', 'rezero']}
    design = dict(factors=factors, base='2000, pre_norm', contrasts=contrasts)
    measure = ['test bleu', 'test chrf']
    sweep = planned(folder, arms=..., seeds=seeds, measure=measure, **design)
    for i, run in enumerate(sweep.runs):
        score = 30.0 + i * i % 7 + 9 * run.arm.startswith('3000') * run.seed
        make(run.path, score, train__seed=run.seed)
    report = folder / 'report'
    page.write(read_study(sweep), report)
    again = recomputation.recompute(report)
    first = again.contrasts[0]
    declared = [*contrasts, ('2000, rezero', '2000, pre_norm')][0]
    assert first[:2] == declared and not again.mismatches
    file = report / 'tables/answer_chrf.csv'
    rows = list(csv.DictReader(file.read_text('utf-8').splitlines()))
    assert [row.get('looks') for row in rows] == [
        '3' if isinstance(seeds, str) else None for row in rows
    ]
    (row,) = [x for x in rows if x['arm'] == declared[0]]
    text = file.read_text('utf-8').replace(row['95% CI low'], '99')
    file.write_text(text, encoding='utf-8')
    (mismatch,) = recomputation.recompute(report).mismatches
    assert mismatch[:3] == ('tables/answer_chrf.csv', declared[0], '95% CI low')


@pytest.mark.usefixtures('quick')
def test_recomputed_intervals_include_the_choice_of_tuned_values(tuned, folder):
    for run in tuned.sweep.runs:
        score = 30.0 + run.seed * (1 + (run.arm == 'wide'))
        make(run.path, score, train__seed=run.seed)
    study = read_study(tuned.sweep)
    assert study.design().trials
    page.write(study, folder / 'report')
    assert recomputation.recompute(folder / 'report').mismatches == []
    file = folder / 'report/answer.json'
    answer = json.loads(file.read_text('utf-8'))
    for trial in answer['trials']:
        trial['means'] = [30.0, 29.9, 29.8]
    file.write_text(json.dumps(answer), encoding='utf-8')
    found = recomputation.recompute(folder / 'report').mismatches
    assert {'low', 'high', 'p'} <= {x.column for x in found}


@pytest.mark.parametrize('measure', ['test bleu', 'test loss'])
def test_arms_are_ranked_over_all_data_sets(folder, measure):
    residuals = ['pre_norm', 'rezero', 'post_norm']
    factors = data_sets(2000, 3000, 4000) | {'model.residual': residuals}
    base = '2000, pre_norm'
    sweep = planned(folder, arms=..., factors=factors, base=base, measure=measure)
    scores = {'pre_norm': 30.0, 'rezero': 31.0, 'post_norm': 20.0}
    for run in sweep.runs:
        rows, norm = run.arm.split(', ')
        # On the largest data set rezero is the worst.
        score = scores[norm] - 25 * (rows == '4000') * (norm == 'rezero')
        score += run.seed
        make(run.path, score, train__seed=run.seed)
        finish(run, score if measure == 'test bleu' else 100 - score)
    table = designs.across_data(read_study(sweep))
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == ['pre_norm', 'rezero', 'post_norm']
    assert [row[0] for row in rows.values()] == pytest.approx([5 / 3, 5 / 3, 8 / 3])
    # Four pairs of runs have gaps of 0, 1, 1 and 2; a tie counts half.
    assert rows['rezero'][1] == pytest.approx((3.5 / 4 + 3.5 / 4 + 0) / 3)
    assert rows['post_norm'][1] == 0 and rows['pre_norm'][1] is None


def test_time_to_a_target_is_that_of_the_first_evaluation_above_it(folder):
    sweep = planned(folder, measure='test loss', target=2.5)
    for run in sweep.runs:
        losses = (4, 2.5, 1) if run.arm == 'wide' else (4, 3, 2.6 - run.seed)
        rows = [
            (10 * i, 'eval', {'set': 'val', 'loss': x, 'seconds': 7.0 * i})
            for i, x in enumerate(losses, 1)
        ]
        make(run.path, 30.0, rows=rows, train__seed=run.seed)
    study = read_study(sweep)
    base, wide = designs.time_to_target(study).cells()
    assert base == ['base', '1 of 2', '30', '-', '21']
    assert wide == ['wide', '2 of 2', '20', '-', '14']
    assert designs.time_to_target(arms.study(study.runs, None)) is None


def test_scores_of_sizes_are_drawn_over_parameters(folder):
    factors = {
        'norm': {
            'pre': {'model.residual': 'pre_norm'},
            'post': {'model.residual': 'post_norm'},
        },
        'size': {'small': {}, 'large': {'model.d_model': 128}},
    }
    sweep = planned(folder, arms=..., factors=factors, base='pre, small', seeds=[0, 1])
    for run in sweep.runs:
        large = run.arm.endswith('large')
        make(
            run.path,
            30 + 5 * large + run.seed,
            result={'parameters': 2000 if large else 1000},
            train__seed=run.seed,
        )
    study = read_study(sweep)
    figure = figures.scores_over_sizes(study)
    (rows,) = figure.spec()['datasets'].values()
    found = sorted((row['arm'], row['x'], row['y']) for row in rows)
    assert found == [
        (norm, parameters, score + seed)
        for norm in ('post', 'pre')
        for parameters, score in ((1000, 30), (2000, 35))
        for seed in (0, 1)
    ]
    assert b'<path' in figures.files(figure)['svg']
    assert figures.scores_over_sizes(arms.study(study.runs, None)) is None


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize(
    ('measure', 'error'), [('test bleu', 12.0), ('test loss', 88.0)]
)
def test_margin_may_be_a_share_of_the_remaining_error(folder, measure, error):
    sweep = planned(folder, margin='5%', measure=measure, seeds=[0, 1, 2])
    for run in sweep.runs:
        score = 88.0 + (run.seed - 1) / 10 + (run.seed == 1) * (run.arm == 'wide') / 10
        make(run.path, score, train__seed=run.seed)
        finish(run, score)
    study = read_study(sweep)
    (contrast,) = findings.from_base(study).values()
    assert contrast.margin == pytest.approx(0.05 * error)
    assert contrast.equivalent
    page.write(study, folder / 'report')
    text = (folder / 'report/report.md').read_text('utf-8')
    share = f'5% of the remaining error of each base, ± {error / 20:.3g} for base'
    assert share in text
    # The error of another score has another size.
    other = study._replace(measure=Measure('test', 'chrf'))
    assert findings.margins(other) == {}
