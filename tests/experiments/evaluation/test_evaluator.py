"""Tests of evaluation sets."""

from types import SimpleNamespace

import pytest
import sacrebleu

from experiments import metrics, storage
from experiments.config import load
from experiments.config.decoding import decoding_options
from experiments.config.schema import EvaluationConfig
from experiments.data.sources.base import Source
from experiments.errors import UserError
from experiments.evaluation import scores, sets
from experiments.evaluation.evaluator import Evaluator
from experiments.evaluation.scores import table
from experiments.evaluation.translator import Hypothesis
from experiments.runs import reading

PAIRS = [('a b', ('x y',)), ('c', ('z',))]


class Positionless:
    """A stub of a model whose positions have no limit."""

    max_length = None


class EnglishChinese(Source):
    source, target = 'en', 'zh-CN'

    def documents(self, name):
        return [[2, 1], [2]] if name == 'documents' else ()


@pytest.fixture
def evaluator(tmp_path, monkeypatch):
    """Returns an evaluator that never calls its model and counts texts to translate."""
    told = []
    evaluator = Evaluator(
        Positionless(),
        SimpleNamespace(forced_first=None),
        decoding_options(EvaluationConfig()),
        8192,
        scores.installed_metrics(metrics.make('[bleu, ter]'), 'zh-CN'),
        tmp_path,
        EnglishChinese(),
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


def test_scores_survive_translations_that_cannot_be_saved(evaluator, tmp_path, capsys):
    (tmp_path / 'translations').write_text('')
    assert evaluator(1.0, 'val', PAIRS, 6).scores['loss'] == 1.0
    assert 'cannot save translations' in capsys.readouterr().err


def test_what_training_has_scored_is_not_scored_again(evaluator):
    found = evaluator(1.0, 'val', PAIRS, 6)
    results = evaluator.every(1.0, {'test': PAIRS[:1], 'val': PAIRS}, [6])
    assert [len(texts) for texts in evaluator.translated] == [2, 1]
    assert results['val'] == found.scores


def test_the_set_and_its_sentences_are_told(evaluator):
    evaluator(1.0, 'val', PAIRS, 6)
    assert evaluator.told == [(2, 2, 'sentences of val')]


def test_documents_are_scored_by_sentence_and_as_a_whole(
    evaluator, tmp_path, monkeypatch
):
    texts = '今天 天气 很好', '我们 去 公园', '好 的', '他 在 家', '她 不 在 家'
    pairs = [(f's{i}', (text,)) for i, text in enumerate(texts)]
    of_model = {
        's0 <sep> s1': f'{texts[0]} <sep> {texts[1]} <sep> 吗',
        's2': '好',
        's3 <sep> s4': f'{texts[3]} {texts[4]}',
    }

    def translate(variables, lines, on_progress):
        return [[Hypothesis(of_model[line], 0.0)] for line in lines]

    monkeypatch.setattr(evaluator, '_translate', translate)
    found = evaluator(1.0, 'documents', pairs, 6)
    aligned = [texts[0], f'{texts[1]} 吗', '好', f'{texts[3]} {texts[4]}', '']
    assert found.outputs == aligned
    file = tmp_path / 'translations' / 'documents.step=6.txt'
    assert file.read_text('utf-8') == ''.join(f'{line}\n' for line in aligned)
    options = dict(tokenize='zh', use_effective_order=False)
    by_sentence = sacrebleu.corpus_bleu(aligned, [list(texts)], **options)
    outputs = ['今天 天气 很好 我们 去 公园 吗 好', '他 在 家 她 不 在 家']
    whole = [' '.join(texts[:3]), ' '.join(texts[3:])]
    by_document = sacrebleu.corpus_bleu(outputs, [whole], **options)
    assert found.scores['bleu'] == pytest.approx(by_sentence.score)
    assert found.scores['document_bleu'] == pytest.approx(by_document.score)
    assert by_document.score > by_sentence.score
    assert 'document_bleu' in table(
        {'documents': found.scores | dict.fromkeys(('perplexity', 'accuracy'), 1.0)}
    )
    assert 'document_ter' not in found.scores


def test_a_table_shows_scores_with_two_decimals(evaluator):
    result = evaluator(1.0, 'val', PAIRS, 6).scores
    result |= {'perplexity': 1.0, 'accuracy': 1.0}
    row = table({'val': result | {'bleu': 8.685e-61, 'ter': 12.345}})
    assert row.split('\n')[2].split()[-3:] == ['0.00', '12.35', 'en-zh-CN']
    assert result['lower_is_better'] == ['ter']


def test_a_table_shows_each_signature_with_its_sets(evaluator):
    result = evaluator(1.0, 'val', PAIRS, 6).scores
    result |= {'perplexity': 1.0, 'accuracy': 1.0}
    other = result | {'bleu_signature': 'tok:13a'}
    *_, bleu, of_other, ter = table({'a': result, 'b': other, 'c': result}).split('\n')
    assert bleu == f'bleu (a, c): {result["bleu_signature"]}' and 'tok:zh' in bleu
    assert of_other == 'bleu (b): tok:13a'
    assert ter == f'ter: {result["ter_signature"]}'


def test_sets_are_chosen_by_their_names():
    available = {'val': [('a', 'b')], 'none': []}
    assert sets.select(available, 'val, val', '--set') == {'val': [('a', ('b',))]}
    commas = {'val': [('a', 'b')], 'news,2020': [('c', 'd')], 'news': [('e', 'f')]}
    assert list(sets.select(commas, 'news, news,2020', '--set')) == [
        'news',
        'news,2020',
    ]
    assert list(sets.select(commas, 'news,2020,val', '--set')) == ['news,2020', 'val']
    for names, words in (
        ('none', "--set: the set 'none' has no sentences"),
        ('no', "--set: unknown set 'no'. Choose one of val, none"),
    ):
        with pytest.raises(UserError, match=words):
            sets.select(available, names, '--set')


@pytest.mark.parametrize('blank', [(' ', 'y'), ('x', ''), ('x', ('y', '')), ('x', ())])
def test_a_set_with_a_blank_side_is_refused(blank):
    words = (
        "set 'val' has a blank source or reference in 2 of 4 lines, first in line 3."
    )
    with pytest.raises(UserError, match=words):
        sets.select({'val': [*PAIRS, blank, blank]}, '', 'data')


CHINESE = [
    ('我们明天去北京看长城。', '我们明天要去北京看长城。'),
    ('这本书是他去年写的。', '这本书是去年他写的。'),
    ('孩子们在公园里踢足球。', '孩子们正在公园里踢足球。'),
]


def test_chinese_is_scored_by_its_own_tokenizer(evaluator):
    outputs, references = map(list, zip(*CHINESE, strict=True))
    evaluator._translate = lambda *_, **__: [[Hypothesis(x, 0.0)] for x in outputs]
    pairs = [(text, (text,)) for text in references]
    result = evaluator(1.0, 'val', pairs, 6).scores
    expected = sacrebleu.corpus_bleu(outputs, [references], tokenize='zh')
    assert result['bleu'] == expected.score > 50
    assert 'tok:zh' in result['bleu_signature']


def test_several_references_are_files_that_are_read_again(evaluator, tmp_path):
    pairs = [('a b', ('x y', 'y\nx')), ('c', ('z',))]
    result = evaluator(1.0, 'val', pairs, 6).scores
    assert 'nrefs:var' in result['bleu_signature']
    folder = tmp_path / 'translations'
    assert (folder / 'val.reference2.txt').read_text() == 'y x\n\n'
    storage.write_json(tmp_path / 'config.json', load.to_store({}))
    run = reading.read_run(tmp_path)
    run.result['averaged_steps'] = [6]
    found = reading.read_translations(run, 'val')
    assert found.references == [('x y', 'y x'), ('z',)]
    assert found.outputs == ['a b 1.0', 'c 1.0']
    assert found.sources == ['a b', 'c']


@pytest.mark.parametrize('name', ['../outside', 'a/b', 'a\\b'])
def test_a_set_whose_file_would_be_elsewhere_is_refused(name):
    pairs = [('Tom sleeps.', 'Tom schläft.')]
    with pytest.raises(UserError, match='evaluation.sets: .* is not a file name'):
        sets.select({name: pairs}, '', 'evaluation.sets')
