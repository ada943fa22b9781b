"""The grammar source: German written by hand, and what each evaluation set holds."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.data.grammar import english, german, held_out, lexicon, syntax
from experiments.data.grammar.german_phrases import phrase
from experiments.data.grammar.lexemes import Adverb
from experiments.data.grammar.lexicon import (
    ADJECTIVES,
    ADVERBS_OF_PLACE,
    BE,
    CLAUSE_VERBS,
    DETERMINERS,
    MODALS,
    NOUNS,
    PREPOSITIONS,
    TOWN_PREPOSITIONS,
    VERBS,
    WEATHER,
)
from experiments.data.grammar.rng import Rng
from experiments.data.grammar.sample_sentences import long_sentence, sentence
from experiments.data.grammar.syntax import (
    Clause,
    Expletive,
    Interrogative,
    Name,
    NounPhrase,
    Prepositional,
    Pronoun,
    RelativePronoun,
    Sentence,
    Subordinate,
)
from experiments.data.sources.grammar import LONGEST, SHORTEST, Grammar

# ---- Trees from words
# ---------------------------------------------------------------------------

ME, YOU, HE, SHE = Pronoun('I'), Pronoun('you'), Pronoun('he', 'm'), Pronoun('she', 'f')
WE, THEY = Pronoun('we'), Pronoun('they')
ANNA, PETER = Name('Anna', 'f', 'Anna'), Name('Peter', 'm', 'Peter')
WHO, WHAT = Interrogative(True), Interrogative(False)
WHERE, WHERE_TO = Adverb('where', 'wo'), Adverb('where', 'wohin')
TIMES = {adverb.english: adverb for adverb in (*lexicon.TIMES, *lexicon.FREQUENCIES)}
MANNERS = {
    adverb.english: adverb for group in lexicon.MANNERS.values() for adverb in group
}
PLURALS = {noun.english_plural: noun for noun in NOUNS.values()}
ARTICLES = {
    form: d for d in DETERMINERS.values() for form in (d.english, d.english_plural)
}


def n(text: str, **parts) -> NounPhrase:
    """The noun phrase of a text: 'these old dogs'."""
    *before, noun = text.replace('how many', 'how_many').split()
    article = (
        before.pop(0).replace('_', ' ')
        if before and before[0] not in ADJECTIVES
        else ''
    )
    adjective = ADJECTIVES[before[0]] if before else None
    plural = noun not in NOUNS
    return NounPhrase(
        PLURALS[noun] if plural else NOUNS[noun],
        ARTICLES[article],
        plural,
        adjective,
        **parts,
    )


def it(noun: str) -> Pronoun:
    """'it', where that means the noun."""
    return Pronoun('it', NOUNS[noun].gender)


def its(thing: str, owner: str) -> NounPhrase:
    stem = {'m': 'sein', 'n': 'sein', 'f': 'ihr'}[NOUNS[owner].gender]
    return replace(
        n(thing), determiner=DETERMINERS['his']._replace(english='its', german=stem)
    )


def that(noun: str) -> RelativePronoun:
    """The relative pronoun for a noun."""
    return RelativePronoun(PLURALS.get(noun) or NOUNS[noun], noun in PLURALS)


def at(preposition: str, where) -> Prepositional:
    return Prepositional(
        PREPOSITIONS[preposition], n(where) if isinstance(where, str) else where
    )


def do(subject, verb: str, thing=None, to=None, **parts) -> Clause:
    """A clause. Texts stand for noun phrases, times, manners and modals; `to` is the
    recipient."""
    subject, thing, to = (
        n(x) if isinstance(x, str) else x for x in (subject, thing, to)
    )
    for name, table in {'time': TIMES, 'manner': MANNERS, 'modal': MODALS}.items():
        if isinstance(parts.get(name), str):
            parts[name] = table[parts[name]]
    found = (VERBS | WEATHER | {'be': BE})[verb]
    return Clause(subject, found, object=thing, recipient=to, **parts)


def be(subject, what, **parts) -> Clause:
    return do(
        subject,
        'be',
        predicate=ADJECTIVES[what] if isinstance(what, str) else what,
        **parts,
    )


def say(subject, verb: str, conjunction: str, what: Clause, **parts) -> Clause:
    """A clause whose verb takes a clause."""
    subject = n(subject) if isinstance(subject, str) else subject
    return Clause(
        subject, CLAUSE_VERBS[verb], tail=Subordinate(conjunction, what), **parts
    )


def ask(clause: Clause, front: str = 'verb') -> Sentence:
    return Sentence((replace(clause, front=front),), mood='question')


def request(verb: str, thing=None, please: bool = False, **parts) -> Sentence:
    return Sentence((do(YOU, verb, thing, **parts),), mood='request', please=please)


def join(first: Clause, joint: str, second: Clause) -> Sentence:
    return Sentence((first, second), (joint,))


def tail(main: Clause, conjunction: str, clause: Clause) -> Clause:
    return replace(main, tail=Subordinate(conjunction, clause))


def lead(main: Clause, conjunction: str, clause: Clause) -> Clause:
    return replace(main, lead=Subordinate(conjunction, clause))


RAIN = do(Expletive('it'), 'rain', tense='progressive')
TO_ROME = Prepositional(TOWN_PREPOSITIONS['to'], Name('Rome', 'n', 'Rom'))
GARDEN = {'place': at('in', 'the garden')}
TIME_FIRST, OBJECT_FIRST = {'front': 'time'}, {'front': 'object'}
HERE, OUTSIDE, AT_HOME, HOME = (
    ADVERBS_OF_PLACE[word] for word in ('here', 'outside', 'at home', 'home')
)


# Phenomena, and of each some trees, as the functions above make them, with the English,
# and the German written by hand.
NAMES = vars(lexicon) | vars(syntax) | globals()
GOLDENS = Path(__file__).with_name('goldens')


def read_golden(name: str) -> list[str]:
    return (GOLDENS / name).read_text('utf-8').splitlines()


_, *ROWS = read_golden('grammar.tsv')


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row.split('\t')[2])
def test_phenomena(row):
    _, code, in_english, in_german = row.split('\t')
    tree = eval(code, NAMES)
    tree = Sentence((tree,)) if isinstance(tree, Clause) else tree
    assert (english.sentence(tree), german.sentence(tree)) == (in_english, in_german)


# ---- Forms of words
# -----------------------------------------------------------------------------


@pytest.mark.parametrize('row', read_golden('declensions.txt'))
def test_declension(row):
    """Nominative, accusative, dative, genitive."""
    text, forms = row.split(': ')
    declined = [
        ' '.join(phrase(n(text), case)) for case in ('nom', 'acc', 'dat', 'gen')
    ]
    assert declined == forms.split(', ')


@pytest.mark.parametrize('row', read_golden('conjugations.txt'))
def test_conjugation(row):
    """ich, du, er, wir; participle with auxiliary; the request to a friend."""
    english_verb, forms = row.split(': ')
    verb = VERBS[english_verb].german
    auxiliary = {'haben': 'hat', 'sein': 'ist'}[verb.auxiliary]
    made = [*verb.present[:4], auxiliary, verb.participle, verb.imperative]
    assert made == forms.split()


# ---- The sets
# -----------------------------------------------------------------------------------


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


def test_a_sentence_has_one_translation():
    translations: dict[str, str] = {}
    dice = Rng(7)
    for tree in ((sentence, long_sentence)[i % 2](dice) for i in range(8_000)):
        in_german = german.sentence(tree)
        assert translations.setdefault(english.sentence(tree), in_german) == in_german


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
    """What may stand in the place of X; none where a word's dative cannot be told from
    the text."""
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
    """If the grammar was changed on purpose, put in the digest that the failure
    shows."""
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
