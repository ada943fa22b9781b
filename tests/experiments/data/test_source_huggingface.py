"""Tests of the source `huggingface`, with local sets of the package `datasets`."""

import json
import sys

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
    with pytest.raises(UserError, match='data: .* a loading script, which is not run'):
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


@pytest.mark.parametrize(
    ('split', 'dev'),
    [('train', 'train[:2]'), ('train[:2]+test', 'train[1:]'), ('all', 'validation')],
)
def test_training_on_the_dev_set_is_refused(split, dev, folder):
    pytest.importorskip('datasets')
    found = load(folder, f', split="{split}", dev="{dev}"')
    for read in (found.train, found.evaluation):
        with pytest.raises(UserError, match='^data: split=.* overlaps dev='):
            read()


def test_splits_of_a_sum_are_no_evaluation_sets(folder):
    pytest.importorskip('datasets')
    found = load(folder, ', split="train[:2]+test", dev="train[2:]"')
    assert list(found.evaluation()) == ['val', 'validation']


def test_a_mix_must_not_train_on_the_dev_set_of_another_part(folder):
    pytest.importorskip('datasets')

    def part(split, dev):
        return (
            f'huggingface(path="{folder}", source="en", target="de", '
            f'split="{split}", dev="{dev}")'
        )

    mixed = [part('train[:1]', 'train[1:]'), part('train[:2]', 'validation')]
    found = sources.load(f'mix(sources={mixed!r})')
    with pytest.raises(UserError, match=r"split='train\[:2\]' trains on .*train\[1:\]"):
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


def test_a_column_of_texts_may_be_called_translation(home):
    folder = saved(home, {'translation': ['a', 'b'], 'de': ['x', None]})
    found = load(folder, source='translation')
    assert list(found.train()) == [('a', 'x'), ('b', '')]


def test_a_null_translation_is_a_blank_pair(home):
    folder = saved(home, {'translation': [{'en': 'a', 'de': 'x'}, None]})
    assert list(load(folder).train()) == [('a', 'x'), ('', '')]


@pytest.mark.parametrize(
    ('cells', 'shown'),
    [([1, 2], '1'), ([0.5, 1.0], '0.5'), ([['a', 'b'], []], r"\['a', 'b'\]")],
)
def test_a_cell_that_is_no_text_is_named(cells, shown, home):
    folder = saved(home, {'en': ['a', 'b'], 'de': cells})
    message = f"^data: .*own, split 'train', row 1: de must be text, not {shown}$"
    with pytest.raises(UserError, match=message):
        list(load(folder).train())


def test_columns_of_other_kinds_are_refused(home):
    datasets = pytest.importorskip('datasets')
    label = datasets.ClassLabel(names=['x', 'y'])
    folder = saved(home, {'en': ['a', 'b'], 'de': [0, 1]}, de=label)
    with pytest.raises(UserError, match='row 1: de must be text, not 0$'):
        list(load(folder).train())
    several = datasets.TranslationVariableLanguages(languages=['de', 'en'])
    cells = [{'language': ['de', 'en'], 'translation': ['x', 'a']}]
    folder = saved(home, {'translation': cells}, translation=several)
    with pytest.raises(UserError, match="column 'translation' has a variable number"):
        list(load(folder).train())


def test_what_is_not_there_is_one_line(folder):
    pytest.importorskip('datasets')
    with pytest.raises(UserError, match="has no 'fr'. It has en, de.$"):
        list(load(folder, source='fr').train())
    with pytest.raises(UserError, match='huggingface.*Unknown split "dev"'):
        load(folder, ', dev="dev"').evaluation()
    with pytest.raises(UserError, match='huggingface'):
        list(load(folder / 'nothing').train())


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'datasets', None)
    with pytest.raises(UserError, match=r'data: huggingface needs datasets: pip inst'):
        load('any').evaluation()
