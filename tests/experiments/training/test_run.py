"""End-to-end tests: the real config, shrunk, in separate processes."""

import csv
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import made_runs
import numpy as np
import pytest
import small_runs
from terminals import Terminal

import experiments
from experiments import (
    describe,
    evaluate,
    metrics,
    report,
    run,
    score,
    storage,
    translate,
)
from experiments.checkpoints import checkpoints
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line import console
from experiments.command_line import flags as command_flags
from experiments.config import load
from experiments.costs.ledger import ledger
from experiments.data.sources.base import Source
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.scores import score_translations
from experiments.evaluation.sets import to_lines
from experiments.evaluation.translator import Hypothesis, Translator
from experiments.runs import directory, metrics_log, reading, trained_run
from flaxformer_explain import demo
from parallel_grammar.source import Grammar

ROOT = Path(__file__).parents[3]
SMALL = small_runs.SHORT
pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    return small_runs.write_text(tmp_path_factory.mktemp('text'), val=4, news=3)


def arguments(text, workdir, **changes):
    fields = SMALL | {'data': small_runs.source(text)}
    overrides = small_runs.flags(fields, **changes)
    return ['--config=configs/wmt_small.py', f'--workdir={workdir}', *overrides]


def start(text, workdir, environment=None, **changes):
    command = [
        sys.executable,
        '-m',
        'experiments.run',
        *arguments(text, workdir, **changes),
    ]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out


def result(workdir):
    return json.loads((workdir / 'result.json').read_text())


def figures(workdir):
    """Returns the metrics without clocks, which differ between starts."""
    clocks = ('time', 'tokens_per_second', 'seconds')
    return [
        {k: v for k, v in row.items() if k not in clocks}
        for row in metrics_log.read_rows(workdir)
    ]


@pytest.fixture(scope='module')
def whole(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp('runs') / 'whole'
    return workdir, finish(start(text, workdir))


@pytest.fixture(scope='module')
def translations(whole):
    """Returns the run's own translations of its set `news`."""
    path = whole[0] / 'translations' / 'news.step=12,mean_of=2.txt'
    return path.read_text('utf-8').splitlines()


def test_a_run_leaves_what_it_is_asked_for(whole):
    workdir, out = whole
    names = {path.name for path in workdir.iterdir()}
    assert names >= {
        *('config.json', 'environment.json', 'metrics.jsonl', 'tokenizer.model'),
        *('checkpoints', 'translations', 'tensorboard', 'result.json'),
    }
    end = result(workdir)
    assert (end['status'], end['step']) == ('finished', 12)
    assert set(end['evaluations']) == {'val', 'news'}
    for name, scores in end['evaluations'].items():
        file = workdir / 'translations' / f'{name}.step=12,mean_of=2.txt'
        lines = file.read_text().split('\n')[:-1]
        assert len(lines) == scores['sentences']
        assert scores['direction'] == 'en-de'
        assert 'tok:13a' in scores['bleu_signature']
        np.testing.assert_allclose(scores['perplexity'], np.exp(scores['loss']))
    for words in (
        'training pairs ',
        'left out: ',
        'parameters',
        'step 12/12',
        'reference',
        'finished',
    ):
        assert words in out
    book = ledger(load.from_dict(directory.read_config(workdir)))
    assert end['flops_per_token'] == book['flops_per_token']['total']
    assert end['peak_memory_bytes'] > 10**8
    rows = figures(workdir)
    assert [r['step'] for r in rows if r['kind'] == 'train'] == [2, 4, 6, 8, 10, 12]
    assert [r['step'] for r in rows if r['kind'] == 'eval'] == [6, 12]
    losses = [r['loss'] for r in rows if r['kind'] == 'train']
    assert losses[-1] < losses[0]
    tokens = [r['tokens'] for r in rows if r['kind'] == 'train']
    assert tokens == sorted(set(tokens))
    in_all = end['tokens_per_second'] * end['train_seconds']
    last = [r for r in rows if r['step'] == 12 and r['kind'] != 'final']
    assert [r['tokens'] for r in last] == [round(in_all)] * 2


def test_scores_are_what_sacrebleus_command_says(whole, text, tmp_path):
    workdir, _ = whole
    folder = workdir / 'translations'
    for language, kind in (('en', 'source'), ('de', 'reference')):
        saved = (folder / f'news.{kind}.txt').read_text(encoding='utf-8')
        assert saved == (text / f'news.{language}').read_text(encoding='utf-8')
    scores = result(workdir)['evaluations']['news']
    compare_with_sacrebleu(folder, folder / 'news.step=12,mean_of=2.txt', scores)
    # The run is too short for a BLEU above 0.
    references = (folder / 'news.reference.txt').read_text('utf-8').splitlines()
    outputs = [' '.join(line.split()[:-1]) for line in references]
    (tmp_path / 'cut.txt').write_text('\n'.join(outputs) + '\n', encoding='utf-8')
    scored_by = metrics.make('[bleu, chrf]').values()
    texts = [(text,) for text in references]
    scores = score_translations(scored_by, outputs, texts, outputs)
    assert 0 < scores['bleu'] < 100
    compare_with_sacrebleu(folder, tmp_path / 'cut.txt', scores)


def compare_with_sacrebleu(folder, outputs, scores):
    command = [
        *(sys.executable, '-m', 'sacrebleu', folder / 'news.reference.txt'),
        *('-i', outputs, '-m', 'bleu', 'chrf', '--format', 'json', '-w', '12'),
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    bleu, chrf = json.loads(out)
    assert round(scores['bleu'], 12) == bleu['score']
    assert round(scores['chrf'], 12) == chrf['score']
    assert bleu['signature'] == scores['bleu_signature']


def test_the_final_scores_are_the_last_metrics(whole):
    workdir, _ = whole
    rows = [r for r in figures(workdir) if r['kind'] == 'final']
    expected = [
        {'step': 12, 'kind': 'final', 'set': name, **scores}
        for name, scores in result(workdir)['evaluations'].items()
    ]
    assert figures(workdir)[-2:] == rows
    assert sorted(rows, key=lambda r: r['set']) == sorted(
        expected, key=lambda r: r['set']
    )
    (events,) = (workdir / 'tensorboard').iterdir()
    for name in ('val', 'news'):
        assert f'final/{name}/bleu'.encode() in events.read_bytes()


def test_a_line_end_within_a_sentence_becomes_a_space():
    pairs = [('a\nb', ('c\r\nd', 'i')), ('e\u2028f', ('g\x85h',))]
    assert to_lines(pairs) == (['a b', 'e f'], [('c d', 'i'), ('g h',)])


def test_the_same_command_again_shows_the_result(whole, text, monkeypatch, capsys):
    workdir, _ = whole
    before = (workdir / 'result.json').stat().st_mtime_ns
    command(monkeypatch, run, *arguments(text, workdir))
    out = capsys.readouterr().out
    assert 'finished: step 12' in out and 'step 2/12' not in out
    assert (workdir / 'result.json').stat().st_mtime_ns == before


def killed_after(text, workdir, step, number, **settings):
    process = start(text, workdir, **settings)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(row['step'] >= step for row in metrics_log.read_rows(workdir)):
            process.send_signal(number)
            break
        time.sleep(0.01)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


@pytest.mark.slow
def test_a_run_stopped_again_and_again_ends_the_same_bit_for_bit(whole, text, tmp_path):
    workdir, _ = whole
    path = tmp_path / 'run'
    # What a killed process has printed is read as well.
    settings = dict(environment=os.environ | {'PYTHONUNBUFFERED': '1'})
    code, out = killed_after(text, path, 2, signal.SIGKILL, **settings)
    assert code == -signal.SIGKILL, out
    code, out = killed_after(text, path, 6, signal.SIGTERM, **settings)
    assert code == -signal.SIGTERM, out
    assert Checkpoints(path / 'checkpoints').steps()[-1] >= 6
    code, out = killed_after(text, path, 10, signal.SIGKILL, **settings)
    assert code == -signal.SIGKILL and 'resuming at step' in out
    finish(start(text, path))
    end, expected = result(path), result(workdir)
    assert end['parameters_sha256'] == expected['parameters_sha256']
    # The checkpoint of the stop is none of those that are averaged.
    assert end['averaged_steps'] == expected['averaged_steps']
    assert end['evaluations'] == expected['evaluations']
    assert figures(path) == figures(workdir)


# Has one function of the runner keep its thread in C, where no signal interrupts it.
STUCK = """
import hashlib, importlib, os, sys
from experiments import run
from experiments.command_line import flags, stopping
stopping.watch()
module, owner, name = sys.argv.pop(1).split(':')
owner = getattr(importlib.import_module(module), owner)
def stuck(*args, **kwargs):
    os.write(1, b'stuck\\n')
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)
setattr(owner, name, stuck)
flags.main(run.main)
"""


def stopped_in(where, number, text, workdir):
    """Interrupts a run that hangs in a function; returns status, output and seconds."""
    command = [sys.executable, '-c', STUCK, where, *arguments(text, workdir)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if 'stuck' in line:
                break
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    return process.returncode, ''.join(lines) + out


@pytest.mark.parametrize(
    ('where', 'is_begun'),
    [
        ('experiments.training.setup:sources:load', False),
        ('experiments.training.setup:tokenizers:train', False),
        ('experiments.training.programs:TrainingPrograms:step', True),
    ],
)
def test_a_run_stops_before_it_trains(where, is_begun, text, tmp_path):
    code, out = stopped_in(where, signal.SIGTERM, text, tmp_path / 'run')
    assert code == -signal.SIGTERM, out
    assert is_begun or not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_run_stops_while_it_evaluates_and_scores_and_nothing_is_lost(
    whole, text, tmp_path
):
    workdir, _ = whole
    path = tmp_path / 'run'
    evaluating = 'experiments.evaluation.evaluator:Evaluator:loss'
    code, out = stopped_in(evaluating, signal.SIGTERM, text, path)
    assert code == -signal.SIGTERM, out
    assert [row['kind'] for row in metrics_log.read_rows(path)] == [
        'train',
        'train',
        'train',
    ]
    scoring = 'experiments.runs.trained_run:Checkpoints:average'
    code, out = stopped_in(scoring, signal.SIGINT, text, path)
    assert code == -signal.SIGINT, out
    assert 'resuming at step 6' in out
    # The score that came later is the checkpoint's all the same.
    assert Checkpoints(path / 'checkpoints').best_steps(2) == Checkpoints(
        workdir / 'checkpoints'
    ).best_steps(2)
    # And this one is read by somebody who has soon seen enough.
    process = start(text, path)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert result(path)['parameters_sha256'] == result(workdir)['parameters_sha256']
    assert result(path)['evaluations'] == result(workdir)['evaluations']
    assert figures(path) == figures(workdir)


def command(monkeypatch, module, *argv):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, 'argv', ['command', *map(str, argv)])
    module.main()


def test_a_dry_run_tells_what_would_run_and_writes_nothing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    flags = ['--config=wmt_small', '--dry_run', '--config.model.num_layers=1']
    flags += ['--config.train.steps=10']
    monkeypatch.setattr(sys, 'argv', ['run', *flags])
    run.main()
    out = capsys.readouterr().out
    config = command_flags.settings(
        'wmt_small', {'model.num_layers': 1, 'train.steps': 10}
    ).config
    costs = ledger(config)
    first, second, third = out.splitlines()[:3]
    assert first.split() == [
        'run',
        'runs/wmt_small,model.num_layers=1,train.steps=10',
        'begins',
    ]
    assert (second.split(), third.split()) == (['data', 'grammar'], ['steps', '10'])
    assert describe.text(costs) in out
    flops = 10 * costs['flops_per_token']['total'] * costs['batch']['tokens']
    assert out.splitlines()[-1] == f'cost: {flops / 1e10:.3g} × 10¹⁰ FLOPs'
    assert not list(tmp_path.iterdir())

    # 20 steps of 100 positions took ten seconds; of one much smaller, nothing is told.
    per_token = costs['flops']['batch'] / 100 / 2
    made_runs.make(Path('runs/other'), 30.0, result={'flops_per_token': per_token})
    made_runs.make(Path('runs/tiny'), 30.0, result={'flops_per_token': 1})
    made_runs.make(Path('runs/damaged'), 30.0)
    Path('runs/damaged/config.json').write_text('{', 'utf-8')
    run.main()
    hours = flops / (20 * 100 * per_token) * 10 / 3600
    assert f'FLOPs, about {hours:.2g} worker hours' in capsys.readouterr().out


def test_a_dry_run_refuses_text_that_is_missing(tmp_path, monkeypatch):
    missing = small_runs.source(tmp_path / 'gone')
    flags = ['--config=wmt_small', '--dry_run', f'--config.data={missing}']
    with pytest.raises(UserError, match='data: .*gone is not a folder'):
        command(monkeypatch, run, *flags)


@pytest.mark.parametrize(
    'fields',
    [
        {'init_from': 'gone'},
        {'train.loss': 'distillation', 'train.teacher': 'gone'},
    ],
)
def test_a_dry_run_refuses_a_run_that_is_missing(tmp_path, monkeypatch, fields):
    monkeypatch.chdir(tmp_path)
    flags = ['--config=wmt_small', '--dry_run', *small_runs.flags(fields)]
    monkeypatch.setattr(sys, 'argv', ['run', *flags])
    with pytest.raises(UserError, match='gone: not a run directory'):
        run.main()


TABLE = 'table(train="train.tsv", val="val.tsv", source="word", target="sounds"'


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (
            [f'--config.data={TABLE.replace("sounds", "gone")})'],
            r"val.tsv has no column 'gone' in row 1. It has word, sounds.",
        ),
        (
            [f'--config.data={TABLE}, document="gone")'],
            r"val.tsv has no column 'gone' in row 1",
        ),
        (
            ['--config.data=' + TABLE.replace('train.tsv', 'other.tsv') + ')'],
            r"other.tsv has no column 'word' in row 1",
        ),
        (['--config.evaluation.sets=gone'], "evaluation.sets: unknown set 'gone'"),
        (
            ['--config.evaluation.metrics=external(command="no_such_program")'],
            "cannot run 'no_such_program': .*Install it or correct it.$",
        ),
        (
            ['--config.evaluation.metrics=external(command="./val.tsv")'],
            "cannot run './val.tsv': .*Permission denied.*Install it or correct it.$",
        ),
        (['--config.filters=length_ratio(most=1)'], 'removed all training pairs'),
        (['--processes=2', '--process=2'], '--processes=2 --process=2: incomplete or'),
    ],
)
def test_a_dry_run_refuses_with_the_line_of_the_run(
    tmp_path, monkeypatch, flags, message
):
    monkeypatch.chdir(tmp_path)
    rows = [f'{word}\t{word} {word}\n' for word in ('ab', 'cd', 'ef')]
    for name, header in {'train': 'word', 'val': 'word', 'other': 'other'}.items():
        table = f'{header}\tsounds\n' + ''.join(rows) + f'{name}\t{name} {name}\n'
        Path(f'{name}.tsv').write_text(table, 'utf-8')
    given = ['--config=wmt_tiny', '--config.tokenizer=bytes', '--workdir=new']
    given += [f'--config.data={TABLE})', '--config.evaluation.sets=val', *flags]
    for last in ([], ['--dry_run']):
        monkeypatch.setattr(sys, 'argv', ['run', *given, *last])
        with pytest.raises(UserError, match=message):
            run.main()
        assert not Path('new').exists()


def test_a_dry_run_refuses_more_steps_if_the_schedule_depends_on_them(
    whole, monkeypatch
):
    workdir, _ = whole
    config = f'--config={workdir}/config.json'
    stored = storage.read_json(workdir / 'config.json')
    schedule = 'cosine(peak=1e-3)'
    stored['optimizer']['schedule'] = schedule
    copy = workdir.with_name('cosine')
    copy.mkdir()
    storage.write_json(copy / 'config.json', stored)
    flags = [f'--workdir={copy}', f'--config.optimizer.schedule={schedule}']
    more = [config, *flags, '--config.train.steps=20', '--dry_run']
    with pytest.raises(UserError, match='past learning rates would change'):
        command(monkeypatch, run, *more)


def test_a_dry_run_of_a_finished_run_checks_no_data(whole, tmp_path, monkeypatch):
    copy = tmp_path / 'run'
    shutil.copytree(whole[0], copy)
    config = storage.read_json(copy / 'config.json')
    config['data'] = small_runs.source(tmp_path / 'gone')
    storage.write_json(copy / 'config.json', config)
    flags = [f'--config={copy}/config.json', f'--workdir={copy}']
    command(monkeypatch, run, *flags)
    command(monkeypatch, run, *flags, '--dry_run')


def translated(monkeypatch, capsys, workdir, lines, *flags, program=translate):
    data = lines if isinstance(lines, bytes) else lines.encode()
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        monkeypatch.setattr(sys, 'stdin', file)
        capsys.readouterr()
        command(monkeypatch, program, f'--workdir={workdir}', *flags)
    return capsys.readouterr().out.split('\n')[:-1]


def test_translating_keeps_order_and_blank_lines(
    whole, translations, text, monkeypatch, capsys
):
    workdir, _ = whole
    first, second, third = (text / 'news.en').read_text().splitlines()
    lines = f'{first}\n\n{second}\n  \n{third}\n'
    out = translated(monkeypatch, capsys, workdir, lines)
    assert out == [translations[0], '', translations[1], '', translations[2]]
    out = translated(monkeypatch, capsys, workdir, lines, '--n_best=2', '--scores')
    assert len(out) == 10
    scores = [float(line.split('\t')[0]) for line in out]
    assert scores[0] >= scores[1] and scores[4] >= scores[5]
    assert out[0].split('\t')[1] == translations[0]


def test_lines_with_fewer_texts_than_asked_for_are_told(whole, monkeypatch, capsys):
    def one_each(self, variables, texts, *_):
        return ([Hypothesis(text, 0.0)] for text in texts)

    told = []
    monkeypatch.setattr(Translator, '__call__', one_each)
    monkeypatch.setattr(translate, 'warn', told.append)
    flags = ('--n_best=2', '--decode=beam(beams=2)')
    out = translated(monkeypatch, capsys, whole[0], 'a\n\nb\n', *flags)
    assert out == ['a', '', '', '', 'b', '']
    (warning,) = told
    assert warning.startswith('--n_best=2: 2 lines have fewer distinct translations.')


def test_samples_are_as_many_as_are_asked_for(whole, text, monkeypatch, capsys):
    workdir, _ = whole
    lines = (text / 'news.en').read_text()
    flags = ('--decode=sample', '--seed=3', '--scores')
    one = translated(monkeypatch, capsys, workdir, lines, *flags)
    out = translated(monkeypatch, capsys, workdir, lines, *flags, '--n_best=3')
    assert len(one) == 3 and len(out) == 9
    for i, line in enumerate(one):
        found = out[3 * i : 3 * i + 3]
        assert line in found and len(set(found)) == 3
        scores = [float(x.split('\t')[0]) for x in found]
        assert scores == sorted(scores, reverse=True)
    for decode, message in (
        ('greedy', 'from 1 to 1. Use more beams'),
        ('beam(beams=2)', 'from 1 to 2. Use more beams'),
        ('mbr(utility="chrf")', "^evaluation.decode: utility.*'chrf'"),
    ):
        with pytest.raises(UserError, match=message):
            translated(
                monkeypatch, capsys, workdir, '', f'--decode={decode}', '--n_best=3'
            )


def forget_tokenizer(folder):
    """Makes a checkpoint one of an earlier version, without its tokenizer's digest."""
    file = folder / 'metadata' / 'metadata'
    content = storage.read_json(file)
    del content['metadata']['tokenizer'], content['sha256']
    content['sha256'] = checkpoints._content_digest(content)
    file.write_text(json.dumps(content))


def test_a_run_beside_itself_translates_as_it_does_alone(
    whole, translations, text, tmp_path, monkeypatch, capsys
):
    workdir, _ = whole
    lines = (text / 'news.en').read_text()
    beside = f'--workdir={workdir}'
    assert translated(monkeypatch, capsys, workdir, lines, beside) == translations
    shutil.copytree(workdir, tmp_path / 'other')
    other = small_runs.train_tokenizer(Grammar(pairs=100), 300, tmp_path)
    other.save(tmp_path / 'other' / 'tokenizer.model')
    forget_tokenizer(tmp_path / 'other' / trained_run.CHECKPOINTS / '12')
    with pytest.raises(UserError, match='its tokenizer differs from that of'):
        translated(
            monkeypatch, capsys, workdir, lines, f'--workdir={tmp_path / "other"}'
        )


def test_scores_of_given_targets_are_the_loss_of_a_set(
    whole, text, monkeypatch, capsys
):
    workdir, _ = whole
    sides = [(text / f'news.{x}').read_text().splitlines() for x in ('en', 'de')]
    pairs = [*zip(*sides, strict=True)]
    lines = ''.join(f'{source}\t{target}\n' for source, target in pairs)
    scored = translated(monkeypatch, capsys, workdir, lines, program=score)
    found = list(map(json.loads, scored))
    tokens = [token for line in found for token in line['tokens']]
    expected = result(workdir)['evaluations']['news']
    loss = -sum(line['log_p'] for line in found) / len(tokens)
    assert loss == pytest.approx(expected['loss'], rel=1e-5)
    likeliest = np.mean([token['rank'] == 1 for token in tokens])
    assert likeliest == pytest.approx(expected['accuracy'])
    opened = experiments.open_run(workdir)
    for line, (_, target) in zip(found, pairs, strict=True):
        assert sum(x['log_p'] for x in line['tokens']) == pytest.approx(line['log_p'])
        *ids, _ = [x['token'] for x in line['tokens']]
        assert ids == opened.tokenizer.pieces(opened.tokenizer.encode([target])[0])


def test_what_is_no_pair_is_told_of_with_its_line_before_the_run_is_opened(
    tmp_path, monkeypatch, capsys
):
    for line in ('A dog.', 'a\tb\tc', 'A dog.\t ', '\tEin Hund.'):
        lines = f'A cat.\tEine Katze.\n{line}\n'
        with pytest.raises(
            UserError, match='line 2: invalid pair .* Write source, tab, target'
        ):
            translated(monkeypatch, capsys, tmp_path, lines, program=score)


def test_an_opened_run_does_what_the_commands_do(whole, translations):
    workdir, _ = whole
    opened = experiments.open_run(workdir)
    sources, references = to_lines(opened.evaluation_sets['news'])
    assert opened.translate(sources) == translations
    (tokens,) = opened.score([(sources[0], references[0][0])])
    seen = opened.record([(sources[0], references[0][0])])
    assert seen.values['decoder/layer_0/resid_pre'].shape == (1, len(tokens), 16)
    for ask, name in (
        (lambda: opened.translate(sources[0]), 'lines'),
        (lambda: opened.score(sources[0]), 'pairs'),
        (lambda: opened.score(('ab', 'cd')), 'pairs'),
        (lambda: opened.batch(('ab', 'cd')), 'pairs'),
    ):
        with pytest.raises(UserError, match=f'^{name}: a single text was given'):
            ask()


def test_lines_before_one_that_cannot_be_translated_are_translated(
    whole, translations, text, monkeypatch, capsys
):
    workdir, _ = whole
    lines = (text / 'news.en').read_bytes().splitlines(keepends=True)
    bad = b''.join([*lines[:2], b'caf\xe9\n', lines[2]])
    with pytest.raises(UserError, match='standard input, line 3, is not UTF-8'):
        translated(monkeypatch, capsys, workdir, bad)
    assert capsys.readouterr().out.split('\n')[:-1] == translations[:2]


def test_a_line_is_answered_when_it_comes(whole, text, monkeypatch):
    workdir, _ = whole
    lines = (text / 'news.en').read_bytes().splitlines(keepends=True)
    fed, feed = os.pipe()
    answered, answer = os.pipe()
    answers = []
    late = threading.Event()

    def converse():
        with os.fdopen(feed, 'wb') as given, os.fdopen(answered, 'rb') as told:
            # At the end of its input, a command that waits for more ends, too.
            timer = threading.Timer(60, lambda: (late.set(), given.close()))
            timer.start()
            for line in lines[:2]:
                given.write(line)
                given.flush()
                answers.append(told.readline())
            timer.cancel()
            given.write(lines[2])
            given.close()
            answers.append(told.read())

    person = threading.Thread(target=converse)
    with open(fed) as stdin, open(answer, 'w') as stdout:
        person.start()
        with monkeypatch.context() as patch:
            patch.setattr(sys, 'stdin', stdin)
            patch.setattr(sys, 'stdout', stdout)
            command(patch, translate, f'--workdir={workdir}')
    person.join()
    assert not late.is_set()
    assert [x.count(b'\n') for x in answers] == [1, 1, 1]


def test_evaluating_again_gives_the_same_scores(whole, monkeypatch, capsys):
    workdir, _ = whole
    command(monkeypatch, evaluate, f'--workdir={workdir}', '--set=news')
    again = json.loads(
        (workdir / 'translations' / 'news.step=12,mean_of=2.json').read_text()
    )
    expected = result(workdir)['evaluations']['news']
    assert {k: again[k] for k in expected} == expected
    assert 'nrefs:1' in capsys.readouterr().out
    with pytest.raises(
        UserError, match="--set: unknown set 'test'. Choose one of val, news"
    ):
        command(monkeypatch, evaluate, f'--workdir={workdir}', '--set=test')


def test_one_step_is_scored_and_translated_and_the_final_scores_stay(
    whole, text, monkeypatch, capsys
):
    workdir, _ = whole
    final = [workdir / 'result.json', *workdir.glob('translations/*mean_of=2.*')]
    before = [file.read_bytes() for file in final]
    # The run has scored the checkpoint of its last step, and the mean of two.
    command(monkeypatch, evaluate, f'--workdir={workdir}', '--set=val', '--step=12')
    assert 'checkpoints 12\n' in capsys.readouterr().out
    recorded = storage.read_json(workdir / 'translations/val.step=12.json')
    (last,) = [r for r in figures(workdir) if (r['kind'], r['step']) == ('eval', 12)]
    assert recorded['loss'] == pytest.approx(last['loss'], rel=1e-6)
    assert recorded['loss'] != result(workdir)['evaluations']['val']['loss']

    command(monkeypatch, evaluate, f'--workdir={workdir}', '--set=news', '--step=8')
    outputs = (workdir / 'translations/news.step=8.txt').read_text().splitlines()
    sources = (text / 'news.en').read_text()
    # The model is too young to translate otherwise, but its scores differ.
    usual = translated(monkeypatch, capsys, workdir, sources, '--scores')
    flags = ('--scores', '--step=8')
    lines = translated(monkeypatch, capsys, workdir, sources, *flags)
    assert [line.split('\t')[1] for line in lines] == outputs
    assert lines != usual
    assert [file.read_bytes() for file in final] == before


def test_scores_by_another_search_leave_the_run_s_own(whole, monkeypatch, capsys):
    workdir, _ = whole
    before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    flags = [f'--workdir={workdir}', '--set=news', '--decode=greedy']
    command(monkeypatch, evaluate, *flags)
    assert (
        'not saved: --decode differs from the run, beam(beams=2)'
        in capsys.readouterr().out
    )
    assert {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()} == before


def test_scores_in_another_dtype_leave_the_run_s_own(whole, monkeypatch, capsys):
    workdir, _ = whole
    before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    flags = [f'--workdir={workdir}', '--set=news', '--dtype=bfloat16']
    command(monkeypatch, evaluate, *flags)
    assert "not saved: --dtype replaces the run's" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()} == before
    run = OpenedRun(workdir, dtype='bfloat16')
    assert run.model.dense.dtype == jax.numpy.bfloat16
    assert {x.dtype for x in jax.tree.leaves(run.variables)} == {
        jax.numpy.dtype('float32')
    }
    with pytest.raises(UserError, match='dtype must be one of float32, bfloat16'):
        OpenedRun(workdir, dtype='int8')


def test_two_files_are_scored_as_a_set_is_and_nothing_is_written(
    whole, text, tmp_path, monkeypatch, capsys
):
    workdir, _ = whole
    for language in ('en', 'de'):
        shutil.copy(text / f'news.{language}', tmp_path / f'val.{language}')
    before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    files = [f'--{side}={tmp_path}/val' for side in ('source', 'reference')]
    flags = [f'--workdir={workdir}', f'{files[0]}.en', f'{files[1]}.de']
    command(monkeypatch, evaluate, *flags)
    header, _, _, row, *_ = capsys.readouterr().out.splitlines()
    assert header.endswith('checkpoints 8, 12')
    scores = result(workdir)['evaluations']['news']
    assert row.split()[:3] == ['val.en', '3', console.score(scores['loss'], 4)]
    assert console.score(scores['bleu']) in row.split()

    command(monkeypatch, evaluate, *flags, f'{files[1]}.de')
    assert 'nrefs:2' in capsys.readouterr().out
    assert {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()} == before
    (tmp_path / 'val.de').write_text('eins\n')
    with pytest.raises(UserError, match=r'val.en has 3 lines and .*val.de has 1\.'):
        command(monkeypatch, evaluate, *flags)


class Tagged(Source):
    """Two directions, whose set `val` has documents."""

    source, target, tags = 'en', 'zh+de', True

    def directions(self):
        return [('en', 'zh'), ('en', 'de')]

    def documents(self, name):
        return [[2]]


@pytest.mark.parametrize(
    ('sources', 'direction'),
    [
        (['<2zh> a', '<2zh> b'], ('en', 'zh')),
        (['<2zh> a', '<2de> b'], ('en', 'zh+de')),
        (['a', '<2fr> b'], ('en', 'zh+de')),
    ],
)
def test_files_have_the_languages_of_their_tags_and_no_documents(sources, direction):
    pairs = [(source, ('x',)) for source in sources]
    files = evaluate._select_files(pairs, Tagged(), small_runs.Numbers())
    assert files.direction('val') == direction
    assert files.documents('val') == ()


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--source=a'], '--source: has no reference. Add --reference=FILE.'),
        (['--reference=a'], '--reference: has no source. Add --source=FILE.'),
        (['--source=a', '--reference=b', '--set=val'], '--set: has no effect with'),
    ],
)
def test_flags_of_files_belong_together(flags, message, monkeypatch):
    with pytest.raises(UserError, match=message):
        command(monkeypatch, evaluate, '--workdir=none', *flags)


@pytest.mark.parametrize('program', [demo, evaluate, translate])
def test_a_step_that_is_not_kept_is_refused_with_those_that_are(
    program, whole, monkeypatch
):
    flags = [f'--workdir={whole[0]}', '--step=7']
    flags += ['--port=0'] if program is demo else []
    with pytest.raises(UserError, match=r'^step: .*whole.*step 7\. .* 6, 8, 12\.$'):
        command(monkeypatch, program, *flags)


def test_a_terminal_shows_what_is_done_beside_a_result(
    whole, text, monkeypatch, capsys
):
    workdir, _ = whole
    news = (text / 'news.en').read_text()
    for run_command, shown in (
        (lambda: command(monkeypatch, report, workdir, '--csv'), 'reading runs'),
        (
            lambda: command(
                monkeypatch, evaluate, f'--workdir={workdir}', '--set=news'
            ),
            '3/3 sentences of news',
        ),
        (lambda: print(*translated(monkeypatch, capsys, workdir, news)), '3 lines'),
    ):
        run_command()
        result, nothing = capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, 'stderr', Terminal())
            run_command()
            assert shown in sys.stderr.getvalue()
        assert (nothing, capsys.readouterr().out) == ('', result)


@pytest.mark.skipif(os.name != 'posix', reason='has no pseudo-terminals')
def test_who_types_is_told_how_to_end(whole, monkeypatch, capsys):
    ours, theirs = os.openpty()
    os.write(ours, b'A dog.\n\x04')
    with open(theirs) as stdin:
        monkeypatch.setattr(sys, 'stdin', stdin)
        command(monkeypatch, translate, f'--workdir={whole[0]}')
    os.close(ours)
    out, err = capsys.readouterr()
    assert out.count('\n') == 1
    assert err == 'reading from standard input; press Ctrl-D to end\n'


def test_the_report_reads_it(whole, monkeypatch, capsys):
    workdir, _ = whole
    command(monkeypatch, report, workdir, '--csv')
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row['status'] == 'finished'
    assert int(row['parameters']) == result(workdir)['parameters']


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_or_is_skipped(
    text, tmp_path, monkeypatch, capsys
):
    # A rate that throws the weights out of range: the step after it overflows.
    wild = dict(optimizer__schedule='constant_schedule(value=1e30)', train__steps=6)
    with pytest.raises(
        UserError, match=r'not finite at step 2 \(epoch 0, batch 1\)\. Lower the rate'
    ):
        command(monkeypatch, run, *arguments(text, tmp_path / 'stop', **wild))
    wild |= dict(train__on_nonfinite='skip', evaluation__sets='val')
    # It would rise, if the steps after the first made an update.
    wild |= dict(optimizer__schedule='noam(factor=1e36)', train__log_every=1)
    command(monkeypatch, run, *arguments(text, tmp_path / 'skip', **wild))
    assert 'skipped the non-finite update' in capsys.readouterr().out
    rows = [
        row
        for row in metrics_log.read_rows(tmp_path / 'skip')
        if row['kind'] == 'train'
    ]
    assert sum(row['skipped'] for row in rows) == 5
    assert len(rows) == 6 and len({row['learning_rate'] for row in rows}) == 1


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            dict(model__num_heads=0),
            'model.num_heads must be at least 1 and at most 65536, not 0',
        ),
        (
            dict(model__d_model=18, model__num_heads=4),
            'model.d_model=18 cannot be divided among',
        ),
        (
            dict(model__d_model=9, model__num_heads=3),
            'model.positions: d_model must be even',
        ),
        (
            dict(model__dropout=-0.1),
            'model.dropout must be at least 0 and below 1, not -0.1',
        ),
        (
            dict(model__dropout='nan'),
            'model.dropout must be at least 0 and below 1, not nan',
        ),
        (
            dict(model__attention='sofmax'),
            "model.attention: 'sofmax' is not one of .*did you mean",
        ),
        (
            dict(model__norm='layer(eps=1)'),
            "model.norm: .*unknown argument 'eps'; layer takes",
        ),
        (dict(model__architecture='lstm'), "model.architecture: 'lstm' is not one of"),
        (
            dict(model__architecture='recurrent', model__attention='relu'),
            'model.attention=relu has no effect where model.architecture=recurrent',
        ),
        (
            dict(evaluation__decode='beam(beams=0)'),
            'evaluation.decode: beams must be at least 1 and at most 10000, not 0',
        ),
        (
            dict(evaluation__processors='forced_prefix(tokens=(5, 9999))'),
            'evaluation.processors: forced prefix: token 9999 is not text',
        ),
        (
            dict(evaluation__processors='[min_length]'),
            'evaluation.processors: min_length needs length',
        ),
        (
            dict(evaluation__average_of='best', checkpoint__keep_best=0),
            'evaluation.average=2 .*checkpoint.keep_best=0',
        ),
        (
            dict(model__dtype='float64'),
            'model.dtype must be one of float32, bfloat16, float16',
        ),
        (dict(model__layers=3), "field 'model.layers'; did you mean"),
        (dict(train__steps='many'), 'train.steps'),
        (dict(train__steps=0), 'train.steps=0 and train.epochs=0'),
        (
            dict(train__loss='cross_entropy(label_smoothing=1)'),
            'train.loss: label_smoothing must be at least 0 and below 1',
        ),
        (dict(optimizer__schedule='nome'), 'optimizer.schedule: .*one of cosine, noam'),
        (
            dict(tokenizer='sentencepiece(vocab_size=20)'),
            'tokenizer: vocab_size=20 is smaller than',
        ),
        (
            dict(batch__tokens=64, batch__rows_multiple=4),
            'batch.tokens=64 is less than one batch: batch.rows_multiple=4',
        ),
        (dict(batch__max_length=2), 'batch.max_length=2 excludes all'),
        (
            dict(evaluation__sets='test'),
            "evaluation.sets: unknown set 'test'. Choose one of val",
        ),
        (dict(evaluation__average=3), 'checkpoint.keep=2. Raise checkpoint.keep'),
        (
            dict(data='txt'),
            'needles, scan, sigmorphon, table, text, tfds, nor .*; did you mean .text.',
        ),
        (dict(data='text(path="nowhere", source="en", target="de")'), 'nowhere'),
        (dict(model__positions='learned(max_length=5)'), 'positions for only 5'),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(
    changes, message, text, tmp_path, monkeypatch
):
    with pytest.raises(UserError, match=message) as caught:
        command(monkeypatch, run, *arguments(text, tmp_path / 'run', **changes))
    assert '\n' not in str(caught.value)
    assert not (tmp_path / 'run').exists()


def test_a_language_whose_tokenizer_is_not_installed_is_told_first(
    text, tmp_path, monkeypatch
):
    for file in text.iterdir():
        shutil.copy(file, tmp_path / f'{file.stem}{file.suffix.replace("de", "ja")}')
    monkeypatch.setitem(sys.modules, 'MeCab', None)
    data = f'text(path="{tmp_path}", source="en", target="ja")'
    with pytest.raises(UserError, match=r'pip install sacrebleu\[ja\]\. Or choose'):
        command(monkeypatch, run, *arguments(text, tmp_path / 'run', data=data))
    assert not (tmp_path / 'run').exists()


def test_training_pairs_beyond_a_learned_table_are_refused(text, tmp_path, monkeypatch):
    for name in ('val', 'news'):
        for language in ('en', 'de'):
            (tmp_path / f'{name}.{language}').write_text('a\n')
    for language in ('en', 'de'):
        (tmp_path / f'train.{language}').write_text(
            (text / f'train.{language}').read_text()
        )
    changes = dict(model__positions='learned(max_length=8)', evaluation__sets='news')
    with pytest.raises(UserError, match='learned positions for only 8'):
        command(monkeypatch, run, *arguments(tmp_path, tmp_path / 'run', **changes))
    assert not (tmp_path / 'run').exists()


GPU_ONLY = {
    'model__attention': 'flash',
    'model__dtype': 'bfloat16',
    'model__d_k': 8,
    'model__d_v': 8,
}


@pytest.mark.skipif(jax.default_backend() == 'gpu', reason='it trains on a GPU')
def test_a_model_for_a_gpu_is_planned_and_not_run(text, tmp_path, monkeypatch, capsys):
    given = arguments(text, tmp_path / 'run', **GPU_ONLY)
    command(monkeypatch, run, *given, '--dry_run')
    assert 'cost: ' in capsys.readouterr().out
    message = r'model\.attention: flash runs only on a gpu, and JAX uses the cpu here'
    with pytest.raises(UserError, match=message):
        command(monkeypatch, run, *given)
    assert not (tmp_path / 'run').exists()


def test_a_run_from_a_gpu_is_refused_where_there_is_none(whole, tmp_path, monkeypatch):
    copy = tmp_path / 'run'
    shutil.copytree(whole[0], copy)
    config = storage.read_json(copy / 'config.json')
    config['model']['cross']['attention'] = 'flash'
    storage.write_json(copy / 'config.json', config)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'cpu')
    message = r'model\.cross\.attention: flash runs only on a gpu'
    with pytest.raises(UserError, match=message):
        command(monkeypatch, translate, f'--workdir={copy}')


def on_one_device():
    flags = os.environ['XLA_FLAGS'].replace('device_count=4', 'device_count=1')
    return os.environ | {'XLA_FLAGS': flags}


@pytest.mark.slow
def test_a_run_goes_on_with_other_devices_and_in_another_mesh(whole, text, tmp_path):
    path = tmp_path / 'run'
    code, out = killed_after(text, path, 3, signal.SIGTERM, environment=on_one_device())
    assert code == -signal.SIGTERM, out
    code, out = killed_after(text, path, 6, signal.SIGTERM)
    assert code == -signal.SIGTERM and 'resuming' in out, out
    finish(start(text, path, mesh__fsdp=2, mesh__tensor=2))
    assert_same_losses(figures(path), figures(whole[0]))


def assert_same_losses(*runs):
    losses = [[r['loss'] for r in rows if r['kind'] == 'train'] for rows in runs]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize(
    ('name', 'said'), [('train', 'training text'), ('val', 'text of val')]
)
def test_changed_text_is_refused_before_a_run_is_changed(
    text, tmp_path, monkeypatch, name, said
):
    changed = shutil.copytree(text, tmp_path / 'text')
    data = {'data': small_runs.source(changed), 'train__steps': 4}
    workdir = tmp_path / 'run'
    # The vocabulary and the schedule must not depend on the change.
    settings = data | {
        'tokenizer': 'bytes',
        'optimizer__schedule': 'constant_schedule(value=1e-2)',
    }
    command(monkeypatch, run, *arguments(text, workdir, **settings))
    assert reading.scored_texts(workdir).keys() == {
        'training text',
        'text of val',
        'text of news',
    }
    before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    for language in ('en', 'de'):
        file = changed / f'{name}.{language}'
        lines = file.read_text('utf-8').splitlines(keepends=True)
        file.write_text(''.join(lines[:-1]), 'utf-8')
    message = f'data: the {said} changed since'
    with pytest.raises(UserError, match=message):  # more steps for a finished run
        more = settings | {'train__steps': 6}
        command(monkeypatch, run, *arguments(text, workdir, **more))
    assert storage.exists(workdir / 'result.json')
    (workdir / 'result.json').unlink()
    with pytest.raises(UserError, match=message):
        command(monkeypatch, run, *arguments(text, workdir, **settings))
    (workdir / 'result.json').write_bytes(before[workdir / 'result.json'])
    if name == 'val':
        flags = [f'--workdir={workdir}', '--set=val']
        with pytest.raises(UserError, match='--set: the text of val changed since'):
            command(monkeypatch, evaluate, *flags)
    assert {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()} == before


def test_a_directory_of_another_run_is_refused_and_left_alone(whole, text, monkeypatch):
    workdir, _ = whole
    before = {p: p.stat().st_mtime_ns for p in workdir.rglob('*') if p.name != '.lock'}
    with pytest.raises(UserError, match='model.d_ff is 32, not 64'):
        command(monkeypatch, run, *arguments(text, workdir, model__d_ff=64))
    assert {
        p: p.stat().st_mtime_ns for p in workdir.rglob('*') if p.name != '.lock'
    } == before


def test_a_run_of_another_version_is_named_as_such(whole, tmp_path, monkeypatch):
    copy = tmp_path / 'run'
    shutil.copytree(whole[0], copy)
    config = storage.read_json(copy / 'config.json')
    del config['model']['block']
    storage.write_json(copy / 'config.json', config)
    with pytest.raises(
        UserError, match='config.json: missing config field model.block'
    ):
        command(monkeypatch, translate, f'--workdir={copy}')


def test_a_tokenizer_that_differs_from_the_trained_one_is_refused(
    whole, tmp_path, monkeypatch
):
    shutil.copytree(whole[0], tmp_path / 'run')
    file = tmp_path / 'run' / 'tokenizer.model'
    content = file.read_bytes()
    file.write_bytes(content.replace(b'er', b'et'))
    assert file.read_bytes() != content
    for module in (translate, evaluate):
        with pytest.raises(
            UserError, match='tokenizer.model differs from the tokenizer of step 12'
        ):
            command(monkeypatch, module, f'--workdir={file.parent}')


def test_translating_needs_a_finished_checkpoint(whole, tmp_path, monkeypatch):
    with pytest.raises(UserError, match='not a run directory'):
        command(monkeypatch, translate, f'--workdir={tmp_path}')
    (tmp_path / 'config.json').write_text((whole[0] / 'config.json').read_text())
    with pytest.raises(UserError, match='no complete checkpoint yet'):
        command(monkeypatch, translate, f'--workdir={tmp_path}')


def test_an_error_is_one_line_and_exit_status_2(text, tmp_path):
    process = start(text, tmp_path / 'run', model__num_heads=0)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    assert out == 'error: model.num_heads must be at least 1 and at most 65536, not 0\n'


def test_a_second_process_in_the_same_directory_is_refused(whole, text, monkeypatch):
    workdir, _ = whole
    config = directory.read_config(workdir)
    with directory.open_run(workdir, config):
        with pytest.raises(UserError, match='is in use by process'):
            command(monkeypatch, run, *arguments(text, workdir))


def test_the_newest_damaged_checkpoint_is_named_and_the_one_before_is_used(
    whole, text, tmp_path, monkeypatch, capsys
):
    shutil.copytree(whole[0], tmp_path / 'run')
    (tmp_path / 'run' / 'result.json').unlink()
    newest = tmp_path / 'run' / trained_run.CHECKPOINTS / '12'
    # The arrays' files: which of several holds an array is Orbax's affair.
    for file in newest.glob('state/**/d/*'):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    command(monkeypatch, run, *arguments(text, tmp_path / 'run'))
    out = capsys.readouterr().out
    assert 'step 12 is damaged' in out and 'resuming at step 8' in out
    assert (
        result(tmp_path / 'run')['parameters_sha256']
        == result(whole[0])['parameters_sha256']
    )
    assert figures(tmp_path / 'run') == figures(whole[0])


def test_a_damaged_older_checkpoint_is_left_out_of_the_mean_and_said(
    whole, text, tmp_path, monkeypatch, capsys
):
    workdir = tmp_path / 'run'
    shutil.copytree(whole[0], workdir)
    (workdir / 'result.json').unlink()
    shutil.rmtree(workdir / trained_run.CHECKPOINTS / '8' / 'state')
    command(monkeypatch, run, *arguments(text, workdir))
    assert 'step 8 is damaged and skipped' in capsys.readouterr().out
    end = result(workdir)
    assert (end['averaged_steps'], end['left_out_steps']) == ([12], [8])
    assert set(end['evaluations']) == {'val', 'news'}

    # Nothing can be written any more: it is shown, scored and translated all the same.
    before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}

    def replace(*paths):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, 'replace', replace)
    command(monkeypatch, evaluate, f'--workdir={workdir}', '--set=news')
    out, err = capsys.readouterr()
    assert 'average of checkpoints 12\n' in out and 'nrefs:1' in out
    assert 'step 8 is damaged' in err and 'Read-only file system' in err
    command(monkeypatch, run, *arguments(text, workdir))
    assert 'finished: step 12' in capsys.readouterr().out
    lines = translated(monkeypatch, capsys, workdir, 'a\n')
    assert len(lines) == 1
    after = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    assert after == before


@pytest.mark.parametrize(
    ('part', 'value'),
    [
        ('model', []),
        ('model', 3),
        ('evaluation', None),
        ('model.d_model', 'wide'),
        ('model.num_layers', None),
        ('model.norm', 7),
        ('model.attention', ['softmax']),
        ('evaluation.decode', 'beam(beams="many")'),
        ('evaluation.beams', 'many'),
        ('evaluation.average', []),
        ('evaluation.average_of', 'worst'),
        ('data', 1),
        ('model.a.b', 1),
    ],
)
def test_a_config_of_another_shape_is_one_line(whole, tmp_path, part, value):
    config = storage.read_json(whole[0] / 'config.json')
    *folders, name = part.split('.', 1)
    (config[folders[0]] if folders else config)[name] = value
    storage.write_json(tmp_path / 'config.json', config)
    shutil.copy(whole[0] / trained_run.TOKENIZER, tmp_path)
    checkpoints = trained_run.CHECKPOINTS
    shutil.copytree(whole[0] / checkpoints, tmp_path / checkpoints)
    with pytest.raises(UserError) as error:
        OpenedRun(tmp_path)
    assert str(tmp_path) in str(error.value) and '\n' not in str(error.value)


@pytest.mark.slow
def test_runs_of_one_and_of_four_devices_agree(whole, text, tmp_path):
    finish(start(text, tmp_path / 'run', on_one_device()))
    assert_same_losses(figures(tmp_path / 'run'), figures(whole[0]))
