"""Tests of the source `grammar`."""

import hashlib
import re

import pytest

from parallel_grammar import held_out
from parallel_grammar.lexicon import NOUNS, VERBS
from parallel_grammar.source import LONGEST, SHORTEST, Grammar

# Digests of the text, by the number of training pairs. If you changed the grammar on
# purpose, copy them from the failures.
DIGESTS = {4_000: '2678671acc966af2', 20_000: '7d7c33a80b7c237b'}


@pytest.fixture(
    scope='module', params=[4_000, pytest.param(20_000, marks=pytest.mark.slow)]
)
def grammar(request) -> Grammar:
    return Grammar(pairs=request.param)


@pytest.fixture(scope='module')
def train(grammar) -> list[tuple[str, str]]:
    return list(grammar.train())


def words(text: str) -> list[str]:
    return re.sub('[.,?]', '', text.lower()).split()


def vocabulary(pairs, side: int) -> set[str]:
    return {word for pair in pairs for word in words(pair[side])}


@pytest.mark.ci
def test_sets_share_no_sentence_in_either_language(grammar, train):
    sets = {'train': train} | grammar.evaluation()
    for side in (0, 1):
        texts = [pair[side] for pairs in sets.values() for pair in pairs]
        assert len(texts) == len(set(texts))


def test_sets_have_documented_sizes_and_lengths(grammar, train):
    sets = grammar.evaluation()
    assert list(sets) == ['val', 'test', 'long', 'compositional']
    assert [len(pairs) for pairs in sets.values()] == [200, 500, 200, 200]
    assert len(train) == grammar.pairs
    lengths = [len(side.split()) for pair in train for side in pair]
    assert SHORTEST <= min(lengths) and max(lengths) <= LONGEST
    assert min(len(side.split()) for pair in sets['long'] for side in pair) > LONGEST


def test_sentences_are_capitalized_and_punctuated(train):
    for pair in train:
        for side in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ][\w ,'-]*[.?]", side), side
            assert not re.search(r' ,|,,|  |,[^ ]', side), side
        assert (pair[0][-1] == '?') == (pair[1][-1] == '?')


@pytest.mark.slow
@pytest.mark.parametrize('grammar', [20_000], indirect=True)
def test_evaluation_uses_words_of_training(grammar, train):
    known = [vocabulary(train, side) for side in (0, 1)]
    for name, pairs in grammar.evaluation().items():
        for side, share in ((0, 0.999), (1, 0.995)):
            used = [word for pair in pairs for word in words(pair[side])]
            assert sum(word in known[side] for word in used) >= share * len(used), name


# For each construction, a side and a pattern of text with the word X, independent of
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
    verbs = [v.english for v in VERBS.values() if v.english.base == word]
    return sorted({form for verb in verbs for form in (word, verb.gerund)})


@pytest.mark.parametrize('construction', held_out.HELD_OUT)
def test_held_out_pairs_are_not_trained_but_their_parts_are(
    construction, grammar, train
):
    side, sign = SIGNS[construction]
    words_held_out = held_out.HELD_OUT[construction].split()
    forms = [form for word in words_held_out for form in forms_of(construction, word)]
    pattern = re.compile(sign.replace('X', f'({"|".join(forms)})'), re.IGNORECASE)
    compositional = grammar.evaluation()['compositional']
    assert not any(pattern.search(pair[side]) for pair in train)
    assert any(pattern.search(pair[side]) for pair in compositional)
    anything = re.compile(sign.replace('X', r'\w+'), re.IGNORECASE)
    assert sum(bool(anything.search(pair[side])) for pair in train) > 50
    assert set(words_held_out) <= vocabulary(train, 0)


def test_text_is_the_same_on_every_machine(grammar, train):
    sets = {'train': train} | grammar.evaluation()
    lines = ['\t'.join(pair) for pairs in sets.values() for pair in pairs]
    digest = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
    assert digest[:16] == DIGESTS[grammar.pairs]


def test_fewer_pairs_are_the_first_of_more(grammar, train):
    few = Grammar(pairs=150)
    assert list(few.train()) == train[:150]
    assert few.evaluation() == grammar.evaluation()


def test_seeds_and_sizes_have_different_digests(grammar):
    other = Grammar(seed=1)
    assert other.evaluation()['test'] != grammar.evaluation()['test']
    default = Grammar()
    assert default.pairs == 20_000 and default.digest() == Grammar().digest()
    assert len({default.digest(), other.digest(), Grammar(pairs=500).digest()}) == 3
