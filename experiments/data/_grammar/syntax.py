"""Words and trees that belong to neither language: both sides of a pair are read from one tree.

Grammatical number, case and word order are no part of a tree: each language works them out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# The persons a verb agrees with, as indices into its forms: I, you, he/she/it, we, they.
FIRST, SECOND, THIRD, FIRST_PLURAL, THIRD_PLURAL = range(5)

PERSONS = ('man', 'woman', 'child')  # the kinds of noun that 'who' asks for
INFINITIVES = ('to', 'in order to')  # the conjunctions whose clause has no subject of its own


# ---- Words: made once, by the lexicon -----------------------------------------------------------


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
    pattern: str  # which endings it takes and asks of the adjective: der, dieser, ein, viele, none


class EnglishVerb(NamedTuple):
    base: str
    present: tuple[str, ...]  # by person
    past: tuple[str, ...]
    participle: str
    gerund: str


class GermanVerb(NamedTuple):
    infinitive: str
    present: tuple[str, ...]  # by person, without the prefix
    past: tuple[str, ...]  # the preterite, where German prefers it to the perfect; else empty
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


# ---- Noun phrases -------------------------------------------------------------------------------


class Expletive(NamedTuple):
    """The subject that stands for nothing: 'it' rains, 'there' is a dog."""

    english: str
    person: int = THIRD


class Pronoun(NamedTuple):
    """`gender` is that of the German noun meant, which is what German agrees with."""

    english: str
    gender: str = ''

    @property
    def person(self) -> int:
        persons = {'I': FIRST, 'you': SECOND, 'we': FIRST_PLURAL, 'they': THIRD_PLURAL}
        return persons.get(self.english, THIRD)


class Name(NamedTuple):
    name: str
    gender: str
    german: str  # cities have German names of their own
    person: int = THIRD


class Interrogative(NamedTuple):
    """'who', or 'what' where no person is asked for."""

    human: bool
    person: int = THIRD


class RelativePronoun(NamedTuple):
    """Stands in the relative clause in the place of the noun that the clause describes."""

    noun: Noun
    plural: bool

    @property
    def person(self) -> int:
        return THIRD_PLURAL if self.plural else THIRD


@dataclass(frozen=True, slots=True)
class NounPhrase:
    noun: Noun
    determiner: Determiner
    plural: bool = False
    adjective: Adjective | None = None
    owner: 'NounPhrase | Name | RelativePronoun | None' = None
    relative: 'Clause | None' = None

    @property
    def person(self) -> int:
        return THIRD_PLURAL if self.plural else THIRD


class Both(NamedTuple):
    first: 'NounPhrase | Name'
    second: 'NounPhrase | Name'
    person: int = THIRD_PLURAL


Nominal = Expletive | Pronoun | Name | Interrogative | RelativePronoun | NounPhrase | Both


# ---- What else a clause is made of --------------------------------------------------------------


class Prepositional(NamedTuple):
    preposition: Preposition
    phrase: Nominal


class Comparison(NamedTuple):
    """'bigger than the dog', or 'as big as the dog' where `equal`."""

    adjective: Adjective
    phrase: Nominal
    equal: bool = False


class Subordinate(NamedTuple):
    """`conjunction` is the English word."""

    conjunction: str
    clause: 'Clause'


@dataclass(frozen=True, slots=True)
class Clause:
    """One verb and what belongs to it. `front` names the part that is said first."""

    subject: Nominal
    verb: Verb
    tense: str = 'present'  # present, progressive, past, perfect, future
    modal: Modal | None = None
    negative: bool = False
    object: Nominal | None = None
    recipient: Nominal | None = None
    predicate: Adjective | Comparison | NounPhrase | None = None
    time: Adverb | None = None
    manner: Adverb | None = None
    companion: Prepositional | None = None
    place: Prepositional | Adverb | None = None
    direction: Prepositional | Adverb | None = None
    lead: Subordinate | None = None  # before the main clause
    tail: Subordinate | None = None  # after it
    front: str = 'subject'
    elided: bool = False  # its subject is said in the clause before: 'and eats it'

    def phrases(self) -> Iterator[tuple[Nominal, str]]:
        """Its noun phrases, each with its German case."""
        yield self.subject, 'nom'
        if self.object:
            yield self.object, self.verb.case
        if self.recipient:
            yield self.recipient, 'dat'
        for part, case in (
            (self.companion, 'dat'),
            (self.place, 'dat'),
            (self.direction, 'acc'),
        ):
            if isinstance(part, Prepositional):
                yield part.phrase, part.preposition.case or case
        if isinstance(self.predicate, Comparison):
            yield self.predicate.phrase, 'nom'
        elif isinstance(self.predicate, NounPhrase):
            yield self.predicate, 'nom'


@dataclass(frozen=True, slots=True)
class Sentence:
    """Clauses joined by 'and' or 'but'. `mood`: statement, question, request."""

    clauses: tuple[Clause, ...]
    joints: tuple[str, ...] = ()
    mood: str = 'statement'
    please: bool = False
