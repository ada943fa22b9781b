"""Sets and their scores: what they are called, what is scored, what is told."""

from types import SimpleNamespace

import pytest

from experiments import storage
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation import sets
from experiments.evaluation.evaluator import Evaluator
from experiments.evaluation.scores import table
from experiments.evaluation.translation_files import outputs_path
from experiments.evaluation.translator import Hypothesis

PAIRS = [('a b', 'x y'), ('c', 'z')]


@pytest.fixture
def evaluator(tmp_path, monkeypatch):
    """One whose model is not asked; `translated` counts what it is to translate."""
    told = []
    evaluator = Evaluator(
        None,
        SimpleNamespace(forced_first=None),
        ExperimentConfig(),
        tmp_path,
        'en-de',
        on_progress=lambda *x: told.append(x),
    )

    def translate(variables, texts, on_progress):
        evaluator.translated.append(list(texts))
        on_progress(len(texts))
        return [[Hypothesis(f'{text} {variables}', 0.0)] for text in texts]

    evaluator.told, evaluator.translated = told, []
    monkeypatch.setattr(evaluator, '_translate', translate)
    monkeypatch.setattr(evaluator, 'loss', lambda variables, pairs: {'loss': variables})
    return evaluator


def test_the_same_step_is_not_scored_twice(evaluator, tmp_path):
    first = evaluator(1.0, 'val', PAIRS, 6)
    results = evaluator.every(1.0, {'val': PAIRS, 'test': PAIRS[:1]}, [6])
    assert results['val'] == first
    assert [len(texts) for texts in evaluator.translated] == [2, 1]
    files_there = {path.name for path in (tmp_path / 'translations').glob('*.txt')}
    texts = {
        f'{name}.{kind}.txt' for name in results for kind in ('source', 'reference')
    }
    assert files_there == {'val.step=6.txt', 'test.step=6.txt'} | texts


def test_other_parameters_are_scored(evaluator, tmp_path):
    """Those of another step, and the mean of several of which the last was scored
    alone."""
    evaluator(1.0, 'val', PAIRS, 6)
    assert evaluator.every(2.0, {'val': PAIRS}, [5])['val']['loss'] == 2.0
    assert evaluator.every(3.0, {'val': PAIRS}, [5, 6])['val']['loss'] == 3.0
    stored = storage.read_json(tmp_path / 'translations' / 'val.step=6,mean_of=2.json')
    assert stored['loss'] == 3.0
    # Nor is a mean taken for another mean, or for a step.
    assert evaluator.every(4.0, {'val': PAIRS}, [4, 6])['val']['loss'] == 4.0
    assert evaluator.every(1.0, {'val': PAIRS}, [6])['val']['loss'] == 1.0


def test_the_set_and_its_sentences_are_told(evaluator):
    evaluator(1.0, 'val', PAIRS, 6)
    assert evaluator.told == [('val', 2, 2)]


def test_a_table_shows_scores_with_two_decimals(evaluator):
    result = evaluator(1.0, 'val', PAIRS, 6) | {'perplexity': 1.0, 'accuracy': 1.0}
    row = table({'val': result | {'bleu': 8.685e-61, 'chrf': 12.345}})
    assert row.split('\n')[2].split()[-3:] == ['0.00', '12.35', 'en-de']


GOOD = [
    *('val', 'test_2016_flickr', 'news.2014', 'a b', 'Größe', '-x', 'console'),
    'x' * sets.LONGEST,
]


@pytest.mark.parametrize(
    ('name', 'wrong'),
    [
        ('', 'it is empty'),
        ('../out', "it holds '.'"),
        ('a\\b', r"it holds '\\\\'"),
        ('a\nb', r"it holds '\\n'"),
        ('a:b', "it holds ':'"),
        ('.hidden', "it holds '.'"),
        ('\udcff', 'it holds'),
        ('ä' * 76, 'longer than 150 bytes'),
    ],
)
def test_a_name_that_is_no_file_s_is_refused(name, wrong):
    with pytest.raises(UserError, match=wrong):
        sets.check_names(['val', name])


@pytest.mark.parametrize('two', [('val', 'VAL'), ('ä', 'a\u0308'), ('Ä', 'ä')])
def test_names_that_are_not_kept_apart_are_refused(two):
    with pytest.raises(UserError, match='would have the same files'):
        sets.check_names(two)


def test_files_of_other_names_can_be_written(tmp_path):
    sets.check_names(GOOD)
    for name in GOOD:
        storage.write(outputs_path(tmp_path, name, 10**9, 1000), 'a\n')
    assert len(list((tmp_path / 'translations').iterdir())) == len(GOOD)


def test_sets_are_chosen_by_their_names():
    available = {'val': [('a', 'b')], 'a/b': [('a', 'b')], 'none': []}
    assert set(sets.chosen(available, 'val, val', '--set')) == {'val'}
    for names, words in (
        ('a/b', "'a/b' cannot be the name of a file"),
        ('none', "--set: the set 'none' holds no sentences"),
        ('no', "--set: there is no set 'no'; there is val, a/b, none"),
    ):
        with pytest.raises(UserError, match=words):
            sets.chosen(available, names, '--set')
