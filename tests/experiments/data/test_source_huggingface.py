"""Tests of the source `huggingface`, with local sets of the package `datasets`."""

import json

import pytest

from experiments.data import sources
from experiments.errors import UserError

PAIRS = [('scho\u0308n', '\ufeffx\ny'), ('b', None), ('c', 'd')]
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


def test_a_script_in_the_folder_of_a_set_is_not_run(folder):
    pytest.importorskip('datasets')
    (folder / 'set.py').write_text('raise SystemExit')
    with pytest.raises(UserError, match='data: .*script'):
        load(folder).evaluation()


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
    both = load(folder, ', split="train[:2]+test", dev="train[2:]"')
    assert list(both.evaluation()) == ['val', 'validation']


@pytest.mark.parametrize(
    ('split', 'dev'),
    [('train', 'train[:2]'), ('train[:2]+test', 'train[1:]'), ('all', 'validation')],
)
def test_training_on_the_dev_set_is_refused(split, dev, folder):
    pytest.importorskip('datasets')
    found = load(folder, f', split="{split}", dev="{dev}"')
    for read in (found.train, found.evaluation):
        with pytest.raises(UserError, match='^data: split=.* dev='):
            read()


def test_a_mix_must_not_train_on_the_dev_set_of_another_part(folder):
    pytest.importorskip('datasets')

    def part(split, dev):
        return (
            f'huggingface(path="{folder}", source="en", target="de", '
            f'split="{split}", dev="{dev}")'
        )

    mixed = [part('train[:1]', 'train[1:]'), part('train[:2]', 'validation')]
    found = sources.load(f'mix(sources={mixed!r})')
    with pytest.raises(UserError, match=r"split='train\[:2\]' .*train\[1:\]"):
        found.evaluation()
    mixed[1] = part('test', 'validation')
    assert len(sources.load(f'mix(sources={mixed!r})').evaluation()['val']) == 3


def saved(folder, columns, **features):
    datasets = pytest.importorskip('datasets')
    rows = datasets.Dataset.from_dict(columns)
    for name, feature in features.items():
        rows = rows.cast_column(name, feature)
    for split in ('train', 'validation'):
        rows.to_parquet(folder / 'own' / f'{split}.parquet')
    return folder / 'own'


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'home'))
    (tmp_path / 'own').mkdir()
    return tmp_path


def test_blank_cells_are_blank_text(home):
    folder = saved(home, {'translation': ['a', 'b'], 'de': ['x', None]})
    found = load(folder, source='translation')
    assert list(found.train()) == [('a', 'x'), ('b', '')]
    folder = saved(home, {'translation': [{'en': 'a', 'de': 'x'}, None]})
    assert list(load(folder).train()) == [('a', 'x'), ('', '')]


@pytest.mark.parametrize(
    'cells', [[1, 2], [0.5, 1.0], [['a', 'b'], []], 'labels', 'languages']
)
def test_cells_without_text_are_named(cells, home):
    datasets = pytest.importorskip('datasets')
    place = "own, split 'train', row 1: de "
    if cells == 'labels':
        label = datasets.ClassLabel(names=['x', 'y'])
        folder = saved(home, {'en': ['a', 'b'], 'de': [0, 1]}, de=label)
    elif cells == 'languages':
        place = "column 'translation'"
        several = datasets.TranslationVariableLanguages(languages=['de', 'en'])
        cells = [{'language': ['de', 'en'], 'translation': ['x', 'a']}]
        folder = saved(home, {'translation': cells}, translation=several)
    else:
        folder = saved(home, {'en': ['a', 'b'], 'de': cells})
    with pytest.raises(UserError, match=f'^data: .*{place}'):
        list(load(folder).train())


def test_unknown_columns_splits_and_sets_are_named(folder):
    pytest.importorskip('datasets')
    with pytest.raises(UserError, match="'fr'.* en, de"):
        list(load(folder, source='fr').train())
    with pytest.raises(UserError, match='"dev"'):
        load(folder, ', dev="dev"').evaluation()
    with pytest.raises(UserError, match='huggingface'):
        list(load(folder / 'nothing').train())
