"""Tests of metrics."""

import itertools
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pages
import pytest
import sacrebleu

from experiments import metrics, storage
from experiments.contracts import metric_findings
from experiments.errors import UserError, line
from experiments.evaluation.scores import installed_metrics
from experiments.metrics.base import Metric
from experiments.registries import METRICS
from flaxformer_lite import testing

SOURCES = ['a', 'b', 'c', 'd', 'e']
OUTPUTS = [
    'The cat is on the mat.',
    'He reads a good book in the garden',
    'Nobody has seen the dogs of my neighbour today.',
    'We would like to help you with this, if we can.',
    'the the the',
]
REFERENCES = [
    ('There is a cat on the mat.', 'The cat is on the mat.'),
    ('He is reading a good book in the garden.',),
    ("Today nobody has seen my neighbour's dogs.", 'No one saw the dogs today.'),
    ('We would like to help you, if we can.',),
    ('The the, and The.', 'the', 'the end'),
]
ONE_EACH = [references[:1] for references in REFERENCES]
PERFECT = [references[0] for references in REFERENCES]


def make(text):
    (metric,) = metrics.make(f'[{text}]').values()
    return metric


def external(code, *arguments, **fields):
    """Returns the spec of `external` with a Python program."""
    command = shlex.join([sys.executable, '-IS', '-c', code, *arguments])
    fields = {'command': command, **fields}
    return f'external({", ".join(f"{k}={v!r}" for k, v in fields.items())})'


# The share of words that a translation and a reference have in common, in percent.
OVERLAP = external(
    'import json, sys; '
    'rows = [json.loads(line).values() for line in sys.stdin]; '
    'words = [[set(text.split()) for text in row] for row in rows]; '
    '[print(100 * len(x & y) / len(x | y)) for _, x, y in words]'
)


@pytest.fixture(params=METRICS.names())
def metric(request):
    return make({'external': OVERLAP}.get(request.param, request.param))


def test_shipped_metrics_keep_the_contracts(metric):
    testing.require(metric_findings(metric), metric.name)


class _Recall(Metric):
    """The share of a reference's words that the translation has."""

    def statistics(self, outputs, references, sources):
        return [
            (len(set(output.split()) & set(known[0].split())), len(known[0].split()))
            for output, known in zip(outputs, references, strict=True)
        ]


class _NotANumber(_Recall):
    def score_of(self, total):
        return math.nan if not total[0] else super().score_of(total)


class _Short(_Recall):
    def statistics(self, *texts):
        return super().statistics(*texts)[1:]


class _WrongDirection(_Recall):
    higher_is_better = False


class _RewardsBlanks(_Recall):
    def score_of(self, total):
        return -total[0]


class _FirstSentence(_Recall):
    def score(self, *texts):
        return self.sentence_scores(*texts)[0]


class _Counting(_Recall):
    calls = itertools.count()

    def score(self, *texts):
        return super().score(*texts) + next(self.calls)


@pytest.mark.parametrize(
    ('broken', 'contract'),
    [
        (_NotANumber, 'scores are finite: .*nan'),
        (_Short, 'every sentence has an equally long row: 4 sentences give rows'),
        (_WrongDirection, 'references have the best score: .* references 100'),
        (_RewardsBlanks, 'blank translations do not score better: .* blank -?0'),
        (_FirstSentence, 'the order of sentences has no effect: '),
        (_Counting, 'the order of sentences has no effect: '),
    ],
)
def test_broken_metrics_fail_a_contract(broken, contract):
    with pytest.raises(testing.BrokenContract, match=contract):
        testing.require(metric_findings(broken()), 'it')
    testing.require(metric_findings(_Recall()), 'it')


def test_order_of_references_has_no_effect(metric):
    score = metric.score(OUTPUTS, REFERENCES, SOURCES)
    reversed_references = [known[::-1] for known in REFERENCES]
    again = metric.score(OUTPUTS, reversed_references, SOURCES)
    assert again == pytest.approx(score)


# Values of arguments other than the default, if they aren't booleans or numbers.
OTHER = {'tokenize': 'char', 'unit': 'character', 'smooth_method': 'floor'}
OTHER |= {'command': 'other', 'smooth_value': 0.5}
NEEDS = {'smooth_value': "smooth_method='floor'"}


def test_signature_depends_on_every_argument(metric):
    for name, value in metric.arguments().items():
        other = OTHER.get(name, not value if isinstance(value, bool) else None)
        if other is None:
            other = value + 1
        arguments = [NEEDS[name]] if name in NEEDS else []
        arguments.append(f'{name}={other!r}')
        changed = make(f'{metric.name}({", ".join(arguments)})')
        assert changed.signature(ONE_EACH) != metric.signature(ONE_EACH), name
    numbers = [metric.signature(x).split('|')[0] for x in (ONE_EACH, REFERENCES)]
    assert numbers == ['nrefs:1', 'nrefs:var']


TER_OPTIONS = {'normalized': True, 'no_punct': True, 'case_sensitive': True}


@pytest.mark.parametrize('references', [ONE_EACH, REFERENCES], ids=['one', 'several'])
@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('bleu', {}),
        ('bleu', {'lowercase': True}),
        ('bleu', {'tokenize': 'char'}),
        ('bleu', {'smooth_method': 'floor', 'smooth_value': 0.25}),
        ('bleu', {'smooth_method': 'add-k'}),
        ('chrf', {}),
        ('chrf', {'word_order': 2, 'beta': 3}),
        ('chrf', {'eps_smoothing': True}),
        ('ter', {}),
        ('ter', TER_OPTIONS),
    ],
)
def test_scores_match_sacrebleu(name, options, references):
    corpus_score = getattr(sacrebleu, f'corpus_{name}')
    columns = list(itertools.zip_longest(*references))
    expected = corpus_score(OUTPUTS, columns, **options).score
    metric = make(f'{name}({", ".join(f"{k}={v!r}" for k, v in options.items())})')
    # The second call shows that smoothing changes no state.
    scores = [metric.score(OUTPUTS, references, SOURCES) for _ in range(2)]
    assert scores == [expected, expected]


@pytest.mark.parametrize('name', ['bleu', 'chrf', 'ter'])
def test_sentence_scores_match_sacrebleu(name):
    sentence_score = getattr(sacrebleu, f'sentence_{name}')
    pairs = zip(OUTPUTS, REFERENCES, strict=True)
    expected = [sentence_score(*pair).score for pair in pairs]
    assert make(name).sentence_scores(OUTPUTS, REFERENCES, SOURCES) == expected


def test_missing_references_differ_from_empty_ones():
    with_blanks = list(itertools.zip_longest(*REFERENCES, fillvalue=''))
    blank_score = sacrebleu.corpus_ter(OUTPUTS, with_blanks).score
    score = make('ter').score(OUTPUTS, REFERENCES, SOURCES)
    assert score != pytest.approx(blank_score)


def test_examples_of_papers_have_the_published_scores():
    # Papineni et al. 2002, section 2.1: a modified unigram precision of 2/7.
    references = [('The cat is on the mat', 'There is a cat on the mat')]
    unigrams = make('bleu(max_ngram_order=1, lowercase=True)')
    score = unigrams.score(['the the the the the the the'], references, ['x'])
    assert score == pytest.approx(100 * 2 / 7)
    # Snover et al. 2006, section 2.1: four edits; one moves two words.
    reference = (
        'SAUDI ARABIA denied THIS WEEK information published in the AMERICAN new york '
        'times'
    )
    output = 'THIS WEEK THE SAUDIS denied information published in the new york times'
    score = make('ter').score([output], [(reference,)], ['x'])
    assert score == pytest.approx(100 * 4 / 13)


def edits(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]


@pytest.mark.parametrize(('unit', 'split'), [('word', str.split), ('character', list)])
def test_error_rate_is_edits_to_the_closest_reference_by_length(unit, split):
    draw = random.Random(0)

    def text():
        return ' '.join(draw.choices(['ab', 'Ba', 'abc', 'c'], k=draw.randint(1, 9)))

    outputs = [text() for _ in range(50)]
    references = [tuple(text() for _ in range(i % 3 + 1)) for i in range(50)]
    for lowercase in (False, True):
        total = length = 0
        for output, known in zip(outputs, references, strict=True):
            if lowercase:
                output, known = output.lower(), tuple(map(str.lower, known))
            pairs = [(edits(split(output), split(x)), -len(split(x))) for x in known]
            total += min(pairs)[0]
            length -= min(pairs)[1]
        metric = make(f'error_rate(unit={unit!r}, lowercase={lowercase})')
        score = metric.score(outputs, references, outputs)
        assert score == pytest.approx(100 * total / length)


@pytest.mark.parametrize(
    ('text', 'share'), [('exact_match', 1 / 3), ('exact_match(lowercase=True)', 2 / 3)]
)
def test_exact_match_ignores_repeated_spaces_and_may_match_any_reference(text, share):
    outputs = ['a  b ', 'A b', 'b']
    references = [('x', 'a b'), ('a b',), ('a b',)]
    score = make(text).score(outputs, references, outputs)
    assert score == pytest.approx(100 * share)


def test_external_scores_the_best_of_several_references():
    texts = (['a b', 'c'], [('x', 'a b'), ('c d',)], ['s', 't'])
    metric = make(OVERLAP)
    assert metric.sentence_scores(*texts) == [100.0, 50.0]
    assert metric.score(*texts) == 75.0


def test_external_sends_each_text_once_without_a_shell(tmp_path):
    log = tmp_path / 'a log'
    code = (
        'import sys; rows = list(sys.stdin); [print(1) for _ in rows]; '
        'open(sys.argv[1], "a").writelines(rows)'
    )
    (metric,) = installed_metrics(metrics.make(external(code, str(log))), 'de')
    sample = len(log.read_text().splitlines())
    texts = (['é\n', 'b', 'é\n'], [('x',)] * 3, ['$HOME'] * 3)
    assert metric.score(*texts) == metric.score(*texts) == 1.0
    rows = [json.loads(row) for row in log.read_text().splitlines()[sample:]]
    assert sample == 1
    assert rows == [
        {'source': '$HOME', 'hypothesis': text, 'reference': 'x'}
        for text in ('é\n', 'b')
    ]


@pytest.mark.parametrize(
    ('text', 'problem'),
    [
        ("external(command='no-such-program -x')", "cannot run 'no-such-program'"),
        (external('1 / 0'), 'exit status 1: ZeroDivisionError: division by zero'),
        (external('import os; os._exit(3)'), 'exit status 3: it printed no message'),
        (external('print(1); print(2)'), 'printed 2 lines for 1 translations'),
        (external('print("good")'), "printed 'good' instead of a number"),
        (external('print("nan")'), "printed 'nan' instead of a number"),
    ],
    ids=['missing', 'raises', 'exits', 'two lines', 'word', 'nan'],
)
def test_failing_command_is_rejected_before_training(text, problem):
    start = 'evaluation.metrics: external: the command .*: '
    with pytest.raises(UserError, match=f'{start}{problem}') as error:
        installed_metrics(metrics.make(text), 'de')
    assert '\n' not in line(error.value)


def has_ended(pid):
    """Returns whether a process ends within ten seconds."""
    for _ in range(200):
        try:
            state = Path(f'/proc/{pid}/stat').read_text().rpartition(') ')[2]
        except FileNotFoundError:
            return True
        if state.startswith('Z'):
            return True
        time.sleep(0.05)
    return False


# Starts a process that keeps the output open, and writes both ids to a file.
HANGS = (
    'import os, subprocess, sys, time; child = subprocess.Popen(["sleep", "99"]); '
    'file = open(sys.argv[1] + "~", "w"); '
    'file.write(f"{os.getpid()} {child.pid}"); file.close(); '
    'os.rename(file.name, sys.argv[1]); time.sleep(99)'
)


def test_hanging_command_is_killed_with_its_child_processes(tmp_path):
    pids = tmp_path / 'pids'
    metric = make(external(HANGS, str(pids), timeout=1))
    with pytest.raises(UserError, match='no scores within 1 s. Set a longer timeout'):
        metric.check_installed()
    assert all(map(has_ended, pids.read_text().split()))


@pytest.mark.skipif(not hasattr(os, 'killpg'), reason='needs process groups')
def test_command_ends_if_its_process_is_killed(tmp_path):
    pids = tmp_path / 'pids'
    program = (
        'from experiments import metrics\n'
        f'(metric,) = metrics.make({external(HANGS, str(pids))!r}).values()\n'
        'metric.check_installed()'
    )
    with subprocess.Popen([sys.executable, '-c', program]) as process:
        while not pids.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    assert all(map(has_ended, pids.read_text().split()))


# Stubs of the programs that scripts of the page call; scores are lengths.
STUBS = {
    'comet.py': """
from types import SimpleNamespace as Model
def download_model(name):
    return name
def load_from_checkpoint(path):
    def predict(data, batch_size, gpus):
        assert all(list(row) == ['src', 'mt', 'ref'] for row in data)
        return Model(scores=[len(row['mt']) / 100 for row in data])
    return Model(predict=predict)
""",
    'metricx24/predict.py': """
import json, sys
flags = dict(x.removeprefix('--').split('=') for x in sys.argv[1:])
print('Loading', flags['model_name_or_path'])
with open(flags['output_file'], 'w') as file:
    for line in open(flags['input_file']):
        length = len(json.loads(line)['hypothesis'])
        file.write(json.dumps({'prediction': length}) + '\\n')
""",
}


@pytest.mark.parametrize(
    ('script', 'scores'), [(0, [100, 0]), (1, [1, 2]), (2, [-1, -2])]
)
def test_scripts_of_the_metrics_page_score(tmp_path, monkeypatch, script, scores):
    page = pages.text('docs/how_to/metrics.md')
    code = re.findall('```text\n(.*?)```', page, re.DOTALL)[script]
    for name, text in {**STUBS, 'script.py': code}.items():
        storage.write(tmp_path / name, text)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    command = shlex.join([sys.executable, str(tmp_path / 'script.py'), 'model'])
    metric = make(f'external(command={command!r})')
    texts = (['a', 'bc'], [('a',), ('x',)], ['s', 't'])
    assert metric.sentence_scores(*texts) == pytest.approx(scores)


@pytest.mark.parametrize(
    ('language', 'tokenizer'),
    [('de', '13a'), ('zh', 'zh'), ('zho_Hans', 'zh'), ('ZH-tw', 'zh'), ('jam', '13a')],
)
def test_bleu_uses_the_tokenizer_of_the_language(language, tokenizer):
    by_spec = metrics.make('[bleu, bleu(tokenize="char")]', language)
    by_language, by_name = [x.signature(ONE_EACH) for x in by_spec.values()]
    assert f'tok:{tokenizer}|' in by_language and 'tok:char|' in by_name


@pytest.mark.parametrize(
    ('language', 'package', 'message'),
    [
        ('ja', 'MeCab', r'pip install sacrebleu\[ja\]'),
        ('kor_Hang', 'mecab_ko', r'sacrebleu\[ko\].*tokenize="char"'),
    ],
)
def test_missing_tokenizer_package_is_named(language, package, message, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=message) as error:
        installed_metrics(metrics.make('bleu'), language)
    assert '\n' not in str(error.value)


def test_metrics_are_named_by_their_kind_or_else_by_their_spec():
    by_name = metrics.make('[bleu, ter, bleu(tokenize="char", lowercase=True)]')
    names = ['bleu', 'ter', "bleu(tokenize='char',lowercase=True)"]
    assert [metric.name for metric in by_name.values()] == list(by_name) == names
    assert metrics.deciding(metrics.make('[ter, bleu]'), '').name == 'ter'
    assert metrics.deciding(metrics.make('[ter, bleu]'), 'bleu').name == 'bleu'


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', "evaluation.metrics: ''"),
        ('[bleu, blue]', "evaluation.metrics: 'blue' .*'bleu'"),
        ('[]', 'names no component'),
        ('[bleu, bleu]', 'there is a metric bleu already'),
        ('bleu(tokenize="14a")', 'tokenize must be one of language, 13a'),
        ('bleu(smooth_value=1)', 'smooth_value=1 .* smooth_method floor'),
        ('bleu(smooth_value="x")', 'smooth_value must be of type float or None'),
        ('bleu(name="x")', "unknown argument 'name'"),
        ('error_rate(unit="piece")', 'unit must be one of word, character'),
        ('external', 'evaluation.metrics: external needs command'),
        ('external(command="")', 'command is empty'),
        ('external(command="a \'b")', 'No closing quotation'),
        ('external(command="a", timeout=0)', 'timeout must be above 0'),
        ('optax.Bleu', 'optax has no class Bleu'),
        ('[chrf, ter]', "evaluation.best: 'bleu' .* chrf, ter"),
    ],
)
def test_invalid_metrics_are_rejected(text, message):
    with pytest.raises(UserError, match=message) as error:
        metrics.deciding(metrics.make(text), 'bleu')
    assert '\n' not in str(error.value)


USER_METRIC = """
import dataclasses
from experiments.metrics.base import Metric

@dataclasses.dataclass(frozen=True, kw_only=True)
class MyMetric(Metric):
    weight: int = 1

    def statistics(self, outputs, references, sources):
        return [(self.weight * len(x), len(y)) for x, y in zip(outputs, sources)]
"""


def test_metric_may_be_a_user_class(tmp_path, monkeypatch):
    (tmp_path / 'my_metrics.py').write_text(USER_METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    by_name = metrics.make('[my_metrics.MyMetric(weight=2), bleu]')
    assert list(by_name) == ['MyMetric', 'bleu']
    assert by_name['MyMetric'].score(['ab', ''], [('x',)] * 2, ['abc', 'a']) == 100.0
    assert by_name['MyMetric'].signature([('x',)]) == 'nrefs:1|weight:2'


@pytest.mark.parametrize(
    ('arguments', 'name'),
    [
        (('Ein Hund.', [('Ein Hund.',)], ['A dog.']), 'outputs'),
        ((['Ein Hund.'], ['Ein Hund.'], ['A dog.']), 'references of a sentence'),
        ((['Ein Hund.'], [('Ein Hund.',)], 'A dog.'), 'sources'),
    ],
)
def test_single_text_instead_of_a_list_is_rejected(arguments, name):
    metric = make('chrf')
    for score in (metric.score, metric.sentence_scores):
        with pytest.raises(UserError, match=f'^{name}: a single text was given'):
            score(*arguments)
