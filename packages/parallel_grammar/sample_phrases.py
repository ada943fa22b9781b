"""Samples noun phrases, and adverbials of time, place and manner."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from parallel_grammar import lexicon
from parallel_grammar.lexemes import Adverb, Determiner, Noun, Verb
from parallel_grammar.lexicon import (
    ADJECTIVES,
    DETERMINERS,
    FREQUENCIES,
    NAMES,
    NOUNS,
    TIMES,
    Place,
)
from parallel_grammar.rng import Rng
from parallel_grammar.syntax import (
    FIRST,
    FIRST_PLURAL,
    PERSONS,
    THIRD,
    Both,
    Name,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    RelativePronoun,
)

_POSSESSIVES = {'my': 5, 'your': 3, 'his': 3, 'her': 3, 'our': 3, 'their': 2}
# Only determiners whose negation is unambiguous may follow 'not'.
_PLAIN = {'the': 40, 'a': 20, 'this': 6} | _POSSESSIVES
_SINGULAR = _PLAIN | {'every': 4, 'no': 3}
_PLAIN_PLURAL = {'the': 40, '': 18, 'this': 6} | _POSSESSIVES
_NUMBERS = {'two': 3, 'three': 3, 'four': 2, 'five': 2, 'ten': 2}
_PLURAL = _PLAIN_PLURAL | {'all': 5, 'many': 7, 'some': 6} | _NUMBERS
_MASS = {'the': 40, '': 35, 'this': 4} | _POSSESSIVES
_DEFINITE = {'the': 80, 'this': 8} | _POSSESSIVES

# By gender, since the possessive 'its' doesn't determine it.
_ITS = {
    gender: Determiner('its', 'its', german, 'ein')
    for gender, german in {'m': 'sein', 'f': 'ihr', 'n': 'sein'}.items()
}


def _names(text: str) -> frozenset[str]:
    return frozenset(noun.english for noun in lexicon.nouns_of(text))


PEOPLE = lexicon.nouns_of('person')
_KIN = _names('father mother brother sister son daughter uncle aunt friend neighbour')
_OWNED_NOUNS = _names('pet goods text room house garden') | _KIN
_PARTS = _names('part roof')
_WHOLES = lexicon.nouns_of(
    'house school church hotel shop hospital castle library museum'
)

DESCRIBING = {
    noun.english: [a for a in ADJECTIVES.values() if noun.english in a.kinds]
    for noun in NOUNS.values()
}
PRONOUNS = (
    Pronoun('I'),
    Pronoun('you'),
    Pronoun('he', 'm'),
    Pronoun('she', 'f'),
    Pronoun('we'),
    Pronoun('they'),
)
_FIRST_PERSONS = (FIRST, FIRST_PLURAL)  # 'I' and 'we' can't be each other's objects


# ---- Noun phrases --------------------------------------------------------------------


def noun_phrase(
    rng: Rng,
    nouns: Sequence[Noun],
    determiners: str = 'any',
    subject: Nominal | None = None,
) -> NounPhrase:
    """Samples a noun phrase of one of the nouns.

    Args:
      determiners: Any, plain (may follow 'not') or definite.
      subject: Subject of the clause, to which 'its' may refer.
    """
    noun = rng.pick(nouns)
    plural = not noun.mass and rng.chance(0.25)
    adjectives = DESCRIBING[noun.english]
    adjective = rng.pick(adjectives) if adjectives and rng.chance(0.33) else None
    the = DETERMINERS['the']
    if noun.english in _OWNED_NOUNS and rng.chance(0.07):
        owner = _owner(rng, subject)
        return NounPhrase(noun, the, plural, adjective, owner=owner)
    if noun.english in _PARTS and rng.chance(0.3):
        whole = NounPhrase(rng.pick(_WHOLES), the)
        return NounPhrase(noun, the, plural, adjective, owner=whole)
    if noun.english in _OWNED_NOUNS and _has_its(subject) and rng.chance(0.4):
        return NounPhrase(noun, _ITS[subject.noun.gender], plural, adjective)
    weights = _determiners(noun, plural, determiners)
    return NounPhrase(noun, DETERMINERS[rng.draw(weights)], plural, adjective)


def _determiners(noun: Noun, plural: bool, allowed: str) -> dict[str, int]:
    if allowed == 'definite':
        return _DEFINITE
    if noun.mass:
        return _MASS
    if allowed == 'plain':
        return _PLAIN_PLURAL if plural else _PLAIN
    return _PLURAL if plural else _SINGULAR


def _owner(rng: Rng, subject: Nominal | None) -> Name | NounPhrase:
    if rng.chance(0.4):
        return rng.pick([name for name in NAMES if name != subject])
    plural = rng.chance(0.2)
    return NounPhrase(rng.pick(PEOPLE), DETERMINERS[rng.draw(_DEFINITE)], plural)


def _has_its(nominal: Nominal | None) -> TypeGuard[NounPhrase]:
    if not isinstance(nominal, NounPhrase) or nominal.plural:
        return False
    return nominal.noun.kind in ('child', 'pet', 'beast')


def noun_of(nominal: Nominal) -> Noun:
    if isinstance(nominal, NounPhrase | RelativePronoun):
        return nominal.noun
    female = isinstance(nominal, Name | Pronoun) and nominal.gender == 'f'
    return NOUNS['woman' if female else 'man']


def is_none(nominal: Nominal) -> bool:
    return isinstance(nominal, NounPhrase) and nominal.determiner.english == 'no'


def may_be_negated(subject: Nominal) -> bool:
    """Returns whether the verb may be negated: 'every man does not' is ambiguous."""
    if not isinstance(subject, NounPhrase):
        return True
    return subject.determiner.english in _PLAIN | _PLAIN_PLURAL


def subject_of(rng: Rng, verb: Verb, determiners: str = 'any') -> Nominal:
    if NOUNS['woman'] in verb.subjects:  # anybody can do it
        kind = rng.draw({'noun': 60, 'name': 14, 'pronoun': 20, 'both': 6})
        if kind == 'name':
            return rng.pick(NAMES)
        if kind == 'pronoun':
            return rng.pick(PRONOUNS)
        if kind == 'both':
            return Both(rng.pick(NAMES), noun_phrase(rng, PEOPLE, 'definite'))
    return noun_phrase(rng, verb.subjects, determiners)


def other(
    rng: Rng, nouns: Sequence[Noun], subject: Nominal, determiners: str = 'any'
) -> Nominal:
    """Samples a noun, or a name or pronoun for a person; never the subject."""
    noun = rng.pick(nouns)
    while len(nouns) > 1 and isinstance(subject, NounPhrase) and noun is subject.noun:
        noun = rng.pick(nouns)
    kind = 'noun'
    if noun.kind in PERSONS:
        kind = rng.draw({'noun': 65, 'name': 15, 'pronoun': 20})
    if kind == 'name' and not isinstance(subject, Name | Both):
        return rng.pick(NAMES)
    if kind == 'pronoun':
        same = _FIRST_PERSONS if subject.person in _FIRST_PERSONS else (subject.person,)
        others = [p for p in PRONOUNS if p.person not in same or p.person == THIRD]
        return rng.pick(others)
    return noun_phrase(rng, [noun], determiners, subject)


# ---- Time, place and manner ----------------------------------------------------------


def time_for(rng: Rng, tense: str, often: bool) -> Adverb:
    if often and rng.chance(0.3):
        return rng.pick(FREQUENCIES)
    return rng.pick([time for time in TIMES if not time.tenses or tense in time.tenses])


def place_in(
    rng: Rng, places: Sequence[Place], subject: Nominal
) -> Prepositional | Adverb:
    place = rng.pick(places)
    if isinstance(place, Adverb):
        return place
    preposition, where = place
    if isinstance(where, Name):
        return Prepositional(preposition, where)
    if where.kind in PERSONS:
        return Prepositional(preposition, other(rng, PEOPLE, subject, 'definite'))
    phrase = noun_phrase(rng, [where], 'definite')
    if rng.chance(0.7):
        phrase = replace(phrase, plural=False)
    return Prepositional(preposition, phrase)
