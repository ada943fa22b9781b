"""Tests of mixed sources."""

import collections
import shutil

import numpy as np
import pytest

from experiments.data import sources
from experiments.errors import UserError


@pytest.fixture
def specs(tmp_path):
    found = []
    for target, size in {'de': 900, 'fr': 100, 'cs': 10}.items():
        folder = tmp_path / target
        folder.mkdir()
        for name, count in {'train': size, 'val': 2, 'test': 3}.items():
            for code in ('en', target):
                lines = ''.join(f'{code} {name} {i}\n' for i in range(count))
                (folder / f'{name}.{code}').write_text(lines)
        found.append(f'text(path="{folder}", source="en", target="{target}")')
    return found


def load(specs, more=''):
    return sources.load(f'mix(sources={specs!r}{more})')


def counts(found):
    pairs = list(found.train())
    return pairs, collections.Counter(target[:2] for _, target in pairs)


def test_without_a_temperature_each_pair_comes_once(specs):
    pairs, by_language = counts(load(specs))
    assert by_language == {'de': 900, 'fr': 100, 'cs': 10}
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize('temperature', [2, 5, 100])
def test_shares_are_sizes_to_the_power_of_one_over_the_temperature(temperature, specs):
    pairs, by_language = counts(load(specs, f', temperature={temperature}'))
    sizes = np.array([900, 100, 10], float)
    shares = sizes ** (1 / temperature) / (sizes ** (1 / temperature)).sum()
    found = np.array([by_language[x] for x in ('de', 'fr', 'cs')])
    assert by_language['de'] == 900
    np.testing.assert_allclose(found / found.sum(), shares, atol=2 / found.sum())
    # The frequencies of a source's pairs differ by one at most.
    times = collections.Counter(pairs)
    for language in ('fr', 'cs'):
        repeats = [n for (_, target), n in times.items() if target[:2] == language]
        assert max(repeats) - min(repeats) <= 1


def test_tags_name_the_target_language(specs):
    found = load(specs[1:], ', tags=True')
    pairs = list(found.train())
    assert pairs[0] == ('<2fr> en train 0', 'fr train 0')
    assert pairs[-1] == ('<2cs> en train 9', 'cs train 9')
    assert found.evaluation()['val'][0] == ('<2fr> en val 0', ('fr val 0',))
    assert (found.source, found.target) == ('en', 'fr+cs')


def test_tags_of_both_languages_name_the_direction(specs):
    inner = f'mix(sources={specs[:2]!r}, tags="both")'
    found = load([inner, specs[2]], ', tags="both"')
    assert found.directions() == [('en', 'de'), ('en', 'fr'), ('en', 'cs')]
    assert found.direction('val') == ('en', 'de+fr+cs')
    assert found.direction('en-cs.test') == ('en', 'cs')
    assert found.direction('en-de+fr.en-fr.test') == ('en', 'fr')
    assert load([specs[1]] * 2).direction('1.en-fr.val') == ('en', 'fr')
    pairs = list(load(specs[1:], ', tags="both"').train())
    assert pairs[0] == ('<en2fr> en train 0', 'fr train 0')
    with pytest.raises(UserError, match="tags='both'"):
        load([f'mix(sources={specs!r})'], ', tags="both"')
    texts = [source for source, _ in found.evaluation()['val'][::2]]
    assert texts == [f'<en2{x}> en val 0' for x in ('de', 'fr', 'cs')]


def test_dev_sets_are_joined_and_other_sets_scored_separately(specs):
    sets = load([specs[0], specs[1], specs[0]]).evaluation()
    assert {name: len(pairs) for name, pairs in sets.items()} == {
        'val': 6,
        **{'en-de.val': 2, 'en-de.test': 3, 'en-fr.val': 2, 'en-fr.test': 3},
        **{'2.en-de.val': 2, '2.en-de.test': 3},
    }


def test_source_must_not_train_on_the_dev_set_of_another(specs, tmp_path):
    other = tmp_path / 'other'
    shutil.copytree(tmp_path / 'fr', other)
    for code in ('en', 'fr'):
        (other / f'val.{code}').write_text('new\n')
    mixed = [specs[1], specs[1].replace(str(tmp_path / 'fr'), str(other))]
    assert len(load(mixed).evaluation()['val']) == 3
    for code in ('en', 'fr'):
        shutil.copy(tmp_path / 'fr' / f'train.{code}', other / f'val.{code}')
    for nested in (mixed, [specs[0], f'mix(sources={mixed!r})']):
        for read in (load(nested).train, load(nested).evaluation):
            with pytest.raises(UserError, match="the set 'val' of .*other"):
                read()


def test_digest_depends_on_the_direction_of_each_source(specs, tmp_path):
    for file in list((tmp_path / 'de').glob('*.en')):
        shutil.copy(file, file.with_suffix('.nl'))
    english = specs[0]
    dutch = english.replace('source="en"', 'source="nl"')
    mixed = [english, english, dutch], [english, dutch, dutch]
    one, other = (load(x, ', tags="both"') for x in mixed)
    assert one.directions() == other.directions()
    assert one.digest() != other.digest()
