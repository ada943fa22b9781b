"""Words: what each language must know of them. Made once, by `lexicon`."""

from typing import NamedTuple


class Noun(NamedTuple):
    english: str
    english_plural: str
    german: dict[tuple[bool, str], str]  # (is plural, case) → form
    gender: str  # of the German word: m, f, n
    kind: str  # what it is, for what may be said of it: man, pet, drink, …
    pronoun: str  # he, she, it
    mass: bool  # has no plural and no 'a': water


class Adjective(NamedTuple):
    english: str
    english_more: str
    german: str
    german_more: str
    stem: str  # what German endings are added to: teuer → teur-
    kinds: frozenset[str]


class Preposition(NamedTuple):
    english: str
    german: str
    case: str = ''  # empty: dative for a place, accusative for a direction


class Adverb(NamedTuple):
    english: str
    german: str
    middle: bool = False  # English puts it before the verb: often, never
    tenses: frozenset[str] = frozenset()


class Determiner(NamedTuple):
    english: str
    english_plural: str
    german: str
    # Which endings it has and its adjective gets: der, dieser, ein, viele, none.
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
    prefix: str  # what separates: an in anrufen
    reflexive: bool
    imperative: str


class Verb(NamedTuple):
    english: EnglishVerb
    german: GermanVerb
    particle: str  # 'up' of 'wake up'
    link: str  # English preposition before the object, or that the recipient must have
    preposition: str  # German preposition before the object
    case: str  # that the German verb or its preposition asks of the object
    recipient: bool  # has a second object, a person in the dative
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]
    notes: tuple[str, ...]


class Modal(NamedTuple):
    english: EnglishVerb
    link: tuple[str, ...]  # between it and the base form: 'to' of 'want to'
    auxiliary: bool  # stands in questions and before 'not' without 'do'
    german: GermanVerb
