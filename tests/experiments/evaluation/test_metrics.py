"""Tests of metrics."""

import itertools
import json
import math
import os
import random
import re
import shlex
import statistics
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
# Not all have as many.
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


def external(code, **arguments):
    """Returns the spec of `external` with a Python program."""
    command = shlex.join([sys.executable, '-IS', '-c', code])
    given = {'command': command, **arguments}
    return f'external({", ".join(f"{k}={v!r}" for k, v in given.items())})'


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


def test_ours_keep_the_contracts(metric):
    testing.require(metric_findings(metric), metric.name)


class _Careless(Metric):
    """The recall of a reference's words, or a score with a mistake."""

    def statistics(self, outputs, references, sources):
        return [
            (len(set(output.split()) & set(known[0].split())), len(known[0].split()))
            for output, known in zip(outputs, references, strict=True)
        ]


class _NotANumber(_Careless):
    def score_of(self, total):
        return math.nan if not total[0] else super().score_of(total)


class _Short(_Careless):
    def statistics(self, *texts):
        return super().statistics(*texts)[1:]


class _Falling(_Careless):
    higher_is_better = False


class _Long(_Careless):
    def score_of(self, total):
        return -total[0]


class _OfTheFirst(_Careless):
    def score(self, *texts):
        return self.sentence_scores(*texts)[0]


class _Counting(_Careless):
    calls = itertools.count()

    def score(self, *texts):
        return super().score(*texts) + next(self.calls)


@pytest.mark.parametrize(
    ('careless', 'contract'),
    [
        (_NotANumber, 'scores are finite: .*nan'),
        (_Short, 'every sentence has an equally long row: 4 sentences give rows'),
        (
            _Falling,
            'references have the best score: .* references 100',
        ),
        (
            _Long,
            'blank translations do not score better: .* blank -?0',
        ),
        (
            _OfTheFirst,
            'the order of sentences has no effect: ',
        ),
        (_Counting, 'the order of sentences has no effect: '),
    ],
)
def test_a_careless_metric_is_found(careless, contract):
    with pytest.raises(testing.BrokenContract, match=contract):
        testing.require(metric_findings(careless()), 'it')
    testing.require(metric_findings(_Careless()), 'it')


def test_the_order_of_references_does_not_matter(metric):
    score = metric.score(OUTPUTS, REFERENCES, SOURCES)
    turned = [known[::-1] for known in REFERENCES]
    assert metric.score(OUTPUTS, turned, SOURCES) == pytest.approx(score)


def test_blank_translations_are_the_worst(metric):
    one_blank = metric.score(['', *PERFECT[1:]], ONE_EACH, SOURCES)
    blank = metric.score([''] * len(SOURCES), ONE_EACH, SOURCES)
    assert math.isfinite(blank) and len(SOURCES) == len(
        metric.sentence_scores([''] * len(SOURCES), ONE_EACH, SOURCES)
    )
    assert metric.rank(blank) < metric.rank(one_blank)
    worst = 0.0 if metric.higher_is_better else 100.0
    if metric.name == 'edit_distance':  # all words of the references, in the mean
        worst = statistics.mean(len(known.split()) for (known,) in ONE_EACH)
    assert blank == pytest.approx(worst)


# Other values of arguments than the default, where these are not clear.
OTHER = {'tokenize': 'char', 'unit': 'character', 'smooth_method': 'floor'}
OTHER |= {'command': 'other', 'smooth_value': 0.5}
NEEDS = {'smooth_value': "smooth_method='floor'"}


def test_the_signature_tells_every_argument(metric):
    for name, value in metric.arguments().items():
        other = OTHER.get(name, not value if isinstance(value, bool) else None)
        if other is None:
            other = value + 1
        beside = [NEEDS[name]] if name in NEEDS else []
        changed = make(f'{metric.name}({", ".join([*beside, f"{name}={other!r}"])})')
        assert changed.signature(ONE_EACH) != metric.signature(ONE_EACH), name
    numbers = [metric.signature(x).split('|')[0] for x in (ONE_EACH, REFERENCES)]
    assert numbers == ['nrefs:1', 'nrefs:var']


def columns(references):
    return list(itertools.zip_longest(*references))


@pytest.mark.parametrize('references', [ONE_EACH, REFERENCES], ids=['one', 'several'])
@pytest.mark.parametrize(
    ('text', 'corpus', 'options'),
    [
        ('bleu', 'bleu', {}),
        ('bleu(lowercase=True)', 'bleu', {'lowercase': True}),
        ('bleu(tokenize="char")', 'bleu', {'tokenize': 'char'}),
        (
            'bleu(smooth_method="floor", smooth_value=0.25)',
            'bleu',
            {'smooth_method': 'floor', 'smooth_value': 0.25},
        ),
        ('bleu(smooth_method="add-k")', 'bleu', {'smooth_method': 'add-k'}),
        ('chrf', 'chrf', {}),
        ('chrf(word_order=2, beta=3)', 'chrf', {'word_order': 2, 'beta': 3}),
        ('chrf(eps_smoothing=True)', 'chrf', {'eps_smoothing': True}),
        ('ter', 'ter', {}),
        (
            'ter(normalized=True, no_punct=True, case_sensitive=True)',
            'ter',
            {'normalized': True, 'no_punct': True, 'case_sensitive': True},
        ),
    ],
)  # fmt: skip
def test_scores_are_those_of_sacrebleu(text, corpus, options, references):
    by_sacrebleu = getattr(sacrebleu, f'corpus_{corpus}')
    expected = by_sacrebleu(OUTPUTS, columns(references), **options).score
    metric = make(text)
    assert metric.score(OUTPUTS, references, SOURCES) == expected
    # Again: smoothing leaves nothing behind.
    assert metric.score(OUTPUTS, references, SOURCES) == expected


def test_a_missing_reference_is_no_empty_one_as_to_the_command_of_sacrebleu():
    blank = list(itertools.zip_longest(*REFERENCES, fillvalue=''))
    assert '' in blank[-1]
    by_command = sacrebleu.corpus_ter(OUTPUTS, blank).score
    metric = make('ter')
    assert metric.score(OUTPUTS, REFERENCES, SOURCES) != pytest.approx(by_command)


@pytest.mark.parametrize('name', ['bleu', 'chrf', 'ter'])
def test_scores_of_sentences_are_those_of_sacrebleu(name):
    one = getattr(sacrebleu, f'sentence_{name}')
    expected = [one(*pair).score for pair in zip(OUTPUTS, REFERENCES, strict=True)]
    assert make(name).sentence_scores(OUTPUTS, REFERENCES, SOURCES) == expected


def test_papers_examples_have_the_papers_scores():
    # Papineni et al. 2002, section 2.1: a modified unigram precision of 2/7.
    known = [('The cat is on the mat', 'There is a cat on the mat')]
    unigrams = make('bleu(max_ngram_order=1, lowercase=True)')
    score = unigrams.score(['the the the the the the the'], known, ['x'])
    assert score == pytest.approx(100 * 2 / 7)
    # Snover et al. 2006, section 2.1: four edits, of which one moves two words.
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
def test_error_rates_are_edits_by_length(unit, split):
    draw = random.Random(0)

    def text():
        return ' '.join(draw.choices(['ab', 'ba', 'abc', 'c'], k=draw.randint(1, 9)))

    outputs = [text() for _ in range(50)]
    references = [tuple(text() for _ in range(i % 3 + 1)) for i in range(50)]
    total = length = 0
    for output, known in zip(outputs, references, strict=True):
        pairs = [(edits(split(output), split(x)), -len(split(x))) for x in known]
        total += min(pairs)[0]
        length -= min(pairs)[1]
    metric = make(f'error_rate(unit={unit!r})')
    score = metric.score(outputs, references, outputs)
    assert score == pytest.approx(100 * total / length)


def test_error_rates_of_what_is_known():
    one = (['Kitten  bark'], [('sitting bark',)], ['x'])
    assert make('error_rate').score(*one) == 50.0
    characters = make("error_rate(unit='character', lowercase=True)")
    assert characters.score(*one) == pytest.approx(100 * 3 / 12)


def test_an_exact_match_is_any_reference_but_for_spaces():
    outputs = ['a  b ', 'A b', 'b']
    references = [('x', 'a b'), ('a b',), ('a b',)]
    for text, share in (('exact_match', 1 / 3), ('exact_match(lowercase=True)', 2 / 3)):
        score = make(text).score(outputs, references, outputs)
        assert score == pytest.approx(100 * share)


def test_of_several_references_external_takes_the_one_that_is_best():
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
    command = shlex.join([sys.executable, '-IS', '-c', code, str(log)])
    found = metrics.make(f'external(command={command!r})')
    (metric,) = installed_metrics(found, 'de')
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
        ("external(command='no-such-program -x')", "cannot run 'no-such-program': .*"),
        (external('1 / 0'), 'exit status 1: ZeroDivisionError: division by zero'),
        (external('import os; os._exit(3)'), 'exit status 3: it printed no message'),
        (external('pass'), 'printed 0 lines for 1 translations'),
        (external('print(1); print(2)'), 'printed 2 lines for 1 translations'),
        (external('print("good")'), "printed 'good' instead of a number"),
        (external('print("nan")'), "printed 'nan' instead of a number"),
    ],
)
def test_a_failing_command_is_one_line_before_training(text, problem):
    start = 'evaluation.metrics: external: the command .*: '
    with pytest.raises(UserError, match=f'{start}{problem}.* [A-Z].*[.]$') as error:
        installed_metrics(metrics.make(text), 'de')
    assert '\n' not in line(error.value)


def test_a_command_that_hangs_is_killed_with_its_own_processes(tmp_path):
    pid = tmp_path / 'pid'
    # Its child keeps the output open.
    code = (
        'import subprocess, time; child = subprocess.Popen(["sleep", "99"]); '
        f'open({str(pid)!r}, "w").write(str(child.pid)); time.sleep(99)'
    )
    metric = make(external(code, timeout=1))
    with pytest.raises(UserError, match='no scores within 1 s. Set a longer timeout'):
        metric.check_installed()
    assert ends(int(pid.read_text()))


@pytest.mark.skipif(not hasattr(os, 'killpg'), reason='has no process groups')
def test_a_command_ends_with_a_process_that_is_killed(tmp_path):
    pids = tmp_path / 'pids'
    code = (
        'import os, subprocess, time; child = subprocess.Popen(["sleep", "99"]); '
        f'file = open({str(tmp_path / "draft")!r}, "w"); '
        'file.write(f"{os.getpid()} {child.pid}"); file.close(); '
        f'os.rename(file.name, {str(pids)!r}); time.sleep(99)'
    )
    program = (
        'from experiments import metrics\n'
        f'(metric,) = metrics.make({external(code)!r}).values()\n'
        'metric.check_installed()'
    )
    with subprocess.Popen([sys.executable, '-c', program]) as process:
        while not pids.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    for pid in map(int, pids.read_text().split()):
        assert ends(pid)


# What two scripts of the page call, where a score is the length of a translation.
FAKES = {
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
given = dict(x.removeprefix('--').split('=') for x in sys.argv[1:])
print('Loading', given['model_name_or_path'])
with open(given['output_file'], 'w') as file:
    for line in open(given['input_file']):
        length = len(json.loads(line)['hypothesis'])
        file.write(json.dumps({'prediction': length}) + '\\n')
""",
}


@pytest.mark.parametrize(
    ('script', 'scores'), [(0, [100, 0]), (1, [1, 2]), (2, [-1, -2])]
)
def test_the_scripts_of_the_page_score(tmp_path, monkeypatch, script, scores):
    page = pages.text('docs/how_to/metrics.md')
    code = re.findall('```text\n(.*?)```', page, re.DOTALL)[script]
    for name, text in {**FAKES, 'script.py': code}.items():
        storage.write(tmp_path / name, text)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    command = shlex.join([sys.executable, str(tmp_path / 'script.py'), 'model'])
    metric = make(f'external(command={command!r})')
    texts = (['a', 'bc'], [('a',), ('x',)], ['s', 't'])
    assert metric.sentence_scores(*texts) == pytest.approx(scores)


def ends(pid):
    """Returns whether a process ends within seconds."""
    for _ in range(200):
        if is_dead(pid):
            return True
        time.sleep(0.05)
    return False


def is_dead(pid):
    try:
        state = Path(f'/proc/{pid}/stat').read_text().rpartition(') ')[2]
    except FileNotFoundError:
        return True
    return state.startswith('Z')


@pytest.mark.parametrize(
    ('language', 'tokenizer'),
    [('de', '13a'), ('zh', 'zh'), ('zho_Hans', 'zh'), ('ZH-tw', 'zh'), ('jam', '13a')],
)
def test_the_language_says_how_bleu_parts_text(language, tokenizer):
    found = metrics.make('[bleu, bleu(tokenize="char")]', language)
    by_language, by_name = [x.signature(ONE_EACH) for x in found.values()]
    assert f'tok:{tokenizer}|' in by_language and 'tok:char|' in by_name


@pytest.mark.parametrize(
    ('text', 'language', 'package', 'message'),
    [
        ('bleu', 'ja', 'MeCab', r'pip install sacrebleu\[ja\]\. Or choose another'),
        ('bleu', 'kor_Hang', 'mecab_ko', r'sacrebleu\[ko\]\. .*tokenize="char"'),
    ],
)
def test_what_is_not_installed_is_one_line(
    text, language, package, message, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=message) as error:
        installed_metrics(metrics.make(text), language)
    assert '\n' not in str(error.value)


def test_metrics_are_called_by_their_kind_or_else_by_their_specs():
    found = metrics.make('[bleu, ter, bleu(tokenize="char", lowercase=True)]')
    names = ['bleu', 'ter', "bleu(tokenize='char',lowercase=True)"]
    assert [metric.name for metric in found.values()] == list(found) == names
    assert metrics.deciding(metrics.make('[ter, bleu]'), '').name == 'ter'
    assert metrics.deciding(metrics.make('[ter, bleu]'), 'bleu').name == 'bleu'


@pytest.mark.parametrize(
    ('text', 'best', 'message'),
    [
        ('', '', "evaluation.metrics: '' names no component"),
        ('[bleu, blue]', '', "evaluation.metrics: 'blue' is not one of .*'bleu'"),
        ('[]', '', 'names no component. Give one'),
        ('[bleu, bleu]', '', 'there is a metric bleu already'),
        ('bleu(tokenize="14a")', '', 'tokenize must be one of language, 13a'),
        (
            'bleu(smooth_value=1)',
            '',
            'smooth_value=1 applies only to smooth_method floor',
        ),
        ('bleu(smooth_value="x")', '', 'smooth_value must be of type float or None'),
        ('bleu(name="x")', '', "unknown argument 'name'"),
        ('error_rate(unit="piece")', '', 'unit must be one of word, character'),
        ('external', '', 'evaluation.metrics: external needs command'),
        ('external(command="")', '', 'command is empty. Pass a program'),
        ('external(command="a \'b")', '', 'No closing quotation'),
        ('external(command="a", timeout=0)', '', 'timeout must be above 0'),
        ('optax.Bleu', '', 'optax has no class Bleu'),
        (
            '[chrf, ter]',
            'bleu',
            "evaluation.best: 'bleu' is not in .* Choose from chrf, ter.",
        ),
    ],
)
def test_what_is_no_metric_is_one_line(text, best, message):
    with pytest.raises(UserError, match=message) as error:
        metrics.deciding(metrics.make(text), best)
    assert '\n' not in str(error.value)


MINE = """
import dataclasses
from experiments.metrics.base import Metric

@dataclasses.dataclass(frozen=True, kw_only=True)
class MyMetric(Metric):
    weight: int = 1

    def statistics(self, outputs, references, sources):
        return [(self.weight * len(x), len(y)) for x, y in zip(outputs, sources)]
"""


def test_a_metric_may_be_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / 'my_metrics.py').write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    found = metrics.make('[my_metrics.MyMetric(weight=2), bleu]')
    assert list(found) == ['MyMetric', 'bleu']
    assert found['MyMetric'].score(['ab', ''], [('x',)] * 2, ['abc', 'a']) == 100.0
    assert found['MyMetric'].signature([('x',)]) == 'nrefs:1|weight:2'


def test_one_text_instead_of_a_list_is_refused():
    (metric,) = metrics.make('chrf').values()
    for ask in (metric.score, metric.sentence_scores):
        for arguments, name in (
            (('Ein Hund.', [('Ein Hund.',)], ['A dog.']), 'outputs'),
            ((['Ein Hund.'], ['Ein Hund.'], ['A dog.']), 'references of a sentence'),
            ((['Ein Hund.'], [('Ein Hund.',)], 'A dog.'), 'sources'),
        ):
            with pytest.raises(UserError, match=f'^{name}: a single text was given'):
                ask(*arguments)
