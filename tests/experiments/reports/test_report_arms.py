"""Tests of arms, the findings of a study, and its warnings."""

import dataclasses

import pytest
from made_runs import (
    REFERENCES,
    digests,
    fail,
    heads,
    make,
    study,
    sweep,
    translate,
)
from scipy import stats

from experiments import report, storage
from experiments.errors import UserError
from experiments.reports import conditions, findings, tables
from experiments.sweeps import analysis


def test_runs_that_differ_in_any_seed_are_one_arm(tmp_path):
    paths = [
        make(tmp_path / 'a', 30.0),
        make(tmp_path / 'b', 31.0, train__seed=3),
        make(tmp_path / 'c', 32.0, train__dropout_seed=3),
        make(tmp_path / 'd', 33.0, model__num_heads=8),
        make(tmp_path / 'e', 34.0, model__residual='post_norm', model__num_heads=8),
    ]
    first, *others = study(paths).arms
    assert [run.path.name for run in first.runs] == ['a', 'b', 'c']
    assert [run.seed for run in first.runs] == ['0', '3', '0, dropout_seed 3']
    assert first.name == 'num_heads=4, residual=pre_norm'
    assert [arm.name for arm in others] == [
        'num_heads=8, residual=pre_norm',
        'num_heads=8, residual=post_norm',
    ]


def test_runs_on_different_text_are_separate_arms_with_a_warning(tmp_path):
    paths = [
        make(tmp_path / 'a', 30.0, result=digests('old', 'old')),
        make(tmp_path / 'b', 31.0, result=digests('new', 'old'), train__seed=1),
        make(tmp_path / 'c', 32.0, result=digests('new', 'new'), train__seed=2),
        make(tmp_path / 'd', 33.0, result=digests('new', 'new'), train__seed=3),
    ]
    found = study(paths)
    arms = [[run.path.name for run in arm.runs] for arm in found.arms]
    assert arms == [['a'], ['b'], ['c', 'd']]
    lines = conditions.warnings(found)
    for name, other in {'training text': 'b', 'text of test': 'c'}.items():
        said = f'{tmp_path}/a and {tmp_path}/{other} differ in their {name}'
        assert any(line.startswith(said) for line in lines)
    assert any('different text of test' in line for line in lines)
    facts = {row[:2] for row in conditions.facts(found).rows}
    assert {('training text', 'old'), ('text of test', 'new')} <= facts
    text = report.as_table(found.runs)
    assert 'differ in their training text' in text and '31.50' not in text


def test_arms_on_different_text_have_different_names(tmp_path):
    paths = []
    for seed, text in enumerate(['old', 'old', 'new', 'new']):
        path = tmp_path / f'run,train.seed={seed}'
        paths.append(make(path, 30.0, result=digests(text, 'a'), train__seed=seed))
    names = [arm.name for arm in study(paths).arms]
    assert names == [f'{tmp_path}/run, text 1', f'{tmp_path}/run, text 2']


def test_runs_without_digests_or_on_other_data_cause_no_warning_of_text(tmp_path):
    paths = [
        make(tmp_path / 'a', 30.0),
        make(tmp_path / 'b', 31.0, result=digests('new', 'new'), train__seed=1),
    ]
    assert len(study(paths).arms) == 1
    assert not conditions.warnings(study(paths))
    other = make(tmp_path / 'c', 31.0, result=digests('c', 'new'), data='other')
    lines = conditions.warnings(study([*paths, other]))
    assert not [line for line in lines if 'training text' in line or 'text of' in line]


def test_arms_of_a_sweep_are_refused_on_different_text(tmp_path):
    heads(tmp_path, {4: [30.0, 31.0]})
    paths = sorted(tmp_path.iterdir())
    for path, text in zip(paths, ('old', 'new'), strict=True):
        result = storage.read_json(path / 'result.json')
        storage.write_json(path / 'result.json', result | digests(text, 'a'))
    with pytest.raises(UserError, match='differ in their training text. Move the runs'):
        study(paths, sweep(tmp_path))


def test_arms_of_many_differences_are_named_by_their_directories(tmp_path):
    other = {f'model__field_{i}': 'a long value' for i in range(5)}
    found = study([make(tmp_path / 'a', 30.0), make(tmp_path / 'b', 30.0, **other)])
    assert [arm.name for arm in found.arms] == [f'{tmp_path}/a', f'{tmp_path}/b']


@pytest.mark.parametrize(
    ('field', 'word'),
    [
        ('model.cross.num_heads', 'cross.num_heads'),
        ('model.num_heads', 'num_heads'),
        ('checkpoint.every', 'checkpoint.every'),
        ('mesh.data', 'mesh.data'),
    ],
)
def test_an_arm_is_named_so_that_its_field_is_clear(tmp_path, field, word):
    paths = [
        make(tmp_path / str(value), 30.0, **{field.replace('.', '__'): value})
        for value in (1, 2)
    ]
    assert [arm.name for arm in study(paths).arms] == [f'{word}=1', f'{word}=2']


def test_arms_with_long_names_have_different_names(tmp_path):
    paths = []
    for arm, value in (('a', 'x' * 60), ('b', 'y' * 60)):
        for seed in (0, 1):
            path = tmp_path / f'run,num_heads={arm}~{seed}'
            fields = {'model__attention': value, 'train__seed': seed}
            paths.append(make(path, 30.0, **fields))
    assert [arm.name for arm in study(paths).arms] == [str(paths[0]), str(paths[2])]


def test_a_seed_given_by_its_own_field_is_that_seed(tmp_path):
    own = {f'train__{name}_seed': 1 for name in ('init', 'data', 'dropout')}
    paths = [
        make(tmp_path / 'a', 30.0, train__seed=1),
        make(tmp_path / 'b', 40.0, train__seed=1, **own),
    ]
    found = study(paths)
    assert list(found.arms[0].by_seeds(found.measure).values()) == [30.0]
    (warning,) = conditions.warnings(found)
    assert str(tmp_path / 'b') in warning and 'has the same seeds' in warning


def test_the_base_is_named_by_its_arm(tmp_path):
    paths = heads(tmp_path, {4: [30.0], 8: [31.0]})
    assert study(paths).base.name == 'num_heads=4'
    assert study(paths, base='num_heads=8').base.name == 'num_heads=8'
    with pytest.raises(
        UserError, match='--base=num_heads=9: unknown arm. Choose one of num'
    ):
        study(paths, base='num_heads=9')


@pytest.mark.parametrize('measure', ['test', 'test blue', 'dev bleu'])
def test_a_measure_that_is_not_there_is_refused(tmp_path, measure):
    with pytest.raises(UserError, match='Sets: test. Scores: bleu, chrf,'):
        study(heads(tmp_path, {4: [30.0]}), measure=measure)


def ranking(found):
    return findings.ranking(found, findings.from_base(found))


def verdicts(found):
    return [(row[0], row[-1]) for row in ranking(found).rows]


def over_sentences(found):
    return findings.over_sentences(found, list(findings.from_base(found).values()))


def test_the_answer_ranks_and_tests(tmp_path):
    bleus = {4: (30.0, 30.2, 30.4), 8: (40.0, 40.1, 40.5), 2: (30.1, 30.6, 29.9)}
    found = study(heads(tmp_path, bleus))
    contrasts = findings.from_base(found)
    assert verdicts(found) == [
        ('num_heads=8', 'better'),
        ('num_heads=4', 'base'),
        ('num_heads=2', 'not significant'),
    ]
    scores = {f'{n}': dict(enumerate(values)) for n, values in bleus.items()}
    contrast = analysis.compare(scores, base='4')[0]
    assert contrasts['num_heads=8'][2:6] == pytest.approx(contrast[2:6])
    assert ranking(found).cells()[0][:3] == ['num_heads=8', '3', '40.20 ± 0.26']


def test_of_a_loss_less_is_better(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 31.0), 8: (30.0, 31.0)})
    found = study(paths, measure='test loss')
    assert not found.measure.higher_is_better
    words = [word for _, word in verdicts(found)]
    assert words == ['base', 'not testable: no variance between seeds']
    assert ranking(found).cells()[0][2] == '1.0000'
    assert findings.costs(found).cells()[0][1] == '1.0000'


def test_the_margin_of_a_sweep_also_holds_without_contrasts(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 30.1, 30.2), 8: (30.0, 30.2, 30.2)})
    of_sweep = dataclasses.replace(sweep(tmp_path), margin=2.0)
    assert verdicts(study(paths, of_sweep))[0] == ('many', 'equivalent')


def test_of_one_seed_nothing_is_said(tmp_path):
    found = study(heads(tmp_path, {4: [30.0], 8: [31.0]}))
    assert verdicts(found)[0] == ('num_heads=8', findings.ONE_SEED)


def test_over_sentences_runs_of_a_seed_are_paired(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 31.0), 8: (32.0, 33.0), 16: (34.0, 35.0)})
    for path in paths:
        translate(path, REFERENCES)
    for path in paths[:2]:
        translate(path, ['Katze', 'Hund', 'Vögel'])
    rows = over_sentences(study(paths)).rows
    assert [row[:2] for row in rows] == [['num_heads=16', 2], ['num_heads=8', 2]]
    # Other sentences cannot be paired.
    translate(paths[3], ['x'] * 3, sources=['other'] * 3)
    rows = over_sentences(study(paths)).rows
    assert [row[:2] for row in rows] == [['num_heads=16', 2], ['num_heads=8', 1]]


def test_diverged_failed_and_unfinished_runs_are_named_and_in_no_mean(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 31.0)})
    rows = [(7, 'eval', {'set': 'test', 'bleu': 1.0, 'loss': 9.0})]
    for seed, status in enumerate(('diverged', 'failed'), 2):
        paths.append(fail(make(tmp_path / status, rows=rows, train__seed=seed), status))
    paths.append(make(tmp_path / 'stopped', rows=rows, train__seed=4))
    found = study(paths)
    assert list(found.arms[0].by_seeds(found.measure).values()) == [30.0, 31.0]
    diverged, failed, stopped = conditions.warnings(found)
    assert 'seed 2: diverged at step 7' in diverged
    assert '(the loss is not finite); excluded from the means' in diverged
    assert 'seed 3: failed at step 7' in failed
    assert 'seed 4: stopped at step 7' in stopped


@pytest.mark.parametrize(
    ('field', 'value', 'words'),
    [
        ('train__steps', 40, 'in other fields: train.steps is 40, not 20'),
        ('data', 'other', 'fields: data is other, not'),
    ],
)
def test_more_than_one_difference_is_said(tmp_path, field, value, words):
    paths = [make(tmp_path / 'a', 30.0)]
    paths.append(make(tmp_path / 'b', 31.0, model__num_heads=8, **{field: value}))
    (warning,) = conditions.warnings(study(paths))
    assert words in warning


def test_a_run_without_the_deciding_score_is_named(tmp_path):
    paths = [make(tmp_path / 'a', 30.0), make(tmp_path / 'b', 30.0, model__num_heads=8)]
    unscored = {'evaluations': {}}
    paths.append(make(tmp_path / 'c', 30.0, result=unscored, model__num_heads=2))
    lines = conditions.warnings(study(paths, measure='test bleu'))
    (line,) = [line for line in lines if 'no score' in line]
    assert line.startswith(f'{tmp_path}/c: has no score for test bleu. Choose another ')
    assert verdicts(study(paths))[-1] == ('num_heads=2', 'no score for test bleu')
    without = study(paths[2:])
    assert findings.answer(without) == ['No finished run has a score for test bleu.']
    damaged = study(paths[:2], measure='test chrf')
    damaged.runs[0].evaluations['test']['chrf'] = None
    (line,) = conditions.warnings(damaged)
    assert line == f'{tmp_path}/a: has no score for test chrf; excluded from the means.'
    assert verdicts(damaged)[0][1] == 'the base has no score for test chrf'


def test_unequal_code_and_unequal_cost_are_said(tmp_path):
    paths = []
    for name, changed, parameters in (('a', False, 1000), ('b', True, 1500)):
        git = {'commit': name * 40, 'changed': changed}
        more = dict(environment={'git': git}, result={'parameters': parameters})
        paths.append(make(tmp_path / name, 31.0, **more, model__num_heads=parameters))
    code, cost = conditions.warnings(study(paths))
    commit = 'Runs have different commits: a difference may come from the code.'
    assert code == commit
    assert ('commit', 'bbbbbbbbbb (modified)', 'num_heads=1500') in conditions.facts(
        study(paths)
    ).rows
    assert cost == 'Unequal cost: parameters range from 1,000 to 1,500.'
    assert not conditions.warnings(study(paths[:1]))


def test_costs_have_to_be_equal_within_each_declared_difference(tmp_path):
    paths = [
        make(
            tmp_path / f'{heads}',
            31.0,
            result={'parameters': parameters},
            model__num_heads=heads,
        )
        for heads, parameters in ((2, 1000), (4, 1000), (8, 1500), (16, 1800))
    ]
    names = [f'num_heads={heads}' for heads in (2, 4, 8, 16)]
    found = study(paths)

    def warned(*contrasts):
        asked = dataclasses.replace(found.sweep, contrasts=contrasts)
        return conditions.warnings(found._replace(sweep=asked))

    assert len(warned()) == 1
    assert not warned((names[1], names[0]))
    unequal = (names[2], names[0])
    (line,) = warned((names[1], names[0]), unequal)
    pair = 'num_heads=8 and num_heads=2'
    assert line == f'Unequal cost: parameters range from 1,000 to 1,500 for {pair}.'
    (line,) = warned(unequal, (names[3], names[1]))
    assert line.endswith(
        'for num_heads=16 and num_heads=4 (the largest of 2 unequal contrasts).'
    )


def test_declared_differences_are_the_answer(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 32.0), 8: (40.0, 41.9)})
    asked = dataclasses.replace(
        sweep(tmp_path), contrasts=(('many', 'few'), ('most', 'few')), margin=20.0
    )
    found = study(paths, asked)
    (contrast,) = findings.declared_contrasts(found)  # no run of 'most' is there
    (sentence,) = findings.answer(found, [contrast])
    low, high = (f'{x:.2f}' for x in (contrast.low, contrast.high))
    assert sentence == (
        f'many compared with few: better (difference 9.95, 95% CI {low} to {high}).'
    )
    # Nearer, and with less to see it by.
    paths = heads(tmp_path / 'near', {4: (30.0, 32.0), 8: (30.0, 33.0)})
    (contrast,) = findings.declared_contrasts(
        study(paths, with_folder(asked, tmp_path / 'near'))
    )
    (sentence,) = findings.answer(found, [contrast])
    assert contrast.equivalent is True
    assert sentence.startswith('many compared with few: equivalent (')
    (sentence,) = findings.answer(found, [contrast._replace(equivalent=False)])
    assert ': not significant (difference 0.50, 95% CI ' in sentence
    words = f'; minimum detectable difference {contrast.detectable:.2f}).'
    assert sentence.endswith(words)
    alone = contrast._replace(low=None, high=None, p=None)
    (sentence,) = findings.answer(found, [alone])
    assert sentence == 'many compared with few: not testable (difference 0.50).'


def test_declared_differences_are_in_the_table_of_the_answer(tmp_path):
    bleus = {4: (30.0, 32.0), 8: (40.0, 41.9), 16: [40.1]}
    paths = heads(tmp_path, bleus)
    for path in paths:
        translate(path, REFERENCES)
    translate(paths[-1], ['Katze', 'Hund', 'Vögel'])
    asked = dataclasses.replace(sweep(tmp_path), contrasts=(('most', 'many'),))
    found = study(paths, asked)
    declared = findings.declared_contrasts(found)
    contrasts = findings.from_base(found)
    table = findings.answer_table(found, contrasts, declared)
    (contrast,) = declared
    (row,) = table.rows
    assert row[:4] == ('most', 'many', 1, contrast.effect)
    assert tuple(row[4]) == (contrast.low, contrast.high)
    assert row[5:9] == (
        contrast.detectable,
        contrast.p,
        contrast.permuted,
        'not significant',
    )
    assert 'most & many' in tables.latex(table)
    # The same difference has no other interval that is not folded away.
    others = findings.exploratory(found, contrasts)
    assert others.aside and [other[0] for other in others.rows] == ['many', 'most']
    over = findings.over_sentences(found, declared)
    assert over.aside and [other[0] for other in over.rows] == ['most']
    assert [other[0] for other in findings.arms(found).rows] == ['many', 'most', 'few']
    all_of_them = dataclasses.replace(
        asked, contrasts=(('few', 'most'), ('many', 'few'))
    )
    assert findings.exploratory(study(paths, all_of_them), contrasts) is None
    missing = study(paths[:2], asked)
    table = findings.answer_table(missing, {}, findings.declared_contrasts(missing))
    assert table.note.endswith('The declared contrasts have no scores yet.')


def with_folder(asked, folder):
    runs = [run._replace(path=folder / run.path.name) for run in asked.runs]
    return dataclasses.replace(asked, runs=tuple(runs))


@pytest.mark.parametrize(
    ('bleus', 'is_said'),
    [
        ({4: (30.0, 31.0, 32.0), 8: (40.0, 41.5, 43.0)}, False),
        ({4: (0.0, 0.0, 0.0), 8: (40.0, 41.5, 43.0)}, True),
        ({4: (0.0, 0.01, 0.02), 8: (40.0, 45.0, 53.0)}, True),
        ({4: (30.0,), 8: (31.0,)}, False),
    ],
)
def test_unequal_spread_is_said(tmp_path, bleus, is_said):
    lines = conditions.warnings(study(heads(tmp_path, bleus)))
    assert any('variance between seeds differs' in line for line in lines) == is_said


def test_of_a_metric_whose_best_score_is_low_the_lowest_arm_is_best(tmp_path):
    paths = []
    scores = dict(direction='en-de', sentences=3, loss=1.0, perplexity=2.7)
    scores |= dict(accuracy=0.5, ter_signature='of TER', lower_is_better=['ter'])
    for number, score in ((4, 50.0), (8, 40.0)):
        result = {'evaluations': {'test': scores | {'ter': score}}}
        made = {'result': result, 'outputs': REFERENCES, 'model__num_heads': number}
        made['evaluation__metrics'] = '[ter, chrf]'
        paths.append(make(tmp_path / f'{number}', 1.0, **made))
    found = study(paths)
    assert str(found.measure) == 'test ter'
    assert [arm.name for arm in found.ranked()] == ['num_heads=8', 'num_heads=4']
    assert over_sentences(found).note.startswith('Set test, ')
    assert tuple(findings.scores(found).columns[2:4]) == ('ter', 'chrf')
    text = ' '.join(map(str, conditions.facts(found).rows))
    assert "('signature', 'of TER', 'all')" in text


def test_a_sweep_has_its_arms_and_says_what_is_missing(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 31.0), 8: [32.0]})
    found = study(paths, sweep(tmp_path))
    assert [arm.name for arm in found.arms] == ['few', 'many', 'most']
    assert found.base.name == 'few'
    lines = conditions.warnings(found)
    assert lines == [
        f'Missing: many, seed 1 ({tmp_path}/run,heads=8,train.seed=1).',
        f'Missing: most, seed 0 ({tmp_path}/run,heads=16,train.seed=0).',
    ]
    assert verdicts(found)[-1] == ('most', 'no finished run')


def test_runs_of_no_arm_of_the_sweep_are_refused(tmp_path):
    other = make(tmp_path / 'run,heads=2', 30.0)
    with pytest.raises(UserError, match='--sweep=heads: none of the runs belongs to'):
        study([other], sweep(tmp_path))


def test_a_sweep_says_which_difference_it_did_not_ask_for(tmp_path):
    paths = heads(tmp_path, {4: [30.0]})
    name = tmp_path / 'run,heads=8,train.seed=0'
    paths.append(make(name, 31.0, model__num_heads=8, model__residual='none'))
    text = ' '.join(conditions.warnings(study(paths, sweep(tmp_path))))
    assert 'in other fields: model.residual is none, not pre_norm.' in text


def test_a_report_names_the_file_that_declared_its_question(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 32.0), 8: [32.0]})
    declared = dataclasses.replace(sweep(tmp_path), digest='0123456789abcdef' * 4)
    rows = conditions.facts(study(paths, declared)).rows
    assert rows[0][1:] == ('heads.py, SHA-256 0123456789abcdef', 'all')


def test_what_was_published_stands_beside_what_was_found(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 32.0), 8: [32.0]})
    table = findings.published(study(paths, sweep(tmp_path)))
    test = stats.ttest_1samp([30.0, 32.0], 25.5)
    ends = [x - 25.5 for x in test.confidence_interval(0.95)]
    low, high = (f'{x:.4g}'.replace('-', '−') for x in ends)
    assert table.cells() == [
        [
            *('few', 'bleu', '25.5', '31.0 ± 1.4', '5.5'),
            *(f'{low} to {high}', f'{test.pvalue:.3f}'),
        ],
        ['few', 'parameters', '65,000,000', '1,000', '−64,999,000', '-', '-'],
        ['many', 'bleu', '25.8', '32', '6.2', '-', '-'],
    ]
    assert findings.published(study(paths)) is None


@pytest.mark.parametrize(
    ('measure', 'placed'),
    [
        ('test bleu', {'few': '3', 'many': '1–2', 'most': '1–2'}),
        ('test ter', {'few': '1', 'many': '2–3', 'most': '2–3'}),
    ],
)
def test_arms_that_do_not_differ_share_their_ranks(tmp_path, measure, placed):
    scores = {4: (30.0, 30.3, 30.1), 8: (40.0, 40.1, 40.3), 16: (40.2, 40.0, 40.4)}
    paths = []
    for number, of_seeds in scores.items():
        for seed, score in enumerate(of_seeds):
            of_set = {'direction': 'en-de', 'sentences': 3, 'lower_is_better': ['ter']}
            of_set |= {'loss': 1.0, 'perplexity': 2.7, 'accuracy': 0.5}
            for name in ('bleu', 'ter'):
                of_set |= {name: score, f'{name}_signature': name}
            fields = {'model__num_heads': number, 'train__seed': seed}
            path = tmp_path / f'{number},{seed}'
            result = {'evaluations': {'test': of_set}}
            metrics = {'evaluation__metrics': '[bleu, ter]'}
            paths.append(make(path, score, result=result, **metrics, **fields))
    found = study(paths, measure=measure)
    names = {'few': 'num_heads=4', 'many': 'num_heads=8', 'most': 'num_heads=16'}
    assert findings.ranks(found) == {names[arm]: x for arm, x in placed.items()}
    rows = findings.answer_table(found, findings.from_base(found), []).rows
    assert {row[0]: row[1] for row in rows} == findings.ranks(found)
    assert {row[0]: row[1] for row in findings.arms(found).rows} == findings.ranks(
        found
    )
    assert findings.ranks(study(paths[::3])) == {}


def test_departures_of_arms_are_listed_once_for_each_text(tmp_path):
    paths = heads(tmp_path, {4: [30.0], 8: [31.0]})
    assert findings.departures(study(paths, sweep(tmp_path))) is None
    texts = {'few': 'No bias.', 'most': 'Two layers.', 'many': 'No bias.'}
    departing = dataclasses.replace(sweep(tmp_path), departures=texts)
    table = findings.departures(study(paths, departing))
    assert table.columns[1] == 'differs from the paper in'
    assert table.rows == [('few; many', 'No bias.'), ('most', 'Two layers.')]
