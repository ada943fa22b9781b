"""The source `huggingface`: sets of the package `datasets`, here from a folder."""

import json
import sys

import pytest

from experiments.data import sources
from experiments.errors import UserError

PAIRS = [('scho\u0308n', 'x\ny'), ('b', None), ('c', 'd')]
PLAIN = [('schön', 'x y'), ('b', ''), ('c', 'd')]


@pytest.fixture(params=['columns', 'translation'])
def folder(request, tmp_path, monkeypatch):
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'home'))
    for split, count in {'train': 3, 'validation': 1, 'test': 2}.items():
        rows = [dict(zip(('en', 'de'), pair, strict=True)) for pair in PAIRS[:count]]
        if request.param == 'translation':
            rows = [{'translation': row} for row in rows]
        lines = ''.join(json.dumps(row) + '\n' for row in rows)
        file = tmp_path / 'set' / f'{split}.jsonl'
        file.parent.mkdir(exist_ok=True)
        file.write_text(lines)
    return tmp_path / 'set'


def load(folder, more='', source='en'):
    return sources.load(
        f'huggingface(path="{folder}", source="{source}", target="de"{more})'
    )


def test_pairs_of_a_set_and_its_other_splits(folder):
    pytest.importorskip('datasets')
    found = load(folder)
    assert list(found.train()) == PLAIN
    assert found.evaluation() == {'val': PLAIN[:1], 'test': PLAIN[:2]}
    part = load(folder, ', split="train[:2]", dev="train[2:]"')
    assert list(part.train()) == PLAIN[:2]
    assert part.evaluation() == {
        'val': PLAIN[2:],
        'validation': PLAIN[:1],
        'test': PLAIN[:2],
    }
    assert found.digest() == load(folder).digest() != part.digest()


def test_what_is_not_there_is_one_line(folder):
    pytest.importorskip('datasets')
    with pytest.raises(UserError, match="has no 'fr'; it has en, de$"):
        list(load(folder, source='fr').train())
    with pytest.raises(UserError, match='huggingface.*Unknown split "dev"'):
        load(folder, ', dev="dev"').evaluation()
    with pytest.raises(UserError, match='huggingface'):
        list(load(folder / 'nothing').train())


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'datasets', None)
    with pytest.raises(UserError, match=r'data: huggingface needs datasets: pip inst'):
        load('any').evaluation()
