"""Tests of the grammar against German sentences written by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from parallel_grammar import (
    Rng,
    english,
    german,
    lexicon,
    long_sentence,
    sentence,
    syntax,
)
from parallel_grammar.german_phrases import phrase
from parallel_grammar.lexemes import Adverb
from parallel_grammar.lexicon import (
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
from parallel_grammar.syntax import (
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

# ---- Trees from words ----------------------------------------------------------------

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


def n(text: str, **others) -> NounPhrase:
    """Parses a noun phrase: 'these old dogs'."""
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
        **others,
    )


def it(noun: str) -> Pronoun:
    return Pronoun('it', NOUNS[noun].gender)


def its(thing: str, owner: str) -> NounPhrase:
    stem = {'m': 'sein', 'n': 'sein', 'f': 'ihr'}[NOUNS[owner].gender]
    return replace(
        n(thing), determiner=DETERMINERS['his']._replace(english='its', german=stem)
    )


def that(noun: str) -> RelativePronoun:
    return RelativePronoun(PLURALS.get(noun) or NOUNS[noun], noun in PLURALS)


def at(preposition: str, where) -> Prepositional:
    return Prepositional(
        PREPOSITIONS[preposition], n(where) if isinstance(where, str) else where
    )


def do(subject, verb: str, thing=None, to=None, **parts) -> Clause:
    """Builds a clause from texts of noun phrases, times, manners and modals."""
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
    subject = n(subject) if isinstance(subject, str) else subject
    return Clause(
        subject, CLAUSE_VERBS[verb], tail=Subordinate(conjunction, what), **parts
    )


def ask(clause: Clause, front: str = 'verb') -> Sentence:
    return Sentence((replace(clause, front=front),), mood='question')


def request(verb: str, thing=None, please: bool = False, **parts) -> Sentence:
    return Sentence((do(YOU, verb, thing, **parts),), mood='request', please=please)


def as_sentence(tree: Clause | Sentence) -> Sentence:
    return Sentence((tree,)) if isinstance(tree, Clause) else tree


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


# grammar.tsv has trees of each phenomenon, as Python that the functions above evaluate,
# and the English and the German by hand.
NAMES = vars(lexicon) | vars(syntax) | globals()
GOLDENS = Path(__file__).with_name('goldens')


def read_golden(name: str) -> list[str]:
    return (GOLDENS / name).read_text('utf-8').splitlines()


_, *ROWS = read_golden('grammar.tsv')


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row.split('\t')[2])
def test_translations_match_those_by_hand(row):
    _, code, in_english, in_german = row.split('\t')
    tree = as_sentence(eval(code, NAMES))
    assert (english.sentence(tree), german.sentence(tree)) == (in_english, in_german)


# ---- Forms of words ------------------------------------------------------------------


@pytest.mark.parametrize('row', read_golden('declensions.txt'))
def test_declension(row):
    """Checks nominative, accusative, dative and genitive."""
    text, forms = row.split(': ')
    declined = [
        ' '.join(phrase(n(text), case)) for case in ('nom', 'acc', 'dat', 'gen')
    ]
    assert declined == forms.split(', ')


@pytest.mark.parametrize('row', read_golden('conjugations.txt'))
def test_conjugation(row):
    """Checks ich, du, er, wir, the participle with auxiliary, and the imperative."""
    english_verb, forms = row.split(': ')
    verb = VERBS[english_verb].german
    auxiliary = {'haben': 'hat', 'sein': 'ist'}[verb.auxiliary]
    forms_of_verb = [*verb.present[:4], auxiliary, verb.participle, verb.imperative]
    assert forms_of_verb == forms.split()


def test_equal_sentences_have_equal_translations():
    translations: dict[str, str] = {}
    rng = Rng(7)
    for tree in ((sentence, long_sentence)[i % 2](rng) for i in range(3_000)):
        in_german = german.sentence(tree)
        assert translations.setdefault(english.sentence(tree), in_german) == in_german
