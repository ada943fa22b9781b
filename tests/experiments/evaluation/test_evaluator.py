"""Tests of evaluation sets, their scores and their files."""

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
FOR_TABLE = {'perplexity': 1.0, 'accuracy': 1.0}


class Unlimited:
    """A stub of a model whose positions have no limit."""

    max_length = None


class EnglishChinese(Source):
    source, target = 'en', 'zh-CN'

    def documents(self, name):
        return [[2, 1], [2]] if name == 'documents' else ()


@pytest.fixture
def evaluator(tmp_path, monkeypatch):
    """Returns an evaluator that never calls its model and counts texts to translate."""
    progress = []
    evaluator = Evaluator(
        Unlimited(),
        SimpleNamespace(forced_first=None),
        decoding_options(EvaluationConfig()),
        8192,
        scores.installed_metrics(metrics.make('[bleu, ter]'), 'zh-CN'),
        tmp_path,
        EnglishChinese(),
        on_progress=lambda *x: progress.append(x),
    )

    def translate(variables, texts, on_progress):
        evaluator.translated.append(list(texts))
        on_progress(len(texts))
        return [[Hypothesis(f'{text} {variables}', 0.0)] for text in texts]

    evaluator.progress, evaluator.translated = progress, []
    monkeypatch.setattr(evaluator, '_translate', translate)
    monkeypatch.setattr(evaluator, 'loss', lambda variables, pairs: {'loss': variables})
    return evaluator


def test_averaged_checkpoints_have_their_own_files(evaluator, tmp_path):
    evaluator(1.0, 'val', PAIRS, 6)
    assert evaluator.progress == [(2, 2, 'sentences of val')]
    results = evaluator.every(3.0, {'val': PAIRS, 'test': PAIRS[:1]}, [5, 6])
    assert [result['loss'] for result in results.values()] == [3.0, 3.0]
    assert [len(texts) for texts in evaluator.translated] == [2, 2, 1]
    folder = tmp_path / 'translations'
    assert storage.read_json(folder / 'val.step=6,mean_of=2.json')['loss'] == 3.0
    assert storage.read_json(folder / 'val.step=6.json')['loss'] == 1.0
    assert {'val.source.txt', 'val.reference.txt'} < {x.name for x in folder.iterdir()}


def test_sets_scored_in_training_are_not_scored_again(evaluator):
    expected = evaluator(1.0, 'val', PAIRS, 6).scores
    results = evaluator.every(1.0, {'test': PAIRS[:1], 'val': PAIRS}, [6])
    assert [len(texts) for texts in evaluator.translated] == [2, 1]
    assert results['val'] == expected


def test_scores_survive_translations_that_cannot_be_saved(evaluator, tmp_path, capsys):
    (tmp_path / 'translations').write_text('')
    assert evaluator(1.0, 'val', PAIRS, 6).scores['loss'] == 1.0
    assert 'cannot save translations' in capsys.readouterr().err


def test_documents_are_scored_by_sentence_and_as_a_whole(
    evaluator, tmp_path, monkeypatch
):
    texts = '今天 天气 很好', '我们 去 公园', '好 的', '他 在 家', '她 不 在 家'
    pairs = [(f's{i}', (text,)) for i, text in enumerate(texts)]
    translations = {
        's0 <sep> s1': f'{texts[0]} <sep> {texts[1]} <sep> 吗',
        's2': '好',
        's3 <sep> s4': f'{texts[3]} {texts[4]}',
    }

    def translate(variables, lines, on_progress):
        return [[Hypothesis(translations[line], 0.0)] for line in lines]

    monkeypatch.setattr(evaluator, '_translate', translate)
    result = evaluator(1.0, 'documents', pairs, 6)
    aligned = [texts[0], f'{texts[1]} 吗', '好', f'{texts[3]} {texts[4]}', '']
    assert result.outputs == aligned
    file = tmp_path / 'translations' / 'documents.step=6.txt'
    assert file.read_text('utf-8') == ''.join(f'{line}\n' for line in aligned)
    options = dict(tokenize='zh', use_effective_order=False)
    by_sentence = sacrebleu.corpus_bleu(aligned, [list(texts)], **options)
    outputs = ['今天 天气 很好 我们 去 公园 吗 好', '他 在 家 她 不 在 家']
    documents = [' '.join(texts[:3]), ' '.join(texts[3:])]
    by_document = sacrebleu.corpus_bleu(outputs, [documents], **options)
    assert result.scores['bleu'] == pytest.approx(by_sentence.score)
    assert result.scores['document_bleu'] == pytest.approx(by_document.score)
    assert by_document.score > by_sentence.score
    assert 'document_bleu' in table({'documents': result.scores | FOR_TABLE})
    assert 'document_ter' not in result.scores


def test_table_has_scores_with_two_decimals_and_each_signature_with_its_sets(evaluator):
    result = evaluator(1.0, 'val', PAIRS, 6).scores | FOR_TABLE
    assert result['lower_is_better'] == ['ter']
    first = result | {'bleu': 8.685e-61, 'ter': 12.345}
    other = result | {'bleu_signature': 'tok:13a'}
    rows = table({'a': first, 'b': other, 'c': result}).split('\n')
    assert rows[2].split()[-3:] == ['0.00', '12.35', 'en-zh-CN']
    assert rows[-3:] == [
        f'bleu (a, c): {result["bleu_signature"]}',
        'bleu (b): tok:13a',
        f'ter: {result["ter_signature"]}',
    ]


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


def test_several_references_are_written_and_read_again(evaluator, tmp_path):
    pairs = [('a b', ('x y', 'y\nx')), ('c', ('z',))]
    result = evaluator(1.0, 'val', pairs, 6).scores
    assert 'nrefs:var' in result['bleu_signature']
    folder = tmp_path / 'translations'
    assert (folder / 'val.reference2.txt').read_text() == 'y x\n\n'
    storage.write_json(tmp_path / 'config.json', load.to_store({}))
    run = reading.read_run(tmp_path)
    run.result['averaged_steps'] = [6]
    translations = reading.read_translations(run, 'val')
    assert translations.references == [('x y', 'y x'), ('z',)]
    assert translations.outputs == ['a b 1.0', 'c 1.0']
    assert translations.sources == ['a b', 'c']


@pytest.mark.parametrize(
    ('names', 'expected'),
    [
        ('val, val', ['val']),
        ('news, news,2020', ['news', 'news,2020']),
        ('news,2020,val', ['news,2020', 'val']),
    ],
)
def test_sets_are_selected_by_name(names, expected):
    available = dict.fromkeys(['val', 'news,2020', 'news'], [('a', 'b')])
    assert sets.select(available, names, '--set') == dict.fromkeys(
        expected, [('a', ('b',))]
    )


@pytest.mark.parametrize(
    ('name', 'pairs', 'selected', 'message'),
    [
        ('val', [('a', 'b')], 'no', "--set: unknown set 'no'. Choose one of val"),
        ('val', [], 'val', "--set: the set 'val' has no sentences"),
        ('../outside', [('a', 'b')], '', '--set: .* is not a file name'),
        ('a\\b', [('a', 'b')], '', '--set: .* is not a file name'),
        *(
            ('val', [*PAIRS, blank, blank], '', "'val' has .* 2 of 4 .* line 3")
            for blank in ((' ', 'y'), ('x', ''), ('x', ('y', '')), ('x', ()))
        ),
    ],
)
def test_invalid_sets_are_rejected(name, pairs, selected, message):
    with pytest.raises(UserError, match=message):
        sets.select({name: pairs}, selected, '--set')
