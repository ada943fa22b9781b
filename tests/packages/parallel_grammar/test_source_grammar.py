"""Tests of the source `grammar`."""

import hashlib
import re

import pytest

from parallel_grammar import held_out
from parallel_grammar.lexicon import NOUNS, VERBS
from parallel_grammar.source import LONGEST, SHORTEST, Grammar


@pytest.fixture(scope='module')
def default() -> Grammar:
    return Grammar()


@pytest.fixture(scope='module')
def train(default) -> list[tuple[str, str]]:
    return list(default.train())


def words(text: str) -> list[str]:
    return re.sub('[.,?]', '', text.lower()).split()


def vocabulary(pairs, side: int) -> set[str]:
    return {word for pair in pairs for word in words(pair[side])}


def test_nothing_that_is_evaluated_is_trained_on_in_either_language(default, train):
    sets = {'train': train} | default.evaluation()
    for side in (0, 1):
        texts = [pair[side] for pairs in sets.values() for pair in pairs]
        assert len(texts) == len(set(texts))


def test_sizes_and_lengths(default, train):
    sets = default.evaluation()
    assert list(sets) == ['val', 'test', 'long', 'compositional']
    assert [len(pairs) for pairs in sets.values()] == [200, 500, 200, 200]
    assert len(train) == 20_000
    lengths = [len(side.split()) for pair in train for side in pair]
    assert SHORTEST <= min(lengths) and max(lengths) <= LONGEST
    assert min(len(side.split()) for pair in sets['long'] for side in pair) > LONGEST


def test_sentences_are_written_as_sentences(train):
    for pair in train:
        for side in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ][\w ,'-]*[.?]", side), side
            assert not re.search(r' ,|,,|  |,[^ ]', side), side
        assert (pair[0][-1] == '?') == (pair[1][-1] == '?')


def test_evaluation_uses_only_words_of_training(default, train):
    known = [vocabulary(train, side) for side in (0, 1)]
    for name, pairs in default.evaluation().items():
        for side, share in ((0, 0.999), (1, 0.995)):
            used = [word for pair in pairs for word in words(pair[side])]
            assert sum(word in known[side] for word in used) >= share * len(used), name


# What shows a construction in the text, with the word in the place of X. Independent of
# the trees.
_MINE = '(my|your|his|its|our|their)'
SIGNS = {
    'relative clause': (0, r'\bX (who|whom|whose|that|to whom|(in|on|at) which)\b'),
    'possessive': (0, rf'\b{_MINE} (\w+ )?X\b'),
    'modal verb': (
        0,
        r'\b(can|cannot|could|should|(want|wanted|would like|allowed|have) to) X\b',
    ),
    'negation': (0, r'\bnot ((want|have|like|allowed) to )?X\b'),
    'perfect, verb last': (1, r'\bX (habe|hast|hat|haben|bin|bist|ist|sind)\b'),
    'question': (0, r'^(do|does|did|will|can) (the|a|my|your) (\w+ )?\w+ X\b[^,]*\?'),
    'adjective in the dative': (1, r'\b(\w*em|im|am|zum|vom) \w+en X\b'),
}


def forms_of(construction: str, word: str) -> list[str]:
    """Returns the possible forms of X; empty if the text does not show its dative."""
    if construction == 'perfect, verb last':
        return [v.german.participle for v in VERBS.values() if v.english.base == word]
    if construction == 'adjective in the dative':
        noun = NOUNS[word]
        return [] if noun.gender == 'f' else [noun.german[False, 'dat']]
    if word in NOUNS and construction in ('relative clause', 'possessive'):
        return [NOUNS[word].english, NOUNS[word].english_plural]
    return sorted(
        {
            f
            for v in VERBS.values()
            if v.english.base == word
            for f in (word, v.english.gerund)
        }
    )


@pytest.mark.parametrize('construction', held_out.HELD_OUT)
def test_pairs_held_out_are_not_trained_but_their_parts_are(
    construction, default, train
):
    side, sign = SIGNS[construction]
    held = held_out.HELD_OUT[construction].split()
    forms = [form for word in held for form in forms_of(construction, word)]
    shown = re.compile(sign.replace('X', f'({"|".join(forms)})'), re.IGNORECASE)
    assert not [pair for pair in train if shown.search(pair[side])]
    assert [
        pair
        for pair in default.evaluation()['compositional']
        if shown.search(pair[side])
    ]
    anything = re.compile(sign.replace('X', r'\w+'), re.IGNORECASE)
    assert sum(bool(anything.search(pair[side])) for pair in train) > 50
    assert set(held) <= vocabulary(train, 0)


def test_the_text_is_the_same_everywhere(default, train):
    """If you changed the grammar on purpose, copy the digest from the failure."""
    sets = {'train': train} | default.evaluation()
    lines = ['\t'.join(pair) for pairs in sets.values() for pair in pairs]
    digest = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
    assert digest[:16] == '7d7c33a80b7c237b'


def test_fewer_pairs_are_the_first_of_more_and_evaluation_stays(default, train):
    few = Grammar(pairs=150)
    assert list(few.train()) == train[:150]
    assert few.evaluation() == default.evaluation()


def test_seeds_and_digests_differ(default):
    other = Grammar(seed=1)
    assert other.evaluation()['test'] != default.evaluation()['test']
    assert len({default.digest(), other.digest(), Grammar(pairs=500).digest()}) == 3
    assert default.digest() == Grammar().digest()
