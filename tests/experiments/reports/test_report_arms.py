"""Tests of arms, verdicts, and warnings about unfair comparisons."""

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
from experiments.reports import conditions, findings


def make_all(folder, runs):
    """Creates runs from name → fields with BLEU 30, 31, …; returns their paths."""
    return [
        make(folder / name, 30.0 + number, **fields)
        for number, (name, fields) in enumerate(runs.items())
    ]


def names_of_runs(found):
    return [[run.path.name for run in arm.runs] for arm in found.arms]


def ranking(found):
    return findings.ranking(found, findings.from_base(found))


def verdicts(found):
    return [(row[0], row[-1]) for row in ranking(found).rows]


def over_sentences(found):
    return findings.over_sentences(found, list(findings.from_base(found).values()))


def test_runs_that_differ_in_any_seed_are_one_arm(tmp_path):
    runs = {
        'a': {},
        'b': {'train__seed': 3},
        'c': {'train__dropout_seed': 3},
        'd': {'model__num_heads': 8},
        'e': {'model__residual': 'post_norm', 'model__num_heads': 8},
    }
    found = study(make_all(tmp_path, runs))
    assert names_of_runs(found) == [['a', 'b', 'c'], ['d'], ['e']]
    seeds = [run.seed for run in found.arms[0].runs]
    assert seeds == ['0', '3', '0, dropout_seed 3']
    assert [arm.name for arm in found.arms] == [
        'num_heads=4, residual=pre_norm',
        'num_heads=8, residual=pre_norm',
        'num_heads=8, residual=post_norm',
    ]


FIELDS = {f'model__field_{i}': 'a long value' for i in range(5)}
TWO_SEEDS = {
    f'run,num_heads={arm}~{seed}': {'model__attention': 60 * arm, 'train__seed': seed}
    for arm in 'ab'
    for seed in (0, 1)
}


@pytest.mark.parametrize(
    ('runs', 'names'),
    [
        *(
            ({'a': {name: 1}, 'b': {name: 2}}, [f'{short}=1', f'{short}=2'])
            for name, short in (
                ('model__cross__num_heads', 'cross.num_heads'),
                ('model__num_heads', 'num_heads'),
                ('checkpoint__every', 'checkpoint.every'),
                ('mesh__data', 'mesh.data'),
            )
        ),
        ({'a': {}, 'b': FIELDS}, ['HERE/a', 'HERE/b']),
        (TWO_SEEDS, ['HERE/run,num_heads=a~0', 'HERE/run,num_heads=b~0']),
        (
            {
                f'run,train.seed={i}': {'train__seed': i, 'result': digests(text, 'a')}
                for i, text in enumerate(['old', 'old', 'new', 'new'])
            },
            ['HERE/run, text 1', 'HERE/run, text 2'],
        ),
    ],
)
def test_arms_have_short_and_different_names(tmp_path, runs, names):
    found = study(make_all(tmp_path, runs))
    expected = [name.replace('HERE', str(tmp_path)) for name in names]
    assert [arm.name for arm in found.arms] == expected


def test_runs_on_different_text_are_separate_arms_with_a_warning(tmp_path):
    texts = {'a': ('old', 'old'), 'b': ('new', 'old')}
    texts |= dict.fromkeys('cd', ('new', 'new'))
    runs = {
        name: {'result': digests(*of_run), 'train__seed': seed}
        for seed, (name, of_run) in enumerate(texts.items())
    }
    found = study(make_all(tmp_path, runs))
    assert names_of_runs(found) == [['a'], ['b'], ['c', 'd']]
    lines = conditions.warnings(found)
    for name, other in {'training text': 'b', 'text of test': 'c'}.items():
        start = f'{tmp_path}/a and {tmp_path}/{other} differ in their {name}'
        assert any(line.startswith(start) for line in lines)
    facts = {row[:2] for row in conditions.facts(found).rows}
    assert {('training text', 'old'), ('text of test', 'new')} <= facts
    assert '31.50' not in report.as_table(found.runs)  # the mean of b and c


def test_runs_without_digests_or_on_other_data_cause_no_warning_of_text(tmp_path):
    new = {'result': digests('new', 'new'), 'train__seed': 1}
    paths = make_all(tmp_path, {'a': {}, 'b': new})
    assert len(study(paths).arms) == 1 and not conditions.warnings(study(paths))
    other = make(tmp_path / 'c', 31.0, result=digests('c', 'new'), data='other')
    lines = conditions.warnings(study([*paths, other]))
    assert not [x for x in lines if 'training text' in x or 'text of' in x]


def test_arms_of_a_sweep_are_refused_on_different_text(tmp_path):
    paths = heads(tmp_path, {4: [30.0, 31.0]})
    for path, text in zip(paths, ('old', 'new'), strict=True):
        result = storage.read_json(path / 'result.json')
        storage.write_json(path / 'result.json', result | digests(text, 'a'))
    with pytest.raises(UserError, match='training text'):
        study(paths, sweep(tmp_path))


def test_runs_with_equal_seeds_count_once(tmp_path):
    own = {f'train__{name}_seed': 1 for name in ('init', 'data', 'dropout')}
    runs = {'a': {'train__seed': 1}, 'b': {'train__seed': 1} | own}
    found = study(make_all(tmp_path, runs))
    assert list(found.arms[0].by_seeds(found.measure).values()) == [30.0]
    (warning,) = conditions.warnings(found)
    assert str(tmp_path / 'b') in warning and 'same seeds' in warning


def test_the_base_is_named_by_its_arm(tmp_path):
    paths = heads(tmp_path, {4: [30.0], 8: [31.0]})
    assert study(paths).base.name == 'num_heads=4'
    assert study(paths, base='num_heads=8').base.name == 'num_heads=8'
    with pytest.raises(UserError, match='--base=num_heads=9: .* num_heads=4'):
        study(paths, base='num_heads=9')
    for measure in ('test', 'test blue', 'dev bleu'):
        with pytest.raises(UserError, match='--measure.*: test.*: bleu, chrf'):
            study(paths, measure=measure)
    other = make(tmp_path / 'run,heads=2', 30.0)
    with pytest.raises(UserError, match='--sweep=heads'):
        study([other], sweep(tmp_path))


@pytest.mark.parametrize(
    ('bleus', 'changes', 'expected'),
    [
        (
            {4: (30.0, 30.2, 30.4), 8: (40.0, 40.1, 40.5), 2: (30.1, 30.6, 29.9)},
            {},
            {'8': 'better', '4': 'base', '2': 'not significant'},
        ),
        (
            {4: (30.0, 31.0), 8: (30.0, 31.0)},
            {'measure': 'test loss'},
            {'4': 'base', '8': 'not testable: no variance between seeds'},
        ),
        ({4: [30.0], 8: [31.0]}, {}, {'8': findings.ONE_SEED, '4': 'base'}),
    ],
)
def test_verdicts_follow_the_test_against_the_base(tmp_path, bleus, changes, expected):
    found = study(heads(tmp_path, bleus), **changes)
    wanted = [(f'num_heads={name}', verdict) for name, verdict in expected.items()]
    assert verdicts(found) == wanted


def test_the_margin_of_a_sweep_also_holds_without_contrasts(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 30.1, 30.2), 8: (30.0, 30.2, 30.2)})
    of_sweep = dataclasses.replace(sweep(tmp_path), margin=2.0)
    first, *_, last = verdicts(study(paths, of_sweep))
    assert first == ('many', 'equivalent') and last == ('most', 'no finished run')


def test_translations_of_runs_with_equal_seeds_are_paired(tmp_path):
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


def test_runs_that_did_not_finish_are_named_and_excluded_from_means(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 31.0)})
    rows = [(7, 'eval', {'set': 'test', 'bleu': 1.0, 'loss': 9.0})]
    for seed, status in enumerate(('diverged', 'failed', 'stopped'), 2):
        paths.append(make(tmp_path / status, rows=rows, train__seed=seed))
        if status != 'stopped':
            fail(paths[-1], status)
    found = study(paths)
    assert list(found.arms[0].by_seeds(found.measure).values()) == [30.0, 31.0]
    for seed, line in enumerate(conditions.warnings(found), 2):
        status = ('diverged', 'failed', 'stopped')[seed - 2]
        assert f'seed {seed}: {status} at step 7' in line
        assert ('the loss is not finite' in line) == (status != 'stopped')


GIT = [{'environment': {'git': {'commit': x * 40, 'changed': x == 'b'}}} for x in 'ab']
LARGER = {'result': {'parameters': 1500}}


@pytest.mark.parametrize(
    ('first', 'second', 'words'),
    [
        ({}, {'train__steps': 40}, ['train.steps is 40, not 20']),
        ({}, {'data': 'other'}, ['data is other, not']),
        ({}, {}, []),
        (*GIT, ['commits']),
        ({}, LARGER, ['parameters', '1,000', '1,500']),
        ({}, {'result': {'evaluations': {}}}, ['b: ', 'test bleu', '--measure']),
    ],
)
def test_differences_beyond_the_question_are_warnings(tmp_path, first, second, words):
    second = {'model__num_heads': 8} | second
    found = study(make_all(tmp_path, {'a': first, 'b': second}), measure='test bleu')
    lines = conditions.warnings(found)
    assert len(lines) == bool(words)
    assert all(word in lines[0] for word in words)
    commits = {row[1] for row in conditions.facts(found).rows if row[0] == 'commit'}
    assert ('bbbbbbbbbb (modified)' in commits) == (words == ['commits'])


def test_sweep_warns_of_fields_that_its_arms_do_not_set(tmp_path):
    paths = heads(tmp_path, {4: [30.0]})
    fields = {'model__num_heads': 8, 'model__residual': 'none'}
    paths.append(make(tmp_path / 'run,heads=8,train.seed=0', 31.0, **fields))
    text = ' '.join(conditions.warnings(study(paths, sweep(tmp_path))))
    assert 'model.residual is none, not pre_norm' in text
    assert 'model.num_heads is' not in text


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


def test_costs_must_be_equal_within_each_declared_contrast(tmp_path):
    costs = {2: 1000, 4: 1000, 8: 1500, 16: 1800}
    runs = {
        f'{number}': {'result': {'parameters': cost}, 'model__num_heads': number}
        for number, cost in costs.items()
    }
    names = [f'num_heads={number}' for number in costs]
    found = study(make_all(tmp_path, runs))

    def warned(*contrasts):
        asked = dataclasses.replace(found.sweep, contrasts=contrasts)
        return conditions.warnings(found._replace(sweep=asked))

    assert len(warned()) == 1
    assert not warned((names[1], names[0]))
    unequal = (names[2], names[0])
    (line,) = warned((names[1], names[0]), unequal)
    assert '1,000 to 1,500' in line and all(name in line for name in unequal)
    (line,) = warned(unequal, (names[3], names[1]))
    assert '1,000 to 1,800' in line and 'of 2' in line


@pytest.mark.parametrize(
    ('bleus', 'is_unequal'),
    [
        ({4: (30.0, 31.0, 32.0), 8: (40.0, 41.5, 43.0)}, False),
        ({4: (0.0, 0.0, 0.0), 8: (40.0, 41.5, 43.0)}, True),
        ({4: (0.0, 0.01, 0.02), 8: (40.0, 45.0, 53.0)}, True),
        ({4: (30.0,), 8: (31.0,)}, False),
    ],
)
def test_unequal_variance_between_seeds_is_a_warning(tmp_path, bleus, is_unequal):
    lines = conditions.warnings(study(heads(tmp_path, bleus)))
    assert any('variance' in line for line in lines) == is_unequal


def test_answer_has_a_sentence_for_each_declared_contrast(tmp_path):
    pairs = (('many', 'few'), ('most', 'few'))
    asked = dataclasses.replace(sweep(tmp_path), contrasts=pairs, margin=20.0)
    paths = heads(tmp_path, {4: (30.0, 32.0), 8: (30.0, 33.0)})
    found = study(paths, asked)
    (contrast,) = findings.declared_contrasts(found)  # `most` has no run

    def answer(**changes):
        (sentence,) = findings.answer(found, [contrast._replace(**changes)])
        return sentence

    start = 'many compared with few: '
    assert answer().startswith(f'{start}equivalent (difference 0.50, 95% CI ')
    detectable = f'minimum detectable difference {contrast.detectable:.2f}'
    assert answer(equivalent=False).startswith(f'{start}not significant (')
    assert detectable in answer(equivalent=False)
    assert answer(low=None, high=None, p=None).startswith(f'{start}not testable (')


def test_declared_contrasts_replace_the_table_of_the_base(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 32.0), 8: (40.0, 41.9), 16: [40.1]})
    for path in paths:
        translate(path, REFERENCES)
    translate(paths[-1], ['Katze', 'Hund', 'Vögel'])
    asked = dataclasses.replace(sweep(tmp_path), contrasts=(('most', 'many'),))
    found = study(paths, asked)
    (contrast,) = declared = findings.declared_contrasts(found)
    from_base = findings.from_base(found)
    (row,) = findings.answer_table(found, from_base, declared).rows
    interval = (contrast.low, contrast.high)
    assert row[:4] == ('most', 'many', 1, contrast.effect) and tuple(row[4]) == interval
    tests = (contrast.detectable, contrast.p, contrast.permuted, 'not significant')
    assert row[5:9] == tests
    others = findings.exploratory(found, from_base)
    assert others.aside and [other[0] for other in others.rows] == ['many', 'most']
    over = findings.over_sentences(found, declared)
    assert over.aside and [other[0] for other in over.rows] == ['most']
    both = dataclasses.replace(asked, contrasts=(('few', 'most'), ('many', 'few')))
    assert findings.exploratory(study(paths, both), from_base) is None


def test_lowest_arm_is_best_by_an_error_rate(tmp_path):
    scores = dict(direction='en-de', sentences=3, loss=1.0, perplexity=2.7)
    scores |= dict(accuracy=0.5, ter_signature='of TER', lower_is_better=['ter'])
    runs = {
        f'{number}': {
            'result': {'evaluations': {'test': scores | {'ter': score}}},
            'outputs': REFERENCES,
            'model__num_heads': number,
            'evaluation__metrics': '[ter, chrf]',
        }
        for number, score in ((4, 50.0), (8, 40.0))
    }
    found = study(make_all(tmp_path, runs))
    assert str(found.measure) == 'test ter'
    assert [arm.name for arm in found.ranked()] == ['num_heads=8', 'num_heads=4']
    assert tuple(findings.scores(found).columns[2:4]) == ('ter', 'chrf')


def test_published_scores_have_a_t_test_over_seeds(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 32.0), 8: [32.0]})
    first, *others = findings.published(study(paths, sweep(tmp_path))).rows
    test = stats.ttest_1samp([30.0, 32.0], 25.5)
    interval = [x - 25.5 for x in test.confidence_interval(0.95)]
    assert tuple(first[:3]) == ('few', 'bleu', 25.5)
    assert first[4:] == (
        pytest.approx(5.5),
        pytest.approx(tuple(interval)),
        pytest.approx(test.pvalue),
    )
    assert [(*row[:2], row[4]) for row in others] == [
        ('few', 'parameters', pytest.approx(-64_999_000)),
        ('many', 'bleu', pytest.approx(6.2)),
    ]
    assert findings.published(study(paths)) is None


@pytest.mark.parametrize(
    ('measure', 'placed'),
    [
        ('test bleu', {'4': '3', '8': '1–2', '16': '1–2'}),
        ('test ter', {'4': '1', '8': '2–3', '16': '2–3'}),
    ],
)
def test_arms_without_a_significant_difference_share_ranks(tmp_path, measure, placed):
    bleus = {4: (30.0, 30.3, 30.1), 8: (40.0, 40.1, 40.3), 16: (40.2, 40.0, 40.4)}
    paths = []
    for number, of_seeds in bleus.items():
        for seed, score in enumerate(of_seeds):
            of_set = {'direction': 'en-de', 'sentences': 3, 'lower_is_better': ['ter']}
            of_set |= {'loss': 1.0, 'perplexity': 2.7, 'accuracy': 0.5, 'bleu': score}
            of_set |= {'ter': score, 'bleu_signature': 'b', 'ter_signature': 't'}
            fields = {'model__num_heads': number, 'train__seed': seed}
            fields['evaluation__metrics'] = '[bleu, ter]'
            result = {'evaluations': {'test': of_set}}
            path = tmp_path / f'{number},{seed}'
            paths.append(make(path, score, result=result, **fields))
    found = study(paths, measure=measure)
    expected = {f'num_heads={number}': rank for number, rank in placed.items()}
    assert findings.ranks(found) == expected
    answer = findings.answer_table(found, findings.from_base(found), [])
    for table in (answer, findings.arms(found)):
        assert {row[0]: row[1] for row in table.rows} == expected
    assert findings.ranks(study(paths[::3])) == {}
