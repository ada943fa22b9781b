"""Tests of the source `huggingface`, with local sets of the package `datasets`."""

import json

import pytest

from experiments.data import sources
from experiments.errors import UserError

datasets = pytest.importorskip('datasets')

PAIRS = [('scho\u0308n', '\ufeffx\ny'), ('b', None), ('c', 'd')]
PLAIN = [('schön', 'x y'), ('b', ''), ('c', 'd')]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'home'))


def write_set(folder, is_nested=False):
    for split, count in {'train': 3, 'validation': 1, 'test': 2}.items():
        rows = [dict(zip(('en', 'de'), pair, strict=True)) for pair in PAIRS[:count]]
        if is_nested:
            rows = [{'translation': row} for row in rows]
        lines = ''.join(json.dumps(row) + '\n' for row in rows)
        file = folder / 'set' / f'{split}.jsonl'
        file.parent.mkdir(exist_ok=True)
        file.write_text(lines)
    return folder / 'set'


@pytest.fixture
def folder(tmp_path):
    return write_set(tmp_path)


def spec(folder, more='', source='en'):
    return f'huggingface(path="{folder}", source="{source}", target="de"{more})'


def load(*arguments, **options):
    return sources.load(spec(*arguments, **options))


@pytest.mark.parametrize('is_nested', [False, True], ids=['columns', 'translation'])
def test_pairs_of_a_set_and_its_other_splits_are_read(tmp_path, is_nested):
    folder = write_set(tmp_path, is_nested)
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
def test_training_on_the_dev_set_is_rejected(split, dev, folder):
    found = load(folder, f', split="{split}", dev="{dev}"')
    for read in (found.train, found.evaluation):
        with pytest.raises(UserError, match='^data: split=.* dev='):
            read()


def test_mix_must_not_train_on_the_dev_set_of_another_source(folder):
    first = spec(folder, ', split="train[:1]", dev="train[1:]"')
    overlapping = spec(folder, ', split="train[:2]"')
    found = sources.load(f'mix(sources={[first, overlapping]!r})')
    with pytest.raises(UserError, match=r"split='train\[:2\]' .*train\[1:\]"):
        found.evaluation()
    other = spec(folder, ', split="test"')
    found = sources.load(f'mix(sources={[first, other]!r})')
    assert len(found.evaluation()['val']) == 3


def write_columns(folder, columns, **features):
    rows = datasets.Dataset.from_dict(columns)
    for name, feature in features.items():
        rows = rows.cast_column(name, feature)
    (folder / 'own').mkdir(exist_ok=True)
    for split in ('train', 'validation'):
        rows.to_parquet(folder / 'own' / f'{split}.parquet')
    return folder / 'own'


def test_missing_cells_are_blank_text(tmp_path):
    folder = write_columns(tmp_path, {'translation': ['a', 'b'], 'de': ['x', None]})
    assert list(load(folder, source='translation').train()) == [('a', 'x'), ('b', '')]
    folder = write_columns(tmp_path, {'translation': [{'en': 'a', 'de': 'x'}, None]})
    assert list(load(folder).train()) == [('a', 'x'), ('', '')]


@pytest.mark.parametrize('cells', [[1, 2], [['a', 'b'], []], 'labels', 'languages'])
def test_cells_without_text_are_named(cells, tmp_path):
    place = "own, split 'train', row 1: de "
    if cells == 'labels':
        label = datasets.ClassLabel(names=['x', 'y'])
        folder = write_columns(tmp_path, {'en': ['a', 'b'], 'de': [0, 1]}, de=label)
    elif cells == 'languages':
        place = "column 'translation'"
        several = datasets.TranslationVariableLanguages(languages=['de', 'en'])
        rows = [{'language': ['de', 'en'], 'translation': ['x', 'a']}]
        folder = write_columns(tmp_path, {'translation': rows}, translation=several)
    else:
        folder = write_columns(tmp_path, {'en': ['a', 'b'], 'de': cells})
    with pytest.raises(UserError, match=f'^data: .*{place}'):
        list(load(folder).train())


def test_unknown_columns_splits_sets_and_scripts_are_rejected(folder):
    with pytest.raises(UserError, match="'fr'.* en, de"):
        list(load(folder, source='fr').train())
    with pytest.raises(UserError, match='"dev"'):
        load(folder, ', dev="dev"').evaluation()
    with pytest.raises(UserError, match='huggingface'):
        list(load(folder / 'nothing').train())
    (folder / 'set.py').write_text('raise SystemExit')
    with pytest.raises(UserError, match='data: .*script'):
        load(folder).evaluation()
