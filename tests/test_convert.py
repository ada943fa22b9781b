"""A published checkpoint as a run: its tokens and texts are those of Transformers.

The tokenizers in goldens/tokenizers/ belong to the checkpoints in goldens/families/;
what Transformers makes of both stands beside them: goldens/make_tokenizers.py.
"""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from experiments import convert, translate
from experiments.command_line.errors import UserError
from experiments.data import corpus
from experiments.data.tokenising import part
from experiments.data.tokenising.pool import Pool
from experiments.evaluation.translator import Translator
from experiments.runs import converted, trained_run

GOLDENS = Path(__file__).parent / 'goldens'
NAMES = sorted(path.name for path in (GOLDENS / 'tokenizers').iterdir())
every_golden = pytest.mark.parametrize('name', NAMES)
EXTRA_LENGTH = 3


def golden_of(name):
    path = GOLDENS / 'tokenizers' / name / 'golden.json'
    return json.loads(path.read_text('utf-8'))


def checkpoint(name, path):
    """A folder as it is published: config, weights and tokenizer."""
    shutil.copytree(GOLDENS / 'families' / name, path)
    shutil.copytree(GOLDENS / 'tokenizers' / name, path, dirs_exist_ok=True)
    return path


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """The directory of a run by the name of the checkpoint, each converted once."""
    folder = tmp_path_factory.mktemp('runs')
    for name in NAMES:
        theirs = checkpoint(name, tmp_path_factory.mktemp('theirs') / name)
        conversion = converted.read(theirs, 'grammar(pairs=50)')
        converted.write(conversion, folder / name)
    return folder


def command(monkeypatch, main, *arguments):
    monkeypatch.setattr(sys, 'argv', [main.__name__, *map(str, arguments)])
    main.main()


@every_golden
def test_tokens_are_those_of_transformers(name, runs):
    golden = golden_of(name)
    tokenizer = trained_run.open_trained(runs / name).tokenizer
    end = tokenizer.special_tokens.end
    source = [[*ids, end] for ids in tokenizer.encode(golden['texts'])]
    target = [[*ids, end] for ids in tokenizer.encode_target(golden['texts'])]
    assert source == golden['source'] and target == golden['target']
    assert len({tuple(map(tuple, side)) for side in (source, target)}) == (
        2 if name == 'marian' else 1
    )


@every_golden
def test_texts_of_tokens_are_those_of_transformers(name, runs):
    golden = golden_of(name)
    special = trained_run.open_trained(runs / name).tokenizer.special_tokens
    tokenizer = trained_run.open_trained(runs / name).tokenizer
    rows = [
        [special.start, *row, special.end, 5, special.padding] for row in golden['rows']
    ]
    assert tokenizer.decode(rows) == [text.strip() for text in golden['decoded']]
    assert tokenizer.decode([[16, 15]]) == ['>>abc<<' if name == 'marian' else '']


@every_golden
def test_translations_are_those_of_transformers(name, runs):
    trained = trained_run.open_trained(runs / name)
    settings = dataclasses.replace(
        trained.config.evaluation, decode='greedy', extra_length=EXTRA_LENGTH
    )
    mean = trained_run.average(trained.config, trained.checkpoints, trained.model)
    assert mean.steps == [converted.STEP] and not mean.left_out
    translator = Translator(trained.model, trained.tokenizer, settings)
    golden = golden_of(name)
    found = [best[0].text for best in translator(mean.variables, golden['texts'])]
    assert found == golden['greedy']


def kept(folder):
    """All files, by the path in the folder."""
    return {x.relative_to(folder): x for x in folder.rglob('*') if x.is_file()}


def test_the_commands_take_it_as_a_run(tmp_path, monkeypatch, capsys):
    theirs = checkpoint('t5', tmp_path / 't5')
    path = tmp_path / 'run'
    path.mkdir()  # an empty directory may be there
    data = '--data=grammar(pairs=50)'
    command(monkeypatch, convert, theirs, f'--workdir={path}', data)
    assert re.search(r'family +t5\n.*\nvocabulary +17\n', capsys.readouterr().out)
    assert list(tmp_path.glob('.*')) == []

    texts = tmp_path / 'texts'
    texts.write_text('cab abba\n\nbac\n', encoding='utf-8')
    with texts.open() as file:
        monkeypatch.setattr(sys, 'stdin', file)
        command(monkeypatch, translate, f'--workdir={path}', '--decode=greedy')
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0] and lines[1] == ''

    with pytest.raises(UserError, match='run is there and no empty directory'):
        command(monkeypatch, convert, theirs, f'--workdir={path}', data)


def test_pairs_have_the_tokens_of_each_side_and_the_special_ones(runs, tmp_path):
    tokenizer = trained_run.open_trained(runs / 'marian').tokenizer
    pairs = [('cab abba', 'abba'), ('bac', 'cab bac')]
    tokens = corpus.tokenize(pairs, tokenizer)
    assert tokens.special_tokens == tokenizer.special_tokens
    assert tokens.source[1].tolist() == tokenizer.encode(['bac'])[0]
    assert tokens.target[1].tolist() == tokenizer.encode_target(['cab bac'])[0]
    here = part.tokenize(pairs * 2, tokenizer)
    with Pool(tokenizer, 2) as pool:
        there = pool.tokenize(pairs * 2)
    assert part.to_bytes(here) == part.to_bytes(there)
