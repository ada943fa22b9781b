"""Sets and their scores: what they are called, what is scored, what is told."""

from types import SimpleNamespace

import pytest

from experiments import storage
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation import sets
from experiments.evaluation.evaluator import Evaluator
from experiments.evaluation.scores import table
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


def test_a_mean_of_checkpoints_has_files_of_its_own(evaluator, tmp_path):
    evaluator(1.0, 'val', PAIRS, 6)
    results = evaluator.every(3.0, {'val': PAIRS, 'test': PAIRS[:1]}, [5, 6])
    assert [result['loss'] for result in results.values()] == [3.0, 3.0]
    assert [len(texts) for texts in evaluator.translated] == [2, 2, 1]
    folder = tmp_path / 'translations'
    assert storage.read_json(folder / 'val.step=6,mean_of=2.json')['loss'] == 3.0
    assert storage.read_json(folder / 'val.step=6.json')['loss'] == 1.0
    assert {'val.source.txt', 'val.reference.txt'} < {x.name for x in folder.iterdir()}


def test_the_set_and_its_sentences_are_told(evaluator):
    evaluator(1.0, 'val', PAIRS, 6)
    assert evaluator.told == [('val', 2, 2)]


def test_a_table_shows_scores_with_two_decimals(evaluator):
    result = evaluator(1.0, 'val', PAIRS, 6) | {'perplexity': 1.0, 'accuracy': 1.0}
    row = table({'val': result | {'bleu': 8.685e-61, 'chrf': 12.345}})
    assert row.split('\n')[2].split()[-3:] == ['0.00', '12.35', 'en-de']


def test_sets_are_chosen_by_their_names():
    available = {'val': [('a', 'b')], 'none': []}
    assert set(sets.chosen(available, 'val, val', '--set')) == {'val'}
    for names, words in (
        ('none', "--set: the set 'none' holds no sentences"),
        ('no', "--set: there is no set 'no'; there is val, none"),
    ):
        with pytest.raises(UserError, match=words):
            sets.chosen(available, names, '--set')
