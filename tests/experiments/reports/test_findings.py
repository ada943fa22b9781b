"""Tests of a report's verdicts and ranks, and of its tables of differences."""

import dataclasses

import pytest
from scipy import stats
from synthetic_runs import REFERENCES, heads, make, make_all, study, sweep, translate

from experiments import storage
from experiments.reports import conditions, findings


def verdicts(of_study):
    table = findings.ranking(of_study, findings.from_base(of_study))
    return [(row[0], row[-1]) for row in table.rows]


@pytest.mark.parametrize(
    ('bleus', 'measure', 'expected'),
    [
        (
            {4: (30.0, 30.2, 30.4), 8: (40.0, 40.1, 40.5), 2: (30.1, 30.6, 29.9)},
            '',
            {'8': 'better', '4': 'base', '2': 'not significant'},
        ),
        (
            {4: (30.0, 31.0), 8: (30.0, 31.0)},
            'test loss',
            {'4': 'base', '8': 'not testable: no variance between seeds'},
        ),
        ({4: [30.0], 8: [31.0]}, '', {'8': findings.ONE_SEED, '4': 'base'}),
    ],
)
def test_verdicts_follow_the_test_against_the_base(tmp_path, bleus, measure, expected):
    result = study(heads(tmp_path, bleus), measure=measure)
    rows = [(f'num_heads={number}', verdict) for number, verdict in expected.items()]
    assert verdicts(result) == rows


def test_margin_of_a_sweep_also_holds_without_contrasts(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 30.1, 30.2), 8: (30.0, 30.2, 30.2)})
    planned = dataclasses.replace(sweep(tmp_path), margin=2.0)
    first, *_, last = verdicts(study(paths, planned))
    assert first == ('many', 'equivalent') and last == ('most', 'no finished run')


def test_translations_of_runs_with_equal_seeds_are_paired(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 31.0), 8: (32.0, 33.0), 16: (34.0, 35.0)})
    for path in paths:
        translate(path, REFERENCES)
    for path in paths[:2]:
        translate(path, ['Katze', 'Hund', 'Vögel'])

    def pairs():
        result = study(paths)
        contrasts = list(findings.from_base(result).values())
        return [row[:2] for row in findings.over_sentences(result, contrasts).rows]

    assert pairs() == [['num_heads=16', 2], ['num_heads=8', 2]]
    translate(paths[3], ['x'] * 3, sources=['other'] * 3)
    assert pairs() == [['num_heads=16', 2], ['num_heads=8', 1]]


def test_runs_without_the_deciding_score_are_excluded(tmp_path):
    paths = make_all(tmp_path, {'a': {}, 'b': {'model__num_heads': 8}})
    unscored = {'result': {'evaluations': {}}, 'model__num_heads': 2}
    paths.append(make(tmp_path / 'c', 30.0, **unscored))
    assert verdicts(study(paths))[-1] == ('num_heads=2', 'no score for test bleu')
    assert 'test bleu' in findings.answer(study(paths[2:]))[0]
    damaged = study(paths[:2], measure='test chrf')
    damaged.runs[0].evaluations['test']['chrf'] = None
    (line,) = conditions.warnings(damaged)
    assert line.startswith(f'{tmp_path}/a: has no score for test chrf')
    assert verdicts(damaged)[0][1] == 'the base has no score for test chrf'


def test_published_scores_have_a_t_test_over_seeds(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 32.0), 8: [32.0]})
    first, *others = findings.published(study(paths, sweep(tmp_path))).rows
    test = stats.ttest_1samp([30.0, 32.0], 25.5)
    interval = tuple(x - 25.5 for x in test.confidence_interval(0.95))
    assert tuple(first[:3]) == ('few', 'bleu', 25.5)
    expected = (5.5, pytest.approx(interval), pytest.approx(test.pvalue))
    assert first[4:] == (pytest.approx(expected[0]), *expected[1:])
    assert [(*row[:2], row[4]) for row in others] == [
        ('few', 'parameters', pytest.approx(-64_999_000)),
        ('many', 'bleu', pytest.approx(6.2)),
    ]
    assert findings.published(study(paths)) is None


@pytest.mark.parametrize(
    ('measure', 'ranks'),
    [
        ('test bleu', {'4': '3', '8': '1–2', '16': '1–2'}),
        ('test ter', {'4': '1', '8': '2–3', '16': '2–3'}),
    ],
)
def test_arms_without_a_significant_difference_share_ranks(tmp_path, measure, ranks):
    bleus = {4: (30.0, 30.3, 30.1), 8: (40.0, 40.1, 40.3), 16: (40.2, 40.0, 40.4)}
    paths = heads(tmp_path, bleus, evaluation__metrics='[bleu, ter]')
    for path in paths:
        content = storage.read_json(path / 'result.json')
        scores = content['evaluations']['test']
        scores |= {'ter': scores['bleu'], 'ter_signature': 't'}
        scores['lower_is_better'] = ['ter']
        storage.write_json(path / 'result.json', content)
    result = study(paths, measure=measure)
    expected = {f'num_heads={number}': rank for number, rank in ranks.items()}
    assert findings.ranks(result) == expected
    answer = findings.answer_table(result, findings.from_base(result), [])
    for table in (answer, findings.arms(result)):
        assert {row[0]: row[1] for row in table.rows} == expected
    assert findings.ranks(study(paths[::3])) == {}
