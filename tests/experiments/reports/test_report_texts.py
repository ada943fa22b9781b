"""Tests of translations side by side, and of scores by length and phenomenon."""

import sys
from pathlib import Path

import pytest
import sacrebleu
from made_runs import REFERENCES, make, translate

from experiments import metrics
from experiments.errors import UserError
from experiments.reports import arms, page, texts
from experiments.runs.reading import read_run as read
from parallel_grammar import english, german, phenomena
from parallel_grammar.source import Grammar

BLEU = metrics.deciding(metrics.make('bleu'), '')


def study(*paths):
    return arms.study([read(path) for path in paths], None)


def test_arms_of_other_sentences_are_left_out(tmp_path):
    one = make(tmp_path / 'a', 30.0, outputs=REFERENCES)
    seed = make(tmp_path / 'b', 30.0, outputs=['x', *REFERENCES[1:]], train__seed=1)
    other = make(tmp_path / 'c', 30.0, model__num_heads=8)
    translate(other, ['y'] * 3, sources=['other'] * 3)
    found = texts.find_translations(study(one, seed, other))
    assert {arm: len(seeds) for arm, seeds in found.outputs.items()} == {
        'num_heads=4': 2
    }


def test_metric_next_to_a_run_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    here = {'evaluation__metrics': '[bleu, near.mine.X]'}
    run = read(make(Path('near'), 30.0, outputs=REFERENCES, **here))
    Path('near/mine.py').write_text('raise AssertionError')
    with pytest.raises(UserError, match='near.mine'):
        arms.find_metric(run, arms.Measure('test', 'bleu'))
    assert 'near.mine' not in sys.modules
    measure = arms.Measure('test', 'bleu')
    other = read(make(Path('b'), 30.0, model__attention='near.mine.X'))
    assert arms.find_metric(other, measure).name == 'bleu'


def test_a_report_runs_the_command_of_a_metric_only_with_trust(tmp_path):
    metric = 'external(command="no-such-program")'
    run = read(make(tmp_path / 'a', 30.0, evaluation__metrics=f'[bleu, {metric}]'))
    measure = arms.Measure('test', 'bleu')
    with pytest.raises(UserError, match='no-such-program'):
        arms.find_metric(run, measure)
    assert arms.find_metric(run, measure, trust_code=True).name == 'bleu'


def test_sentences_translated_differently_are_listed(tmp_path):
    one = make(tmp_path / 'a', 30.0, outputs=REFERENCES)
    outputs = [REFERENCES[0], 'ganz falsch', REFERENCES[2] + ' x']
    other = make(tmp_path / 'b', 30.0, outputs=outputs, model__num_heads=8)
    differing = texts.differing_sentences(texts.find_translations(study(one, other)))
    assert [s.reference for s in differing] == [REFERENCES[1], REFERENCES[2]]
    assert differing[0].translations['num_heads=4'] == REFERENCES[1]
    alone = texts.differing_sentences(texts.find_translations(study(one)))
    assert [sentence.reference for sentence in alone] == REFERENCES


def test_equal_translations_are_not_called_different(tmp_path):
    one = make(tmp_path / 'a', 30.0, outputs=REFERENCES)
    equal = make(tmp_path / 'b', 30.0, outputs=REFERENCES, model__num_heads=8)
    other = make(tmp_path / 'c', 30.0, outputs=['x', 'y', 'z'], model__num_heads=2)
    words = []
    for paths in ([one, other], [one, equal], [one]):
        (section,) = page.translations(study(*paths))
        words.append(['differently' in section.text[0], 'alike' in section.text[0]])
    assert words == [[True, False], [False, True], [False, False]]


def made(references, outputs):
    sources = ['s'] * len(references)
    known = [(text,) for text in references]
    return texts.Translated('test', '', sources, known, {'arm': [outputs]}, BLEU)


def test_scores_by_length_are_those_of_the_sentences_alone():
    short = [f'drei Wörter {i}' for i in range(8)]
    long = [f'ein Satz von sieben Wörtern ist {i}' for i in range(9)]
    spoiled = [text.replace('Wörter', 'Worte') for text in [*short, *long]]
    table = texts.by_group(made([*short, *long], spoiled))
    assert [row[:2] for row in table.rows] == [('1–5 words', 8), ('6–10 words', 9)]
    for row, outputs, references in (
        (table.rows[0], spoiled[:8], short),
        (table.rows[1], spoiled[8:], long),
    ):
        score = sacrebleu.corpus_bleu(outputs, [references]).score
        assert row[2].mean == pytest.approx(score)
    assert table.title == 'bleu by length and phenomenon: test'


def test_equal_lengths_give_no_table():
    assert texts.by_group(made(['a b'] * 20, ['a b'] * 20)) is None


@pytest.fixture(scope='module')
def grammar():
    return Grammar()


@pytest.fixture(scope='module')
def sets(grammar):
    return grammar.evaluation()


@pytest.fixture(scope='module')
def groups(grammar, sets):
    """Returns the pairs of the test set with each phenomenon."""
    found = grammar.groups('test')
    return {name: [sets['test'][i] for i in rows] for name, rows in found.items()}


def test_each_phenomenon_is_in_some_sentences_and_not_in_all(groups):
    assert groups.keys() == phenomena.PHENOMENA.keys()
    for name, pairs in groups.items():
        assert 5 <= len(pairs) <= 300, name


def test_a_table_has_lengths_and_phenomena(sets):
    sources, references = map(list, zip(*sets['test'], strict=True))
    found = made(references, references)._replace(data='grammar', sources=sources)
    rows = texts.by_group(found).rows
    assert {'6–10 words', *phenomena.PHENOMENA} <= {row[0] for row in rows}
    assert all(row[2].mean == pytest.approx(100) for row in rows)


def test_questions_are_all_that_end_in_a_question_mark(groups, sets):
    asked = [pair for pair in sets['test'] if pair[1].endswith('?')]
    assert groups['question'] == asked


def test_only_the_grammars_own_sentences_have_phenomena(sets):
    sources, references = map(list, zip(*sets['val'], strict=True))
    own = made(references, references)._replace(name='val', sources=sources)
    own = own._replace(data='grammar')
    others = [
        own._replace(sources=sources[::-1]),
        own._replace(data='grammar(seed=1)'),
        own._replace(data='no_such_source'),
        own._replace(data='my_package.my_module.MySource'),
    ]
    counts = [len(texts.by_group(found).rows) for found in (own, *others)]
    assert counts[0] > max(counts[1:])


def test_trees_belong_to_their_pairs(grammar, sets):
    for name, trees in grammar.trees().items():
        read_from = [(english.sentence(tree), german.sentence(tree)) for tree in trees]
        assert read_from == sets[name]
