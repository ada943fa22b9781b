"""Classes of words, with the forms in both languages."""

from typing import NamedTuple


class Noun(NamedTuple):
    english: str
    english_plural: str
    german: dict[tuple[bool, str], str]  # (is plural, case) → form
    gender: str  # gender of the German word: m, f, n
    kind: str  # semantic class: man, pet, drink, …
    pronoun: str  # he, she, it
    mass: bool  # no plural and no 'a': water


class Adjective(NamedTuple):
    english: str
    english_more: str
    german: str
    german_more: str
    stem: str  # before German endings: teuer → teur-
    kinds: frozenset[str]


class Preposition(NamedTuple):
    english: str
    german: str
    case: str = ''  # empty: dative for a place, accusative for a direction


class Adverb(NamedTuple):
    english: str
    german: str
    middle: bool = False  # before the verb in English: often, never
    tenses: frozenset[str] = frozenset()


class Determiner(NamedTuple):
    english: str
    english_plural: str
    german: str
    # The pattern of its and its adjective's endings: der, dieser, ein, viele, none.
    pattern: str


class EnglishVerb(NamedTuple):
    base: str
    present: tuple[str, ...]  # by person
    past: tuple[str, ...]
    participle: str
    gerund: str


class GermanVerb(NamedTuple):
    infinitive: str
    present: tuple[str, ...]  # by person, without the prefix
    past: tuple[
        str, ...
    ]  # the preterite, where German prefers it to the perfect; else empty
    participle: str
    auxiliary: str  # haben or sein
    prefix: str  # separable: an in anrufen
    reflexive: bool
    imperative: str


class Verb(NamedTuple):
    english: EnglishVerb
    german: GermanVerb
    particle: str  # 'up' of 'wake up'
    link: str  # English preposition before the object or an obligatory recipient
    preposition: str  # German preposition before the object
    case: str  # of the object, as the German verb or its preposition requires
    recipient: bool  # takes a second object, a person in the dative
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]
    notes: tuple[str, ...]


class Modal(NamedTuple):
    english: EnglishVerb
    link: tuple[str, ...]  # before the base form: 'to' of 'want to'
    auxiliary: bool  # needs no 'do' in questions and before 'not'
    german: GermanVerb
