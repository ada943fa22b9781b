"""Tests of `experiments.translate` and of the same functions in Python."""

import os
import sys
import threading

import pytest
import small_runs
from terminals import Terminal

import experiments
from experiments import storage, translate
from experiments.checkpoints import checkpoints
from experiments.errors import UserError
from experiments.evaluation.sets import to_lines
from experiments.evaluation.translator import Hypothesis, Translator
from experiments.runtime import compilation
from parallel_grammar.source import Grammar

pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture
def expected(trained_run):
    """Returns the translations that the run saved for its set `news`."""
    path = trained_run / 'translations' / 'news.step=12,mean_of=2.txt'
    return path.read_text('utf-8').splitlines()


@pytest.fixture
def copies_lines(monkeypatch):
    """Replaces translations by the source lines, which takes no time."""

    def copy(self, variables, texts, number, on_progress):
        on_progress(number + len(texts))
        return ([Hypothesis(text, 0.0)] for text in texts)

    monkeypatch.setattr(Translator, '__call__', copy)


def test_translations_keep_the_order_and_blank_lines(
    trained_run, short_text, expected, command_on_input
):
    first, second, third = (short_text / 'news.en').read_text().splitlines()
    lines = f'{first}\n\n{second}\n  \n{third}\n'
    flags = (f'--workdir={trained_run}', '--n_best=2', '--scores')
    out = command_on_input(translate, lines, *flags)
    scores, texts = zip(*(line.split('\t') for line in out), strict=True)
    assert [texts[0], texts[4], texts[8]] == expected
    assert texts[2:4] == texts[6:8] == ('', '')
    for i in (0, 4, 8):
        assert float(scores[i]) >= float(scores[i + 1])


def test_lines_with_fewer_translations_cause_a_warning(
    trained_run, copies_lines, monkeypatch, command_on_input
):
    warnings = []
    monkeypatch.setattr(translate, 'warn', warnings.append)
    flags = (f'--workdir={trained_run}', '--n_best=2', '--decode=beam(beams=2)')
    assert command_on_input(translate, 'a\n\nb\n', *flags) == ['a', *[''] * 3, 'b', '']
    (warning,) = warnings
    assert warning.startswith('--n_best=2: 2 lines have fewer distinct translations.')


@pytest.mark.slow
def test_samples_are_distinct_and_sorted_by_score(
    trained_run, short_text, command_on_input
):
    lines = (short_text / 'news.en').read_text()
    flags = ('--decode=sample', '--seed=3', '--scores', '--n_best=3')
    out = command_on_input(translate, lines, f'--workdir={trained_run}', *flags)
    for i in range(0, 9, 3):
        found = out[i : i + 3]
        scores = [float(line.split('\t')[0]) for line in found]
        assert len(set(found)) == 3 and scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ('decode', 'message'),
    [
        ('greedy', '^--n_best=3 must be from 1 to 1'),
        ('beam(beams=2)', '^--n_best=3 must be from 1 to 2'),
        ('mbr(utility="chrf")', "^evaluation.decode: MBR.utility.*'chrf'"),
    ],
)
def test_more_translations_than_hypotheses_are_rejected(
    trained_run, command_on_input, decode, message
):
    flags = (f'--workdir={trained_run}', f'--decode={decode}', '--n_best=3')
    with pytest.raises(UserError, match=message):
        command_on_input(translate, '', *flags)


@pytest.mark.slow
def test_ensemble_of_equal_runs_translates_as_one_of_them(
    trained_run, short_text, expected, command_on_input
):
    lines = (short_text / 'news.en').read_text()
    flags = [f'--workdir={trained_run}'] * 2
    assert command_on_input(translate, lines, *flags) == expected


def test_ensemble_of_runs_with_different_tokenizers_is_rejected(
    trained_run, run_copy, tmp_path, command_on_input
):
    other = small_runs.train_tokenizer(Grammar(pairs=100), 300, tmp_path)
    other.save(run_copy / 'tokenizer.model')
    # As in an earlier version, the checkpoint lacks the tokenizer's digest.
    file = run_copy / 'checkpoints/12/metadata/metadata'
    content = storage.read_json(file)
    del content['metadata']['tokenizer'], content['sha256']
    storage.write_json(file, content | {'sha256': checkpoints._content_digest(content)})
    flags = (f'--workdir={trained_run}', f'--workdir={run_copy}')
    with pytest.raises(UserError, match='its tokenizer differs from that of'):
        command_on_input(translate, '', *flags)


def test_each_line_is_answered_at_once_and_before_an_error(
    trained_run, copies_lines, monkeypatch, command
):
    read_input, write_input = os.pipe()
    read_answer, write_answer = os.pipe()
    answers = []

    def converse():
        with os.fdopen(write_input, 'wb') as given, os.fdopen(read_answer) as answered:
            # A command that waits for more lines ends at the end of its input.
            timer = threading.Timer(60, given.close)
            timer.start()
            for line in (b'a\n', b'b\n'):
                given.write(line)
                given.flush()
                answers.append(answered.readline())
            timer.cancel()
            given.write(b'caf\xe9\n')

    client = threading.Thread(target=converse)
    with open(read_input) as stdin, open(write_answer, 'w') as stdout:
        client.start()
        with monkeypatch.context() as patch:
            patch.setattr(sys, 'stdin', stdin)
            patch.setattr(sys, 'stdout', stdout)
            with pytest.raises(UserError, match='standard input, line 3, is not UTF-8'):
                command(translate, f'--workdir={trained_run}')
    client.join()
    assert answers == ['a\n', 'b\n']


def test_progress_appears_on_a_terminal_only(
    trained_run, copies_lines, monkeypatch, command_on_input, capsys
):
    flag = f'--workdir={trained_run}'
    expected = command_on_input(translate, 'a\nb\n', flag)
    assert capsys.readouterr().err == ''
    with monkeypatch.context() as patch:
        patch.setattr(sys, 'stderr', Terminal())
        assert command_on_input(translate, 'a\nb\n', flag) == expected
        assert '2 lines' in sys.stderr.getvalue()


@pytest.mark.skipif(os.name != 'posix', reason='needs pseudo-terminals')
def test_ctrl_d_hint_appears_on_a_terminal(
    trained_run, copies_lines, monkeypatch, command
):
    ours, theirs = os.openpty()
    os.write(ours, b'A dog.\n\x04')
    with open(theirs) as stdin:
        monkeypatch.setattr(sys, 'stdin', stdin)
        out, err = command(translate, f'--workdir={trained_run}')
    os.close(ours)
    assert out == 'A dog.\n'
    assert err == 'reading from standard input; press Ctrl-D to end\n'


@pytest.mark.ci
def test_opened_run_translates_as_the_command_and_compiles_once(
    trained_run, expected, monkeypatch
):
    compiled = []
    compile_program = compilation.compile_program

    def count(*arguments, **options):
        compiled.append(arguments)
        return compile_program(*arguments, **options)

    monkeypatch.setattr(compilation, 'compile_program', count)
    opened = experiments.open_run(trained_run)
    sources, references = to_lines(opened.evaluation_sets['news'])
    pair = (sources[0], references[0][0])
    for _ in range(2):
        assert opened.translate(sources) == expected
        assert len(opened.score([pair])) == 1
    assert len(compiled) == 2
    one_text = 'a single text was given'
    with pytest.raises(UserError, match=f'^lines: {one_text}'):
        opened.translate(sources[0])
    for call in (opened.score, opened.batch):
        with pytest.raises(UserError, match=f'^pairs: {one_text}'):
            call(('ab', 'cd'))
